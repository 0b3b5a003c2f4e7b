"""What mutants are made of: ONNX's own test cases, small models, and those of a folder."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, parser

from ...conformance.suite import ConformanceCase, all_cases
from .sites import GraphLike, bodies_of, graphs_of

#: Larger files are left out: a mutant of them takes its time and shows nothing else.
MAX_BYTES = 1 << 20

#: What ONNX's cases lack: functions that call functions, bodies that read from outside, branches of
#: several nodes, weights to fold, sizes of run time.
TEXTS = {
    "functions": """
        <ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[n, 4] x, float[4] s) => (float[n, 4] y)
        { a = own.outer <scale = 2.0> (x, s)  b = own.inner (a, s)  y = Add(a, b) }
        <opset_import: ["" : 21, "own" : 1], domain: "own">
        inner (p, q) => (r) { t = Mul(p, q)  r = Relu(t) }
        <opset_import: ["" : 21, "own" : 1], domain: "own">
        outer <scale> (p, q) => (r)
        { c = Constant <value_float: float = @scale> ()  t = own.inner(p, q)  r = Mul(t, c) }""",
    "branches": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (bool c, float[2, 3] x, int64 n) => (float[2, 3] y, float[2, 3] z)
        { h = Exp(x)
          y = If (c) <then_branch = t () => (float[2, 3] u) { v = Add(h, x)  u = Neg(v) },
                      else_branch = e () => (float[2, 3] w) { w = Identity(h) }>
          z = Loop (n, c, x) <body = b (int64 i, bool k, float[2, 3] s) => (bool l, float[2, 3] o)
                              { l = Identity(k)  o = Add(s, h) }> }""",
    "network": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 2, 6, 6] x) => (float[n, 3] y)
        <float[3, 2, 3, 3] w, float[3] a = {1, 2, 3}, float[3] b = {0, 1, 0},
         float[3] m = {0, 0, 1}, float[3] v = {1, 1, 2}, int64[2] shape = {0, -1},
         float[12, 3] d, float[3] e = {1, 2, 3}>
        { c = Conv <pads = [1, 1, 1, 1]> (x, w)  f = BatchNormalization (c, a, b, m, v)
          r = Relu(f)  p = MaxPool <kernel_shape = [3, 3], strides = [3, 3]> (r)
          h = Reshape(p, shape)  k = MatMul(h, d)  l = Add(k, e)  y = Softmax <axis = -1> (l) }""",
    "sizes": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[a, b] x) => (float[c, d] y, int64[e] z)
        { zero = Constant <value_float = 0.0> ()  s = Shape(x)
          t = ConstantOfShape(s)  u = Add(t, x)  v = Greater(u, zero)
          q = NonZero(v)  z = Reshape(q, m)  m = Constant <value_ints = [-1]> ()
          y = Expand(u, s) }""",
    "quantized": """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 4] x) => (float[n, 3] y)
        <float[1] s = {0.1}, uint8[1] z = {128}, int8[4, 3] w, float[3] t = {0.1, 0.2, 0.3},
         int8[3] o = {0, 0, 0}>
        { q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
          e = DequantizeLinear <axis = 1> (w, t, o)  y = MatMul(d, e) }""",
}


@dataclass(frozen=True, slots=True)
class Seed:
    """A model to be damaged, whose nodes and tensors have names that occur nowhere else.

    Attributes:
        name: where it comes from.
        data: the file.
        feeds: inputs that fit it, in the graph's order; empty where they are drawn.
        is_case: whether it is a test case of one operator.
        is_from_folder: whether it is somebody's, and so may need inputs that nobody knows.
    """

    name: str
    data: bytes
    feeds: Sequence[Any] = ()
    is_case: bool = False
    is_from_folder: bool = False


def all_seeds(folders: Sequence[Path] = (), without: Container[str] = ()) -> tuple[Seed, ...]:
    """Return ONNX's cases, the models of `TEXTS` and of folders; small ones, in a fixed order.

    Args:
        folders: of .onnx files.
        without: names of seeds that are left out.
    """
    found = [*_cases(), *model_seeds()]
    files = sorted(file for folder in folders for file in folder.rglob("*.onnx"))
    for file in files:
        if file.stat().st_size <= MAX_BYTES:
            model = onnx.load(file, load_external_data=False)
            name = f"{file.parent.name}/{file.name}"
            found.append(Seed(name, _christened(model), is_from_folder=True))
    return tuple(seed for seed in found if seed.name not in without)


def model_seeds() -> tuple[Seed, ...]:
    """Return the models of `TEXTS`."""
    return tuple(Seed(name, _model(text)) for name, text in TEXTS.items())


def _cases() -> Iterator[Seed]:
    for case in all_cases():
        if case.category in ("node", "model", "simple", "pytorch-operator"):
            yield from _case(case)


def _case(case: ConformanceCase) -> Iterator[Seed]:
    model, data = case.content.read()
    if model.ByteSize() <= MAX_BYTES:
        feeds = data[0][0] if data else ()
        yield Seed(case.id, _christened(model), feeds, case.category == "node")


def _model(text: str) -> bytes:
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for info in model.graph.value_info:  # constants without elements
        tensor = info.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        data = (8 * rng.standard_normal(shape)).astype(dtype)
        model.graph.initializer.append(onnx.numpy_helper.from_array(data, info.name))
    del model.graph.value_info[:]
    return _christened(model)


def _christened(model: ModelProto) -> bytes:
    """Give every node and tensor a name of its own, so that a message that names it means it."""
    model = ModelProto.FromString(model.SerializeToString())
    names: dict[str, str] = {}

    def renamed(name: str) -> str:
        return names.setdefault(name, f"tensor{len(names):03d}x") if name else name

    def rename(graph: GraphLike) -> None:
        for node in graph.node:
            node.input[:] = map(renamed, node.input)
            node.output[:] = map(renamed, node.output)
            node.name = f"node{next(numbers):03d}x"
            if node.op_type == "Gradient":  # its attributes name tensors
                for attribute in node.attribute:
                    if attribute.s:
                        attribute.s = renamed(attribute.s.decode()).encode()
                    attribute.strings[:] = [renamed(s.decode()).encode() for s in attribute.strings]
            for body in bodies_of(node):
                rename(body)
        if isinstance(graph, onnx.FunctionProto):
            graph.input[:] = map(renamed, graph.input)
            graph.output[:] = map(renamed, graph.output)
        else:
            for item in (*graph.input, *graph.output, *graph.initializer):
                item.name = renamed(item.name)
            for sparse in graph.sparse_initializer:
                sparse.values.name = renamed(sparse.values.name)
        for info in graph.value_info:
            info.name = renamed(info.name)

    numbers = iter(range(1 << 30))
    model.graph.name = "graph000x"
    for graph in graphs_of(model, nested=False):
        rename(graph)
    return model.SerializeToString()
