"""What can be wrong with the nodes, functions and graphs of a parsed file."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import tercet
from tercet.importers.onnx import load
from tercet.runtime.errors import (
    ModelError,
    TercetError,
    UnsupportedError,
)
from tercet.tools.common.onnxruntime_errors import onnxruntime_errors

from .parsed import graph_of, model, run

NODES: dict[str, tuple[str, type[TercetError], str]] = {
    "unknown operator": (
        "y = Relo(x)",
        UnsupportedError,
        r"unknown operator: Relo \(opset 21\), node 'y'; did you mean 'Relu'\?",
    ),
    "unknown domain": (
        "y = me.Foo(x)",
        UnsupportedError,
        r"unknown operator: me::Foo \(opset 1\).*operators={\('me', 'Foo'\): ",
    ),
    "no import": ("y = other.Foo(x)", ModelError, "domain 'other', which the model does not"),
    "unknown attribute": (
        "y = Softmax <axes = 1> (x)",
        ModelError,
        r"node that computes 'y' \(Softmax\): has unknown attribute 'axes'; did you mean 'axis'",
    ),
    "wrong type": ("y = Elu <alpha = 1> (x)", ModelError, "'alpha' must be a float, not an int"),
    "wrong list": ("y = Transpose <perm = 1> (x)", ModelError, "'perm' must be a list, not an int"),
    "wrong item": ("y = Transpose <perm = [0.5]> (x)", ModelError, "must be an integer, not a fl"),
    "missing attribute": ("y = Concat(x)", ModelError, "lacks the attribute 'axis'"),
    "unknown dtype": ("y = Cast <to = 99> (x)", ModelError, "99 is not an element type"),
    "reference": ("y = Elu <alpha: float = @a> (x)", ModelError, "refers to 'a', which no func"),
    "undefined": (
        "y = Relu(xx)",
        ModelError,
        "reads 'xx', which nothing computes; did you mean",
    ),
    "written without weights": (
        "y = MatMul(x, weight)",
        ModelError,
        "which nothing computes; the file has no initializers, .* export it with them",
    ),
    "too few inputs": ("y = Add(x)", ModelError, "has 1 inputs; the operator takes 2$"),
    "too many inputs": ("y = Relu(x, x)", ModelError, "has 2 inputs; the operator takes 1$"),
    "left out": ("y = Add(, x)", ModelError, "leaves out input 0"),
    "too many outputs": ("y, z = Relu(x)", ModelError, "has 2 outputs; the operator gives 1$"),
    "too few outputs": ("y = TopK(x, k)", ModelError, "has 1 outputs; the operator gives 2$"),
    "twice": (
        "y = Relu(x) y = Neg(x)",
        ModelError,
        r"'y', which .*\(Relu\) computes, too",
    ),
    "an input": ("x = Relu(x) y = Neg(x)", ModelError, "computes 'x', which is an input"),
    "cycle": (
        "y = Neg(a) a = Relu(b) b = Relu(a)",
        ModelError,
        "'a' .*: is part of a cycle: node that computes 'b' .* reads 'a', and this node waits",
    ),
    "itself": ("y = Relu(y)", ModelError, "part of a cycle: it reads 'y', which the node itself"),
    "own body": (
        "c = Constant <value = bool {1}> () "
        "y = If (c) <then_branch = t () => (float[2] u) { u = Neg(y) }, "
        "else_branch = e () => (float[2] w) { w = Neg(x) }>",
        ModelError,
        "part of a cycle: its body reads 'y', which the node itself computes",
    ),
    "no output": (
        "z = Relu(x)",
        ModelError,
        "output of graph 'g'.*reads 'y', which nothing computes$",
    ),
    "no output in a body": (
        "c = Constant <value = bool {1}> () "
        "y = If (c) <then_branch = t () => (float[2] u) { v = Neg(x) }, "
        "else_branch = e () => (float[2] w) { w = Neg(x) }>",
        ModelError,
        "reads 'u', which nothing computes$",
    ),
    "shapes": ("y = Add(x, k3)", ModelError, r"\(Add\): .*float32\[2\], k3: float32\[3\]"),
    "two constants": ("y = Constant <value_int = 1, value_float = 1.0> ()", ModelError, "2 attr"),
    "no constant": ("y = Constant <valu = 1> ()", ModelError, "unknown attribute 'valu'; did you"),
    "sequence": ("s = SequenceConstruct(x) y = Relu(s)", ModelError, r"sequence\(float32\[2\]\)"),
}


@pytest.mark.parametrize("kind", NODES)
def test_nodes_that_are_wrong(kind: str) -> None:
    text, error, reason = NODES[kind]
    with pytest.raises(error, match=reason):
        graph_of(f"g (float[2] x, int64[1] k, float[3] k3) => (y) {{ {text} }}")


OPSETS: dict[str, tuple[int, str]] = {
    "y = Unsqueeze <axes = [0]> (x)": (21, r"'axes'; opset 12 is the last .* imports 21"),
    "y = Clip <min = 0.0> (x)": (13, r"'min'; opset 10 is the last .* imports 13"),
    'y = Einsum <equation = "i->i", N = 1> (x)': (11, r"'N'; the operator exists from opset 12"),
    "y = ReduceSum(x, k)": (11, r"2 inputs; in opset 11, .* the operator takes 1 at most"),
    "y = Upsample(x, s)": (13, r"ONNX dropped it in opset 10; import opset 9"),
}


@pytest.mark.parametrize("text", OPSETS)
def test_nodes_of_another_opset_than_the_imported_one(text: str) -> None:
    opset, reason = OPSETS[text]
    proto = model(f"g (float[2] x, int64[1] k, float[1] s) => (y) {{ {text} }}", opset)
    with pytest.raises(TercetError, match=reason):
        load(proto)
    with pytest.raises(onnxruntime_errors()):
        run(proto, x=np.ones(2, np.float32), k=np.zeros(1, np.int64), s=np.ones(1, np.float32))


FUNCTION = """ <domain: "me", opset_import: ["" : 21]> f <a> (p, q) => (r) { r = Add(p, q) }"""
CALLS = {
    "y = me.f(x)": r"\(Add\): has 1 inputs; the operator takes 2$",
    "y = me.f(x, x, x)": "has 3 inputs; function 'me::f' has 2",
    "y, z = me.f(x, x)": "has 2 outputs; function 'me::f' has 1",
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_are_wrong(call: str) -> None:
    with pytest.raises(ModelError, match=CALLS[call]):
        graph_of(f"g (float[2] x) => (y) {{ {call} }}" + FUNCTION)


@pytest.mark.parametrize("reference", [{"f": 0.5}, {"ref_attr_name": "b"}], ids=str)
def test_attributes_that_a_function_does_not_declare(reference: dict[str, Any]) -> None:
    """They count where its nodes refer to them, as in onnxruntime, and there is a warning."""
    called = "g (float[2] x) => (float[2] y) { y = me.f <b = 0.25> (x) }"
    body = ' <domain: "me", opset_import: ["" : 21]> f (p) => (r) { r = LeakyRelu(p) }'
    proto = model(called + body)
    (node,) = proto.functions[0].node
    node.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, **reference)
    x = np.array([-1, 2], np.float32)
    with pytest.warns(tercet.ModelWarning, match="function 'me::f' declares no attribute 'b'"):
        loaded = tercet.load(proto)
    np.testing.assert_array_equal(loaded.run({"x": x})["y"], run(proto, x=x)[0])


def attribute(**fields: Any) -> Callable[[ModelProto], object]:
    return lambda m: m.graph.node[0].attribute.add(name="a", **fields)


WEIGHT = numpy_helper.from_array(np.ones(1), "w")
ALPHA = helper.make_attribute("a", 1)
GRAPHS: dict[str, tuple[Callable[[ModelProto], object], str]] = {
    "outputs": (lambda m: m.graph.node[0].ClearField("output"), "has no outputs"),
    "empty": (lambda m: m.graph.node[0].output.__setitem__(0, ""), "has no outputs"),
    "inputs": (lambda m: m.graph.input.append(m.graph.input[0]), "two inputs named 'x'"),
    "unnamed": (lambda m: m.graph.input.add(), "input without a name"),
    "untyped": (lambda m: m.graph.input.add(name="z"), "input 'z': declares no element type"),
    "initializers": (
        lambda m: m.graph.initializer.extend([WEIGHT, numpy_helper.from_array(np.ones(2), "w")]),
        "two initializers named 'w', of different types",
    ),
    "functions": (lambda m: m.functions.extend([onnx.FunctionProto(name="f")] * 2), "defined tw"),
    "attributes": (lambda m: m.graph.node[0].attribute.extend([ALPHA] * 2), "'a' twice"),
    "lying": (attribute(type=1, i=3), "declared FLOAT but holds i"),
    "ambiguous": (attribute(i=3, f=3), "has unknown type 0"),
    "map without keys": (
        lambda m: m.graph.input[0].type.sequence_type.elem_type.map_type.SetInParent(),
        "no element type",
    ),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_graphs_that_are_wrong(kind: str) -> None:
    change, reason = GRAPHS[kind]
    proto = model("g (float[2] x) => (y) { y = Relu(x) }")
    change(proto)
    with pytest.raises(ModelError, match=reason):
        load(proto)
