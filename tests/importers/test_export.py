"""The exporter: what it writes comes back as the same graph, and says the same to others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from tercet.backends.numpy.numerics.convert import convert
from tercet.importers.onnx import load
from tercet.importers.onnx.upgrading.rewrite import NEWEST
from tercet.importers.onnx.writing.encode import packed, packed_size
from tercet.importers.onnx.writing.export import About, export
from tercet.importers.onnx.writing.save import ALIGNMENT, save
from tercet.importers.onnx.writing.versions import OLDEST
from tercet.runtime.errors import LimitError, UnsupportedError, UsageError
from tercet.runtime.ir.dtypes import BY_ONNX, DType, float32, int64, string
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, SequenceType, Shape, TensorType
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.quantize import DequantizeLinear
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.resize import Resize
from tercet.runtime.ops.shape import Identity, Trilu

from ..spec.cases import cases_by_operator
from .same import assert_same, assert_same_data


def run(model: ModelProto, *inputs: Array) -> list[Any]:
    """Return what onnxruntime computes."""
    ort = pytest.importorskip("onnxruntime")
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def opset(model: ModelProto, domain: str = "") -> int:
    return next(entry.version for entry in model.opset_import if entry.domain == domain)


def graph_of(*dtypes: DType, shape: Shape = (2, 3)) -> Graph:
    """Return a graph with inputs x0, x1, … and nothing else."""
    graph = Graph("test")
    for i, dtype in enumerate(dtypes):
        graph.add_input(f"x{i}", TensorType(dtype, shape))
    return graph


def finished(graph: Graph, **outputs: Any) -> Graph:
    graph.set_outputs(outputs)
    infer(graph)
    return graph


# ── operators ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_every_case_of_onnx_comes_back() -> None:
    """All operators, all their attributes, types and bodies, in the newest and the oldest opset."""
    count = 0
    for case in (case for cases in cases_by_operator().values() for case in cases):
        graph = load(case.model).graph
        for model in (export(graph), export(graph, at_least={})):
            onnx.checker.check_model(model, full_check=True)
            assert_same(graph, load(model.SerializeToString()).graph)
        count += 1
    assert count > 1800


# ── constants ────────────────────────────────────────────────────────────────────────────────────


def drawn(dtype: DType, *shape: int) -> Array:
    """Return random bits as an array of a dtype."""
    rng = np.random.default_rng(0)
    if dtype == string:
        return np.array(rng.choice(["", "a", "ß", "日本"], shape), object)
    if dtype.itemsize == 1 and np.dtype(dtype).kind == "V":
        return convert(rng.integers(0, 4, shape).astype(float32), dtype)
    return rng.integers(0, 2, shape).astype(dtype)


@pytest.mark.parametrize("external", [None, 1], ids=["embedded", "beside"])
@pytest.mark.parametrize("dtype", BY_ONNX.values(), ids=str)
def test_constants(dtype: DType, external: int | None, tmp_path: Path) -> None:
    """Seven elements, so that those of two or four bits leave a part of a byte."""
    graph = Graph("constants")
    held = [graph.constant(drawn(dtype, *shape), "c") for shape in ((7,), (), (0, 2))]
    names = [f"y{i}" for i in range(len(held))]
    finished(graph, **dict(zip(names, held, strict=True)))
    save(graph, tmp_path / "m.onnx", external=external)
    found = load(tmp_path / "m.onnx").graph.outputs
    for name, value in zip(names, held, strict=True):
        assert value.data is not None
        data = found[name].data
        assert data is not None
        assert_same_data(value.data, data)
    onnx.checker.check_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("dtype", [d for n, d in BY_ONNX.items() if n in (21, 22, 23, 25, 26)])
def test_packing_is_that_of_onnx(dtype: DType) -> None:
    data = drawn(dtype, 5)
    expected = onnx.numpy_helper.from_array(data)
    assert expected.data_type in BY_ONNX
    assert packed(data).tobytes() == expected.raw_data
    assert packed_size(data) == len(expected.raw_data)


def test_equal_constants_are_beside_the_file_once(tmp_path: Path) -> None:
    graph = graph_of(float32, shape=(1000,))
    data = drawn(float32, 1000)
    (x,) = graph.inputs
    once = graph.insert(Add(), [x, graph.constant(data, "a")]).output
    twice = graph.insert(Add(), [once, graph.constant(data, "b")], ["y"]).output
    finished(graph, y=twice)
    model = save(graph, tmp_path / "m.onnx", external=100)
    assert (tmp_path / "m.onnx.data").stat().st_size == data.nbytes
    places = [{e.key: e.value for e in t.external_data} for t in model.graph.initializer]
    assert [place["location"] for place in places] == ["m.onnx.data"] * 2
    assert all(int(place["offset"]) % ALIGNMENT == 0 for place in places)
    assert_same(graph, load(tmp_path / "m.onnx").graph)


def test_a_model_that_is_too_large_gets_a_second_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(float32, shape=(1000,))
    weight, small = graph.constant(drawn(float32, 1000)), graph.constant(drawn(float32, 1))
    y = graph.insert(Add(), [graph.insert(Add(), [graph.inputs[0], weight]).output, small], ["y"])
    finished(graph, y=y.output)
    save(graph, tmp_path / "one.onnx")
    monkeypatch.setattr("tercet.importers.onnx.writing.save.MAX_BYTES", 4000)
    model = save(graph, tmp_path / "two.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.onnx", "two.onnx", "two.onnx.data"]
    assert [bool(tensor.external_data) for tensor in model.graph.initializer] == [True, False]
    assert_same(graph, load(tmp_path / "two.onnx").graph)


def test_a_model_can_be_written_over_itself(tmp_path: Path) -> None:
    """Its constants are mapped from the very file that is replaced."""
    graph = graph_of(float32, shape=(5000,))
    y = graph.insert(Add(), [graph.inputs[0], graph.constant(drawn(float32, 5000))], ["y"]).output
    finished(graph, y=y)
    file = tmp_path / "m.onnx"
    save(graph, file, external=0)
    for _ in range(2):
        save(load(file).graph, file, external=0)
    assert_same(graph, load(file).graph)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_a_file_stays_where_writing_fails(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"old")
    graph = graph_of(float32)
    y = graph.insert(Trilu(), [graph.inputs[0]], ["y"]).output
    with pytest.raises(UnsupportedError):
        save(finished(graph, y=y), file, opsets={"": 13}, external=0)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert file.read_bytes() == b"old"


def test_more_than_two_gigabytes_do_not_fit_into_a_message() -> None:
    graph = graph_of(float32, shape=(1,))
    vast = np.broadcast_to(np.float32(1), (600 << 20,))
    finished(graph, y=graph.insert(Add(), [graph.inputs[0], graph.constant(vast)], ["y"]).output)
    with pytest.raises(LimitError, match="2516582400 bytes"):
        export(graph)


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def test_results_are_called_what_callers_call_them() -> None:
    """A result of two names, a constant, and an input that is a result itself."""
    graph = graph_of(float32)
    (x,) = graph.inputs
    inner = graph.insert(Relu(), [x], ["inner"]).output
    held = graph.constant(drawn(float32, 2), "held")
    finished(graph, one=inner, two=inner, three=held, x0=x)
    model = export(graph, opsets={"": 21})
    assert [value.name for value in model.graph.output] == ["one", "two", "three", "x0"]
    data = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    one, two, three, same = run(model, data)
    assert np.array_equal(one, np.maximum(data, 0))
    assert np.array_equal(two, one)
    assert np.array_equal(three, drawn(float32, 2))
    assert np.array_equal(same, data)


def test_an_inner_value_gives_way_to_a_result_of_its_name() -> None:
    graph = graph_of(float32)
    taken = graph.insert(Relu(), list(graph.inputs), ["y"]).output
    inner = graph.insert(Identity(), [taken], ["inner"]).output
    model = export(finished(graph, y=inner), opsets={"": 21})
    assert [node.output[0] for node in model.graph.node] == ["y.1", "y"]
    assert_same(graph, load(model).graph)


CONDITIONAL = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[2] x, bool c) => (float[2] y, float[2] z)
<float[2] w = {1.0, 2.0}, float[2] v = {3.0, 4.0}> {
    t = Add(x, w)
    y = If (c) <
        then_branch = a () => (float[2] y1) { s = Add(t, v) y1 = Mul(s, w) },
        else_branch = b () => (float[2] y2) { s = Sub(t, v) y2 = If (c) <
            then_branch = p () => (float[2] y3) { y3 = Identity(s) },
            else_branch = q () => (float[2] y4) { y4 = Mul(s, t) }
        > }
    >
    z = Relu(t)
}
"""


def test_bodies_read_what_is_outside() -> None:
    original = onnx.parser.parse_model(CONDITIONAL)
    graph = load(original).graph
    model = export(graph, at_least={"": 16})
    assert_same(graph, load(model).graph)
    assert [tensor.name for tensor in model.graph.initializer] == ["w", "v"]
    x = np.array([1, -9], np.float32)
    for condition in (True, False):
        wanted = run(original, x, np.array(condition))
        for a, b in zip(wanted, run(model, x, np.array(condition)), strict=True):
            assert np.array_equal(a, b)


def test_names_of_bodies_give_way_to_those_outside() -> None:
    """In a `Graph` they are apart; a file may not use one twice."""
    graph = load(onnx.parser.parse_model(CONDITIONAL)).graph
    (node,) = [node for node in graph.nodes if node.op.graphs()]
    assert "s" in node.op.graphs()[0].values
    graph.insert(Relu(), [graph.values["x"]], ["s"], before=graph.nodes[0])
    infer(graph)
    onnx.checker.check_model(export(graph, at_least={"": 16}), full_check=True)


# ── types and texts ──────────────────────────────────────────────────────────────────────────────


def test_types_are_declared() -> None:
    graph = graph_of(float32, shape=("batch", 3))
    graph.add_input("list", SequenceType(TensorType(int64, None)))
    inner = graph.insert(Relu(), [graph.inputs[0]], ["inner"]).output
    same = graph.insert(Identity(), [graph.inputs[1]], ["same"]).output
    finished(graph, y=graph.insert(Relu(), [inner], ["y"]).output, same=same)
    proto = export(graph).graph
    assert [
        dim.dim_param or dim.dim_value for dim in proto.input[0].type.tensor_type.shape.dim
    ] == [
        "batch",
        3,
    ]
    element = proto.input[1].type.sequence_type.elem_type.tensor_type
    assert (element.elem_type, element.HasField("shape")) == (TensorProto.INT64, False)
    assert [value.name for value in proto.value_info] == ["inner"]


def test_an_input_stays_what_it_is() -> None:
    """skl2onnx declares results of one row, also of a transformer that gives what it gets."""
    graph = graph_of(float32, shape=(None, 3))
    result = graph.insert(Identity(), list(graph.inputs), ["y"]).output
    result.declared = TensorType(float32, (1, 3))
    finished(graph, y=result)
    graph.redirect(result, graph.inputs[0])
    assert load(export(graph)).graph.inputs[0].tensor.shape == (None, 3)


def test_texts_of_the_file() -> None:
    graph = graph_of(float32)
    finished(graph, y=graph.insert(Relu(), list(graph.inputs), ["y"]).output)
    about = About("me", "1.2", {"author": "somebody", "license": "none"}, "What it does.")
    model = export(graph, about=about)
    found = load(model)
    assert found.metadata == about.metadata
    assert found.producer.split() == ["me", "1.2"]
    assert model.doc_string == "What it does."


def test_a_node_says_what_it_stands_for() -> None:
    graph = graph_of(float32)
    first = graph.insert(Relu(), list(graph.inputs), name="a")
    second = graph.insert(Relu(), [first.output], name="b")
    new = graph.insert(Relu(), list(graph.inputs), name="c", origin=[first, second])
    graph.replace(second, new.outputs)
    graph.remove(first)
    (node,) = export(finished(graph, y=new.output)).graph.node
    assert (node.name, node.doc_string) == ("c", "stands for a, b")


# ── opsets ───────────────────────────────────────────────────────────────────────────────────────


def test_opsets() -> None:
    """The newest, one that is asked for, and the lowest that says everything."""
    graph = graph_of(float32)
    axes = graph.constant(np.array([1]), "axes")
    y = graph.insert(ReduceMean(), [graph.inputs[0], axes], ["y"]).output
    finished(graph, y=y)
    assert opset(export(graph)) == min(NEWEST[""], onnx.defs.onnx_opset_version())
    assert opset(export(graph, opsets={"": 20})) == 20
    assert opset(export(graph, at_least={"": 9})) == 9
    assert opset(export(graph, at_least={"": 21})) == 21
    z = graph.insert(ReduceMean(), [y, graph.add_input("where", TensorType(int64, (1,)))], ["z"])
    finished(graph, z=z.output)
    assert opset(export(graph, at_least={"": 9})) == 18
    reason = r"opset 17:\n  node '.*' \(ReduceMean\): .* 'where' is not a constant"
    with pytest.raises(UnsupportedError, match=reason):
        export(graph, opsets={"": 17})
    with pytest.raises(UsageError, match=f"opset 3 of ai.onnx cannot be written; {OLDEST} to"):
        export(graph, opsets={"": 3})


def lowest(graph: Graph, op: Any, inputs: Sequence[Any], outputs: int = 1) -> int:
    node = graph.insert(op, inputs, outputs)
    finished(graph, **{f"y{i}": value for i, value in enumerate(node.outputs)})
    return opset(export(graph, at_least={}))


def test_element_types_decide() -> None:
    graph = graph_of(BY_ONNX[16])
    assert lowest(graph, Relu(), graph.inputs) == 13
    graph = graph_of(BY_ONNX[22])
    scale = graph.constant(np.ones((), np.float32))
    assert lowest(graph, DequantizeLinear(), [graph.inputs[0], scale]) == 21
    assert export(graph).ir_version >= 10


def test_values_of_attributes_decide() -> None:
    for mode, expected in (("asymmetric", 11), ("half_pixel_symmetric", 19)):
        graph = graph_of(float32, shape=(1, 1, 4, 4))
        roi = graph.constant(np.zeros(0, np.float32), "roi")
        scales = graph.constant(np.array([1, 1, 2, 2], np.float32), "scales")
        op = Resize(coordinate_transformation_mode=mode)
        assert lowest(graph, op, [graph.inputs[0], roi, scales]) == expected


@pytest.mark.parametrize(
    ("length", "sized", "expected"), [(6, False, 13), (7, False, 18), (7, True, 13)]
)
def test_split(length: int, sized: bool, expected: int) -> None:
    """Only the newest form says how many parts there are, and only where they have no sizes."""
    graph = graph_of(float32, shape=(length,))
    sizes = [graph.constant(np.array([length - 3, 3]), "sizes")] if sized else []
    assert lowest(graph, Split(num_outputs=2), [graph.inputs[0], *sizes], 2) == expected
    x = np.arange(length, dtype=np.float32)
    first = length - 3 if sized else -(-length // 2)
    for model in (export(graph, at_least={}), export(graph, opsets={"": 21})):
        assert [part.size for part in run(model, x)] == [first, 3]
        assert_same(graph, load(model).graph)


@pytest.mark.parametrize(
    ("arguments", "inner", "node"),
    [
        ("float[2, 64, 1] x, float[8] w", "15, 5, 2", "STFT (x, s, w)"),
        ("float[2, 1, 2, 3] x", "1, 2, 3", "MeanVarianceNormalization (x)"),
    ],
    ids=["STFT", "MeanVarianceNormalization"],
)
def test_defaults_that_onnx_does_not_infer_by_are_written(
    arguments: str, inner: str, node: str
) -> None:
    head = f'<ir_version: 8, opset_import: ["": 18]> g ({arguments}) => (float[2, {inner}] y)'
    graph = load(f"{head} <int64 s = {{4}}> {{ y = {node} }}").graph
    model = export(graph, at_least={"": 18})
    onnx.checker.check_model(model, full_check=True)
    assert_same(graph, load(model).graph)


def test_operators_of_other_packages_are_written_as_they_are() -> None:
    class Double(Relu):
        domain = "com.example"

    graph = graph_of(float32)
    y = graph.insert(Double(), list(graph.inputs), ["y"]).output
    model = export(finished(graph, y=y), opsets={"com.example": 3})
    assert (model.graph.node[0].domain, opset(model, "com.example")) == ("com.example", 3)
    assert helper.find_min_ir_version_for([]) <= model.ir_version
