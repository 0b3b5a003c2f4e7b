"""From the parsed file to a graph: names, functions, bodies and constants."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import tercet
from tercet.importers.onnx import load
from tercet.runtime.errors import (
    InputError,
    ModelError,
    UnsupportedError,
)
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ir.hints import shown
from tercet.runtime.ir.verify import verify

from .export import to_model
from .parsed import graph_of, kinds, model, run

# ── names, inputs and outputs ────────────────────────────────────────────────────────────────


def test_names_stay_as_they_are() -> None:
    graph = graph_of("g (float[2] x) => (float[2] y) { [first] h = Relu(x) [second] y = Neg(h) }")
    assert [node.name for node in graph.nodes] == ["first", "second"]
    assert [node.origin for node in graph.nodes] == [("first",), ("second",)]
    assert list(graph.values) == ["x", "h", "y"]


def test_a_node_without_a_name_goes_by_its_output() -> None:
    graph = graph_of("g (float[2] x) => (float[2] y) { h = Relu(x)  y = Relu(h) }")
    assert [node.name for node in graph.nodes] == ["h", "y"]


def test_what_an_old_node_became_remembers_its_name() -> None:
    graph = graph_of("g (float[2,3] x) => (y) { [soft] y = Softmax <axis = 0> (x) }", 11)
    assert kinds(graph) == ["Shape", "Flatten", "Softmax", "Reshape"]
    assert {node.origin for node in graph.nodes} == {("soft",)}
    assert "soft" in [node.name for node in graph.nodes]


def test_dimensions_are_numbers_names_or_unknown() -> None:
    proto = model("g (float[2, n, m] x, float[] s) => (y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[2].Clear()
    proto.graph.input[0].type.tensor_type.shape.dim.add(dim_value=-1)
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    graph = load(proto).graph
    assert [str(v.type) for v in graph.inputs] == ["float32[2,n,?,?]", "float32[...]"]
    assert str(graph.outputs["y"].type) == "float32[2,n,?,?]"


def test_declared_types_are_hints() -> None:
    text = "g (float[n] x, int64[k] s) => (float[a,b] y) { h = Reshape(x, s)  y = Relu(h) }"
    proto = model(text)
    proto.graph.value_info.append(helper.make_tensor_value_info("h", 1, ["a", 7]))
    graph = load(proto).graph
    assert [str(graph.values[name].type) for name in "hy"] == ["float32[...]", "float32[...]"]
    assert [str(shown(graph.values[name])) for name in "hy"] == ["float32[a,7]", "float32[a,b]"]


def test_initializers_among_the_inputs_are_constants() -> None:
    text = "g (float[2] x, float[2] w) => (y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    graph = graph_of(text, 8, 3)
    assert [v.name for v in graph.inputs] == ["x"]
    assert graph.values["w"].is_constant


def test_feeding_a_constant_says_where_its_value_is_from() -> None:
    proto = model(
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> {y = Add(x, w)}"
    )
    feeds = {name: np.ones(2, np.float32) for name in "xw"}
    with tercet.load(proto) as loaded, pytest.raises(InputError, match="'w' is not an input: an"):
        loaded.run(feeds)


def test_a_file_in_any_bytes() -> None:
    data = model("g (float[2] x) => (float[2] y) {y = Neg(x)}").SerializeToString()
    for held in (bytearray(data), memoryview(data)):
        with tercet.load(held) as loaded:
            assert loaded(np.ones(2, np.float32))[0].tolist() == [-1, -1]


def test_outputs_may_be_inputs_or_constants() -> None:
    graph = graph_of("g (float[2] x) => (x, w, y) <float[2] w = {1, 2}> { y = Relu(x) }")
    assert list(graph.outputs) == ["x", "w", "y"]
    assert graph.outputs["x"] is graph.inputs[0]
    assert graph.outputs["w"].is_constant


def test_optional_inputs_and_outputs() -> None:
    graph = graph_of("g (float[2] x, float[] m) => (y) { y = Clip(x, , m) z = Clip(x, , ) }")
    assert [[v and v.name for v in n.inputs] for n in graph.nodes] == [["x", None, "m"], ["x"]]
    text = "g (float[1,1,4] x, float[1,8,4] w, float[1,8,2] r) => (h) { , h = LSTM(x, w, r) }"
    graph = graph_of(text.replace("LSTM", "LSTM <hidden_size = 2>"))
    assert [str(v.type) for v in graph.nodes[0].outputs] == ["float32[1,1,1,2]", "float32[1,1,2]"]


def test_nodes_are_sorted() -> None:
    proto = model("g (float[2] x) => (y) { a = Relu(x)  b = Neg(a)  y = Add(a, b) }")
    for order in ([2, 1, 0], [1, 2, 0], [2, 0, 1]):
        shuffled = ModelProto.FromString(proto.SerializeToString())
        del shuffled.graph.node[:]
        shuffled.graph.node.extend(proto.graph.node[i] for i in order)
        imported = load(shuffled)
        assert kinds(imported.graph) == ["Relu", "Neg", "Add"]
        assert imported.warnings == ("graph 'g': the nodes were not in order and have been sorted",)
    assert load(proto).warnings == ()


CONSTANTS = {
    "value = float[2] {1, 2}": np.array([1, 2], np.float32),
    "value_float = 1.5": np.array(1.5, np.float32),
    "value_floats = [1.5, 2.0]": np.array([1.5, 2.0], np.float32),
    "value_int = 3": np.array(3, np.int64),
    "value_ints = [3, 4]": np.array([3, 4], np.int64),
    'value_string = "a"': np.array("a", object),
    'value_strings = ["a", "b"]': np.array(["a", "b"], object),
}


@pytest.mark.parametrize("attribute", CONSTANTS)
def test_constants(attribute: str) -> None:
    value = graph_of(f"g () => (y) {{ y = Constant <{attribute}> () }}").outputs["y"]
    expected = CONSTANTS[attribute]
    assert value.data is not None
    assert value.data.dtype == expected.dtype
    assert value.data.shape == expected.shape
    assert value.data.tolist() == expected.tolist()


def test_sparse_constants() -> None:
    sparse = onnx.SparseTensorProto(dims=[3])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([7], np.int32), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1])))
    proto = model("g () => (y) { y = Constant <value_int = 1> () }")
    attribute = proto.graph.node[0].attribute[0]
    attribute.CopyFrom(helper.make_attribute("sparse_value", sparse))
    data = load(proto).graph.outputs["y"].data
    assert data is not None
    assert data.tolist() == [0, 7, 0]


# ── functions ────────────────────────────────────────────────────────────────────────────────

SCALE = """
    <domain: "me", opset_import: ["" : 21], overload: "{overload}">
    scale <factor: float = {default}> (x) => (y)
    {{ f = Constant <value_float: float = @factor> ()  h = Mul(x, f)  y = Identity(h) }}"""


def test_functions_are_inlined() -> None:
    text = """g (float[2] x) => (float[2] y)
        { [one] h = me.scale(x)  [two] y = me.scale <factor = 3.0> (h) }"""
    graph = graph_of(text + SCALE.format(overload="", default=2.0))
    assert kinds(graph) == ["Mul", "Identity", "Mul", "Identity"]
    assert [node.name for node in graph.nodes] == ["one/h", "one/y", "two/h", "two/y"]
    assert {"h", "y", "one/h", "two/f"} <= set(graph.values)
    (y,) = run(to_model(graph), x=np.array([1, 2], np.float32))
    assert y.tolist() == [6, 12]


@pytest.mark.parametrize("call", ["Relu", "com.microsoft.Gelu"])
def test_functions_named_like_operators_take_precedence(call: str) -> None:
    domain, _, name = call.rpartition(".")
    text = f"""g (float[2] x) => (float[2] y) {{ y = {call}(x) }}
        <domain: "{domain}", opset_import: ["" : 21]> {name} (a) => (b) {{ b = Neg(a) }}"""
    assert kinds(graph_of(text)) == ["Neg"]


def test_functions_call_functions_with_attributes_and_opsets_of_their_own() -> None:
    text = """g (float[2, 3] x) => (y) { y = me.outer <k = 0> (x) }
        <domain: "me", opset_import: ["" : 21, "me" : 1]>
        outer <k> (x) => (y) { s = me.inner <axis: int = @k> (x)  y = Neg(s) }
        <domain: "me", opset_import: ["" : 11]>
        inner <axis> (x) => (y) { y = Softmax <axis: int = @axis> (x) }"""
    graph = graph_of(text)
    assert kinds(graph) == ["Shape", "Flatten", "Softmax", "Reshape", "Neg"]
    x = np.random.default_rng(0).random((2, 3), np.float32)
    power = np.exp(x)
    np.testing.assert_allclose(run(to_model(graph), x=x)[0], -power / power.sum(), rtol=1e-5)


def test_overloads_are_different_functions() -> None:
    text = "g (float[2] x) => (y) { h = me.scale:a(x)  y = me.scale:b(h) }"
    text += SCALE.format(overload="a", default=2.0) + SCALE.format(overload="b", default=5.0)
    (y,) = run(to_model(graph_of(text)), x=np.array([1, 2], np.float32))
    assert y.tolist() == [10, 20]
    with pytest.raises(UnsupportedError, match="me::scale:c"):
        graph_of(text.replace("me.scale:b(h)", "me.scale:c(h)"))


def test_functions_without_some_of_their_inputs_and_outputs() -> None:
    text = """g (float[2] x, float s) => (y) {{ {call} }}
        <domain: "me", opset_import: ["" : 21]>
        clip (x, low, high) => (y, unused, same)
        {{ y = Clip(x, low, high)  unused = Neg(x)  same = Identity(x) }}"""
    graph = graph_of(text.format(call="y = me.clip(x)"))
    assert [len(node.inputs) for node in graph.nodes] == [1, 1, 1]
    graph = graph_of(text.format(call="y, , z = me.clip(x, , s)").replace("=> (y)", "=> (z)", 1))
    assert [v and v.name for v in graph.nodes[0].inputs] == ["x", None, "s"]
    assert graph.outputs["z"].name == "z"


def test_a_function_passes_on_what_its_caller_leaves_out() -> None:
    text = """g (float[2] x, float s) => (y) { y = me.outer(x, , s) }
        <domain: "me", opset_import: ["" : 21, "me" : 1]>
        outer (x, low, high) => (y) { y = me.inner(x, low, high) }
        <domain: "me", opset_import: ["" : 21]>
        inner (x, low, high) => (y) { y = Clip(x, low, high) }"""
    graph = graph_of(text)
    assert [v and v.name for v in graph.nodes[0].inputs] == ["x", None, "s"]
    with pytest.raises(ModelError, match="wants 'low', which the function's caller leaves out"):
        graph_of(text.replace("inner (x, low, high) => (y)", "inner (x, low, high) => (low)"))


def test_a_function_that_returns_its_input() -> None:
    text = """g (float[2] x) => (y) { h = me.same(x)  y = Relu(h) }
        <domain: "me", opset_import: ["" : 21]> same (a) => (a) { unused = Neg(a) }"""
    graph = graph_of(text)
    assert graph.nodes[-1].inputs == graph.inputs


def test_names_made_up_for_functions_take_nobody_elses() -> None:
    text = """g (float[2] x) => (y) { [f] h = me.neg(x)  "f/t" = Relu(h)  y = Neg("f/t") }
        <domain: "me", opset_import: ["" : 21]> neg (a) => (b) { t = Neg(a)  b = Neg(t) }"""
    graph = graph_of(text.replace('"f/t"', "ft"))
    assert "f/t" in graph.values
    proto = model(text.replace('"f/t"', "ft"))
    proto.graph.node[1].output[0] = proto.graph.node[2].input[0] = "f/t"
    graph = load(proto).graph
    verify(graph)
    assert {"f/t", "f/t.1"} <= set(graph.values)


# ── bodies ───────────────────────────────────────────────────────────────────────────────────

BRANCHES = """g (bool c, float[2] x) => (y) <float[2] w = {10, 20}> {
    h = Neg(x)
    y = If (c) <
        then_branch = yes () => (float[2] a) { a = Add(h, w) },
        else_branch = no () => (float[2] b) {
            b = If (c) <then_branch = p () => (float[2] q) { q = Add(x, h) },
                        else_branch = s () => (float[2] t) { t = Identity(h) }> }> }"""


def branches(node: Node) -> tuple[Graph, Graph]:
    return node.op.then_branch, node.op.else_branch  # type: ignore[attr-defined]


def test_bodies_are_closed_over_nothing() -> None:
    graph = graph_of(BRANCHES)
    node = graph.nodes[-1]
    yes, no = branches(node)
    verify(yes)
    verify(no)
    assert [v.name for v in yes.captures] == ["h"]
    assert {v.name for v in no.captures} == {"c", "x", "h"}
    assert set(node.captured) == {*yes.captures, *no.captures}
    assert all(inner.name == outer.name for inner, outer in node.captured.items())
    assert {*node.captured.values()} == {*node.captures} < set(graph.values.values())
    assert [v.name for v in yes.constants] == ["w"]
    assert yes.constants[0].data is graph.values["w"].data
    assert str(graph.outputs["y"].type) == "float32[2]"
    x = np.array([1, 2], np.float32)
    for c in (True, False):
        expected = run(model(BRANCHES), c=np.array(c), x=x)
        assert run(to_model(graph), c=np.array(c), x=x)[0].tolist() == expected[0].tolist()


def test_inner_names_hide_outer_ones() -> None:
    text = """g (bool c, float[2] x) => (y) { h = Neg(x)  y = If (c) <
        then_branch = yes () => (float[2] h) { h = Relu(x) },
        else_branch = no () => (float[2] b) { b = Relu(h) }> }"""
    yes, no = branches(graph_of(text).nodes[-1])
    assert [v.name for v in yes.captures] == ["x"]
    assert [v.name for v in no.captures] == ["h"]


def test_loops() -> None:
    proto = model("""g (int64 n, bool go, float[2] x, float[2] step) => (last, all) {
        last, all, again = Loop (n, go, x) <body = b (int64 i, bool cond, float[2] v) =>
            (bool cond, float[2] out, float[2] twice)
            { out = Add(v, step)  twice = Add(out, out) }> }""")
    body = proto.graph.node[0].attribute[0].g
    body.output.add().CopyFrom(body.output[2])  # the same name twice
    (loop,) = load(proto).graph.nodes
    (inner,) = loop.op.graphs()
    assert list(inner.outputs) == ["cond", "out", "twice", "twice.1"]
    assert [v.name for v in inner.captures] == ["step"]
    assert [str(v.type) for v in loop.outputs] == ["float32[2]", "float32[?,2]", "float32[?,2]"]


def test_the_bodies_of_functions_see_the_function() -> None:
    text = """g (bool c, float[2] x) => (y) { y = me.pick <k = 2.0> (c, x) }
        <domain: "me", opset_import: ["" : 21]> pick <k> (flag, v) => (out) { out = If (flag) <
            then_branch = yes () => (a) { f = Constant <value_float: float = @k> () a = Mul(v, f) },
            else_branch = no () => (b) { b = Identity(v) }> }"""
    graph = graph_of(text)
    x = np.array([1, 2], np.float32)
    assert run(to_model(graph), c=np.array(True), x=x)[0].tolist() == [2, 4]
    assert run(to_model(graph), c=np.array(False), x=x)[0].tolist() == [1, 2]


def test_bodies_are_sorted_by_what_they_read_outside() -> None:
    proto = model(BRANCHES)
    nodes = list(proto.graph.node)[::-1]
    proto.graph.ClearField("node")
    proto.graph.node.extend(nodes)
    assert kinds(load(proto).graph) == ["Neg", "If"]


def test_the_last_of_equal_initializers_is_meant() -> None:
    """As in onnxruntime; a quantizer of shared weights writes them more than once."""
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = model("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    for number in (1, 5):
        data = np.full(2, number, np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(data, "w"))
    x = np.arange(2, dtype=np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    with pytest.warns(tercet.ModelWarning, match="several initializers named 'w'"):
        (y,) = tercet.load(proto)(x)
    np.testing.assert_array_equal(y, session.run(None, {"x": x})[0])


def test_an_output_that_is_listed_twice_is_given_twice() -> None:
    """As hummingbird writes the scores of some SVMs, and as onnxruntime runs it."""
    proto = model("g (float[2] x) => (y, z) { y = Relu(x) z = Neg(x) }")
    proto.graph.output.append(proto.graph.output[0])
    proto.graph.output[1].name = "y.1"
    proto.graph.node[1].output[0] = "y.1"
    with pytest.warns(tercet.ModelWarning, match=r"twice; further results are called y\.2"):
        loaded = tercet.load(proto)
    with loaded:
        results = loaded.run({"x": np.array([1, -1], np.float32)})
    assert {name: y.tolist() for name, y in results.items()} == {
        "y": [1, 0],
        "y.1": [-1, 1],
        "y.2": [1, 0],
    }


def test_a_thousand_nodes_of_one_name() -> None:
    proto = model("g (float[2] x) => (y) { y = Relu(x) }")
    for i in range(20000):
        proto.graph.node.add(op_type="Relu", input=["x"], output=[f"v{i}"], name="n")
    graph = load(proto).graph
    assert len({node.name for node in graph.nodes}) == 20001
