"""Unknown operators: all of them are named, and the rest of the model can be seen."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, parser

import tercet
from tercet.importers.onnx import load
from tercet.runtime.errors import ModelError
from tercet.runtime.ir.unknown import UnknownOperators

MODEL = """
    <ir_version: 8, opset_import: ["" : 17, "com.microsoft": 1, "my.domain": 1]>
    g (float[n, 4] x, bool c) => (float[n, 4] y)
    <float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> {
        a = com.microsoft.MatMulWorn <alpha = 1.0> (x, w)
        b = Relux (a)
        p = PRelu (a, w)
        d = com.microsoft.QuickerGelu <table = float[2] {1, 2}> (b)
        e = com.microsoft.QuickerGelu (d)
        f = If (c) <
            then_branch = t () => (float[n, 4] u) {
                u = my.domain.Foo <body = g (float[2] q) => (float[2] r) { r = Neg (q) }> (e)
            },
            else_branch = h () => (float[n, 4] v) { v = Neg (e) }
        >
        s = Softmax (f)
        y = Add (s, x)
    }"""
UNKNOWN = {"com.microsoft::MatMulWorn": 1, "Relux": 1, "com.microsoft::QuickerGelu": 2}
UNKNOWN |= {"my.domain::Foo": 1}


@pytest.fixture
def model() -> ModelProto:
    return parser.parse_model(MODEL)


def test_all_of_them_are_named_at_once(model: ModelProto) -> None:
    with pytest.raises(tercet.UnsupportedError) as caught:
        load(model)
    assert isinstance(caught.value, UnknownOperators)
    found = {each.kind: len(each.nodes) for each in caught.value.operators}
    assert found == UNKNOWN
    text = str(caught.value)
    assert f"{len(UNKNOWN)} unknown operators:\n" in text
    assert all(kind in text for kind in UNKNOWN)
    assert "Relux (opset 17), node 'b'; did you mean 'Relu'?" in text
    assert "com.microsoft::QuickerGelu (opset 1), 2 nodes 'd', 'e'; optimisers," in text
    assert "operators={('com.microsoft', 'MatMulWorn'): function}" in text


def test_an_unknown_operator_comes_before_what_follows_from_it() -> None:
    """The rank of what a node of an old opset reads decides what becomes of it."""
    head = '<ir_version: 8, opset_import: ["" : 6, "d": 1]>'
    text = "g (float[2] x, float[3] s) => (y) { a = d.Odd (x)  y = PRelu (x, a) }"
    with pytest.raises(UnknownOperators, match="d::Odd"):
        load(parser.parse_model(head + text))


def test_functions_of_the_model_are_near_as_well(model: ModelProto) -> None:
    function = onnx.helper.make_function(
        "my.domain", "Fool", ["x"], ["y"], [onnx.helper.make_node("Neg", ["x"], ["y"])],
        [onnx.helper.make_opsetid("", 17)],
    )  # fmt: skip
    model.functions.append(function)
    with pytest.raises(UnknownOperators, match=r"Foo.*did you mean 'Fool'"):
        load(model)


@pytest.mark.parametrize(
    "asked",
    [{}, {"passes": True}, {"cost": True}, {"memory": True}, {"placement": "numpy"},
     {"capability": "numpy"}],
    ids=str,
)  # fmt: skip
def test_inspect_works_all_the_same(model: ModelProto, tmp_path: Path, asked: dict) -> None:
    file = tmp_path / "strange.onnx"
    onnx.save(model, file)
    found = tercet.inspect(file, **asked)
    assert {each.kind for each in found.strange} == set(UNKNOWN)
    assert {row.operator: row.nodes for row in found.operators}["com.microsoft::QuickerGelu"] == 2
    assert "did you mean 'Relu'?" in str(found)
    assert len(found.to_dict()["unknown_operators"]) == len(UNKNOWN)
    for row in found.capabilities or ():
        assert (row.backend == "nobody") == (row.operator in UNKNOWN), row
    for row in found.placement or ():
        assert (row.backend == "nobody") == (row.operators in UNKNOWN), row


def test_inspect_blames_no_node_for_what_an_unknown_operator_hides() -> None:
    """The rank of a result that nobody knows decides how another operator is written."""
    head = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft": 1, "d": 1]>'
    text = """g (float[2, 3] x) => (y) {
        a = d.Odd (x)
        y = com.microsoft.FusedMatMul <transA: int = 1> (a, x)
    }"""
    with pytest.raises(UnknownOperators, match="d::Odd"):
        tercet.inspect(parser.parse_model(head + text), placement="numpy")


@pytest.mark.parametrize(
    "reader",
    [
        "t = HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> (a) y = Mul (a, t)",
        "t = ReduceMean (a) y = Sub (a, t)",
        "y = Gelu (a)",
    ],
)
def test_passes_meet_what_nobody_knows(reader: str) -> None:
    """A reader of an unknown result is placed: no pass needs the type of its operands."""
    head = '<ir_version: 9, opset_import: ["" : 20, "d": 1]>'
    proto = parser.parse_model(f"{head} g (float[2, 3] x) => (y) {{ a = d.Odd (x) {reader} }}")
    rows = tercet.inspect(proto, placement="numpy").placement
    assert rows
    assert [row.operators for row in rows if row.backend == "nobody"] == ["d::Odd"]


def test_nobody_runs_a_stand_in(model: ModelProto) -> None:
    """Only `inspect` asks for stand-ins; everything else refuses the file."""
    with pytest.raises(UnknownOperators):
        tercet.load(model)
    with pytest.raises(UnknownOperators):
        tercet.compare(model, ["numpy", "onnx.reference"])


@pytest.mark.parametrize("domain", ["", "org.pytorch.aten"])
def test_what_pytorch_left_has_a_remedy(domain: str) -> None:
    node = onnx.helper.make_node("ATen", ["x"], ["y"], domain=domain, operator="erfinv")
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    imports = [onnx.helper.make_opsetid(each, 9) for each in {"", domain}]
    with pytest.raises(UnknownOperators, match="PyTorch left it as it was; export without"):
        load(onnx.helper.make_model(graph, opset_imports=imports))


@pytest.mark.parametrize(
    ("name", "domain", "remedy"),
    [
        ("EfficientNMS_TRT", "", "without NMS, or with ONNX's NonMaxSuppression"),
        ("ROIAlign_TRT", "", "a plugin of TensorRT"),
        ("PPScatterPlugin", "", "a plugin of TensorRT"),
        ("CustomSkipLayerNormPluginDynamic", "", "a plugin of TensorRT"),
        ("TRTBatchedNMS", "mmdeploy", "MMDeploy writes it"),
        ("nms", "torchvision", "an operator of torchvision"),
        ("ListConstruct", "prim", "PyTorch left it as it was"),
        ("DecodeImage", "com.microsoft.extensions", "onnxruntime-extensions runs it"),
        ("aten_add", "onnxscript.atenlib", "a function that the file lacks"),
        ("DCNv2", "trt.plugins", "a plugin of TensorRT"),
        ("LayerNormalizationGrad", "com.microsoft", "part of training"),
        ("SoftmaxGrad_13", "com.microsoft", "part of training"),
        ("AdamWOptimizer", "com.microsoft", "part of training"),
        ("InPlaceAccumulatorV2", "com.microsoft", "part of training"),
        ("Scale", "com.microsoft", "part of training"),  # what onnxruntime-training writes for Div
        ("ConcatTraining", "com.microsoft", "part of training"),
        ("NcclAllReduce", "com.microsoft", "several GPUs; export the whole model"),
    ],
)
def test_operators_of_others_have_a_remedy(name: str, domain: str, remedy: str) -> None:
    node = onnx.helper.make_node(name, ["x"], ["y"], domain=domain)
    x, y = (onnx.helper.make_tensor_value_info(each, 1, [2]) for each in "xy")
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    imports = [onnx.helper.make_opsetid(each, 1) for each in {"", domain}]
    with pytest.raises(UnknownOperators, match=remedy):
        load(onnx.helper.make_model(graph, opset_imports=imports, producer_name="pytorch"))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Dawsn", r" tf2onnx left it .* a newer opset, .* this one \(operators="),
        ("Svd", r"as many steps as its numbers need.* this one \(operators="),
        ("_SwitchN", r"write tf\.switch_case and tf\.case as tf\.cond"),
    ],
)
def test_what_a_converter_left_has_a_remedy(name: str, remedy: str) -> None:
    with pytest.raises(UnknownOperators, match=remedy):
        load(left_by_tf2onnx(name))


def test_what_a_converter_left_can_be_defined() -> None:
    """As the message says: an operator without a domain is one like any other."""

    def halved(x: np.ndarray) -> np.ndarray:
        return x / 2

    with tercet.load(left_by_tf2onnx("Dawsn"), operators={("", "Dawsn"): halved}) as model:
        (found,) = model(np.array([0, 1], np.float32))
    np.testing.assert_array_equal(found, [0, 0.5])


def left_by_tf2onnx(name: str) -> onnx.ModelProto:
    """Return a model of one operator without a domain."""
    node = onnx.helper.make_node(name, ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(each, 1, [2]) for each in "xy")
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    made_by = {"producer_name": "tf2onnx", "producer_version": "1.17.0 None"}
    return onnx.helper.make_model(graph, **made_by)


def test_a_forest_of_several_targets_of_catboost_has_a_remedy() -> None:
    """MultiRMSE and others become a classifier without labels, which no runtime loads."""
    node = onnx.helper.make_node("TreeEnsembleClassifier", ["x"], ["y", "z"], domain="ai.onnx.ml")
    x, y, z = (onnx.helper.make_tensor_value_info(name, 1, [2, 3]) for name in "xyz")
    graph = onnx.helper.make_graph([node], "g", [x], [y, z])
    imports = [onnx.helper.make_opsetid(*each) for each in (("", 9), ("ai.onnx.ml", 1))]
    with pytest.raises(ModelError, match=r"no class labels \(CatBoost .* save a model for each"):
        load(onnx.helper.make_model(graph, opset_imports=imports))
