"""Every operator of every opset becomes the newest one, and means the same."""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.defs
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.defs import OpSchema

import tercet
from tercet.importers.onnx import load
from tercet.importers.onnx.source.raw import RawGraph, RawNode
from tercet.importers.onnx.upgrading.rewrite import NEWEST, UPGRADES
from tercet.importers.onnx.upgrading.upgrade import upgrade
from tercet.runtime.errors import ModelError, ModelWarning, UnsupportedError
from tercet.runtime.ir.types import Array, TensorType, ValueType, constant_type
from tercet.runtime.ir.verify import verify
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

from .export import to_model
from .upgrade_cases import CASES, CHANNELS, Case, X, floats

Key = tuple[str, str]


def history() -> dict[Key, list[OpSchema]]:
    schemas: dict[Key, list[OpSchema]] = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        schemas[schema.domain, schema.name].append(schema)
    return {key: sorted(each, key=lambda s: s.since_version) for key, each in schemas.items()}


HISTORY = history()
#: Deprecated in favour of something more general, but declared, for models still have them.
KEPT = {("ai.onnx.ml", f"TreeEnsemble{kind}") for kind in ("Classifier", "Regressor")}
OLD = [
    pytest.param(schema, versions[-1], id=f"{schema.domain}{key[1]}-{schema.since_version}")
    for key, versions in HISTORY.items()
    for schema in versions[:-1]
    if key not in KEPT
]
#: What changed its meaning and not its signature alone: the version that it changed in.
MEANS_ANOTHER_THING = {
    "Softmax": 13,
    "LogSoftmax": 13,
    "Hardmax": 13,
    "Resize": 11,
    "OneHot": 11,
    "RoiAlign": 16,
    "GroupNormalization": 21,
    "BatchNormalization": 14,
    "GridSample": 20,
    "Dropout": 12,
    "PRelu": 7,
    "Tile": 6,
    "Scan": 9,
}


def required(parameters: Sequence[OpSchema.FormalParameter]) -> int:
    return sum(p.option == OpSchema.FormalParameterOption.Single for p in parameters)


def default_of(attribute: OpSchema.Attribute) -> Any:
    has_default = attribute.default_value.type != 0
    return helper.get_attribute_value(attribute.default_value) if has_default else None


def kind_of(attribute: OpSchema.Attribute) -> str:
    return str(attribute.type).rpartition(".")[2]


def differs(old: OpSchema, new: OpSchema) -> bool:
    """Whether a node written for `old` can be wrong, or mean something else, under `new`."""
    for name, attribute in old.attributes.items():
        same = new.attributes.get(name)
        if same is None or same.type != attribute.type:
            return True
        if default_of(same) != default_of(attribute) and not attribute.required:
            return True
    added = [new.attributes[name] for name in set(new.attributes) - set(old.attributes)]
    if new.deprecated or any(a.required for a in added):
        return True
    fewer_inputs = len(new.inputs) < len(old.inputs) or required(new.inputs) > required(old.inputs)
    return fewer_inputs or len(new.outputs) < len(old.outputs)


def test_speaks_the_newest_opset() -> None:
    newest = onnx.defs.onnx_opset_version()
    assert NEWEST[""] >= newest
    if NEWEST[""] > newest:
        pytest.skip(f"this onnx package knows opset {newest} only")


@pytest.mark.parametrize(("old", "new"), OLD)
def test_every_version_that_differs_has_an_upgrade(old: OpSchema, new: OpSchema) -> None:
    key = (old.domain, old.name)
    until, _ = UPGRADES.get(key, (0, None))
    assert not differs(old, new) or until > old.since_version
    if not old.domain and old.since_version < MEANS_ANOTHER_THING.get(old.name, 0):
        assert until >= MEANS_ANOTHER_THING[old.name]


SAMPLES: dict[str, Any] = {
    "INT": 1,
    "FLOAT": 1.0,
    "STRING": "x",
    "INTS": (1,),
    "FLOATS": (1.0,),
    "STRINGS": ("x",),
    "GRAPH": RawGraph("body", {"a": None}, ("a",), {}, {}, ()),
    "TENSOR": np.zeros(1, np.float32),
    "TYPE_PROTO": TensorType(np.dtype(np.float32)),
    "SPARSE_TENSOR": np.zeros(1, np.float32),
}


class Bench:
    """A `NodeSite` where all values are [1, 2, 3, 4] of one dtype."""

    producer = ""

    def __init__(self, dtype: type = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self.constants: dict[str, Array] = {}

    def type_of(self, name: str) -> ValueType | None:
        if name in self.constants:
            return constant_type(self.constants[name])
        return TensorType(self.dtype, (1, 2, 3, 4))

    def is_read(self, name: str) -> bool:
        return name != "unread"

    def fresh(self, hint: str) -> str:
        self.constants[f"{hint}.{len(self.constants)}"] = np.zeros(())
        return list(self.constants)[-1]

    def constant(self, data: Array, hint: str) -> str:
        name = self.fresh(hint)
        self.constants[name] = data
        return name

    def error(self, reason: str, node: RawNode) -> ModelError:
        return ModelError(reason, where=node.where)

    def unsupported(self, reason: str, node: RawNode) -> UnsupportedError:
        return UnsupportedError(f"{node.where}: {reason} (opset {node.opset})")


def sample(schema: OpSchema) -> RawNode:
    """Return a node with every attribute that the schema knows, and the inputs it needs."""
    attributes = {name: SAMPLES[kind_of(a)] for name, a in schema.attributes.items()}
    if (schema.name, schema.since_version) == ("Cast", 1):
        attributes["to"] = "FLOAT"
    if schema.name == "Scan":
        attributes["num_scan_inputs"] = 1
    inputs = ["x"] * max(1, schema.min_input) if schema.inputs else []
    if (schema.name, schema.since_version) == ("Scan", 8):
        inputs = ["", "x"]
    outputs = ["y"] + ["unread"] * (len(schema.outputs) - 1)
    return RawNode(
        schema.name,
        tuple(inputs),
        tuple(outputs),
        attributes,
        domain=schema.domain,
        opset=schema.since_version,
    )


@pytest.mark.parametrize(("old", "new"), OLD)
def test_what_an_upgrade_gives_fits_the_newest_schema(old: OpSchema, new: OpSchema) -> None:
    node = sample(old)
    if (old.domain, old.name) == ("", "Constant"):
        return  # never becomes a node
    for made in upgrade(node, Bench()):
        schema = HISTORY[made.domain, made.op][-1]
        assert not schema.deprecated
        types = {name: kind_of(schema.attributes[name]) for name in made.attributes}
        for name, value in made.attributes.items():
            assert isinstance(value, type(SAMPLES[types[name]])), name
        missing = [n for n, a in schema.attributes.items() if a.required and n not in types]
        assert not missing
        assert schema.min_input <= len(made.inputs) <= schema.max_input
        assert schema.min_output <= len(made.outputs) <= schema.max_output


def old_model(case: Case) -> onnx.ModelProto:
    names = [f"i{k}" for k in range(len(case.inputs))]
    outputs = [f"o{k}" for k in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="n", **case.attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for i, (n, a) in enumerate(zip(names, case.inputs, strict=True))
        if i not in case.fixed
    ]
    fixed = [numpy_helper.from_array(case.inputs[i], names[i]) for i in case.fixed]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "old", inputs, results, fixed)
    imports = [helper.make_opsetid("", case.opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=4)


def run(model: onnx.ModelProto, given: Sequence[Array]) -> list[Array]:
    """Return what onnxruntime computes, node by node as the file says."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = [i.name for i in session.get_inputs()]
    return [np.asarray(y) for y in session.run(None, dict(zip(wanted, given, strict=True)))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_means_the_same(case: Case) -> None:
    model = old_model(case)
    graph = load(model).graph
    verify(graph)
    given = [a for i, a in enumerate(case.inputs) if i not in case.fixed]
    found = run(to_model(graph), given)
    wanted = [case.expected(*case.inputs)] if case.expected else run(model, given)
    for a, b in zip(found, wanted, strict=False):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert case.expected or a.dtype == b.dtype


def test_scan_8_has_a_batch() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 4, opset_import: ["" : 8]>
        old (float[2,3] s, float[2,4,3] x) => (last, sums) {
            last, sums = Scan <num_scan_inputs = 1, directions = [1], body =
                body (float[3] state, float[3] item) => (float[3] next, float[3] out)
                { next = Add(state, item)  out = Identity(next) }> ("", s, x)
        }""")
    start, x = floats(2, 3), floats(2, 4, 3)
    graph = load(model).graph
    last, sums = run(to_model(graph), (start, x))
    expected = start[:, None] + np.cumsum(x[:, ::-1], 1)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, expected[:, -1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("results", ["y", "y, m, v"])
def test_batch_normalization_with_more_outputs_is_training(opset: int, results: str) -> None:
    """PyTorch 1 writes such nodes where a model is exported as it trains."""
    sizes = {"y": "2,3,4,5", "m": "3", "v": "3"}
    outputs = ", ".join(f"float[{sizes[name]}] {name}" for name in results.split(", "))
    model = onnx.parser.parse_model(f"""
        <ir_version: 4, opset_import: ["" : {opset}]>
        old (float[2,3,4,5] x, float[3] s, float[3] b, float[3] i, float[3] j) => ({outputs}) {{
            y, m, v, saved, inverse = BatchNormalization <momentum = 0.7> (x, s, b, i, j)
        }}""")
    feeds = dict(zip("xsbij", (X, *CHANNELS), strict=True))
    expected = run_onnxruntime(model, feeds)
    with tercet.load(model) as loaded:
        found = loaded.run(feeds)
    for name, data in expected.items():
        np.testing.assert_allclose(found[name], data, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y, m, v, a, b = BatchNormalization(x, s, s, s, s)  z = Add(a, a)", "gradients"),
        ("y, m, v, a, b = BatchNormalization <spatial = 0> (x, s, s, s, s)", "spatial"),
        ("y = Upsample <mode = 'nearest'> (x)", "scales"),
        ("y = Pad(x)", "pads"),
        ("y = Slice <starts = [0]> (x)", "ends"),
        ("y = TopK(x)", "'k'"),
        ("y = Slice <starts = 'a', ends = [1]> (x)", "list of integers"),
        ("y = Clip <min = 1> (x)", "float"),
    ],
)
def test_says_why_not(text: str, reason: str) -> None:
    output = "z" if " z " in text else "y"
    model = onnx.parser.parse_model(f"""
        <ir_version: 4, opset_import: ["" : 8]>
        old (float[1,2,3,4] x, float[2] s) => ({output}) {{ {text.replace("'", '"')} }}""")
    with pytest.raises((ModelError, UnsupportedError), match=reason):
        load(model)


@pytest.mark.parametrize("axis", [5, -5, -(2**62)])
@pytest.mark.parametrize("declared", ["float[1,2,3,4]", "float"])
def test_an_axis_that_a_tensor_cannot_have(axis: int, declared: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 4, opset_import: ["" : 6]>
        old ({declared} x, float[2] s) => (y) {{
            y = Add <broadcast = 1, axis = {axis}> (x, s)
        }}""")
    if declared == "float":
        model.graph.input[0].type.tensor_type.ClearField("shape")
    if declared == "float" and abs(axis) == 5:
        load(model)  # a run finds out
    else:
        with pytest.raises(ModelError, match=rf"axis={axis} is outside \[-\d+, \d+\]"):
            load(model)


@pytest.mark.parametrize("declared", [None, [1, 2], [2, 3, 4, 5, 6]], ids=str)
@pytest.mark.parametrize(
    ("operator", "small", "axis"),
    [("Add", (3, 4), 1), ("Add", (3,), -3), ("Sub", (5,), 3), ("Mul", (2,), 0), ("PRelu", (3,), 0)],
)
def test_a_rank_that_only_a_run_tells(
    operator: str, small: tuple[int, ...], axis: int, declared: list[int] | None
) -> None:
    """Second operands are aligned with the true axes, whatever rank the file declares."""
    attributes: dict[str, Any] = {} if operator == "PRelu" else {"broadcast": 1, "axis": axis}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node(operator, ["a", "b"], ["y"], **attributes),
    ]
    inputs = [("x", 1, [120]), ("shape", 7, [None]), ("b", 1, small)]
    inner = helper.make_tensor_value_info("a", 1, declared)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info("y", 1, None)],
        value_info=[inner],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    rng = np.random.default_rng(0)
    x, b = (rng.standard_normal(dims).astype(np.float32) for dims in ((120,), small))
    first = axis + 4 if axis < 0 else axis if operator != "PRelu" else 1
    wide = b.reshape((1,) * first + small + (1,) * (4 - first - len(small)))
    a = x.reshape(2, 3, 4, 5)
    with warnings.catch_warnings(), tercet.load(proto) as model:
        warnings.simplefilter("ignore", ModelWarning)
        (y,) = model(x, np.array([2, 3, 4, 5]), b)
    expected = {
        "Add": a + wide,
        "Sub": a - wide,
        "Mul": a * wide,
        "PRelu": np.where(a < 0, a * wide, a),
    }
    np.testing.assert_array_equal(y, expected[operator])
