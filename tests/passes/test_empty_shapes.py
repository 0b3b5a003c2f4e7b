"""Constant shapes that passes write: in those of empty tensors, 0 is a size and copies no axis."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape, Unsqueeze
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, optimise

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def attention(graph: Graph, x: Value) -> Value:
    """Rows of all samples together, of which there are none."""
    q = apply(graph, Transpose(perm=(0, 2, 1, 3)), apply(graph, Reshape(), x, ints(3, -1, 2, 4)))
    scores = apply(graph, MatMul(), q, apply(graph, Transpose(perm=(0, 1, 3, 2)), q))
    y = apply(graph, MatMul(), apply(graph, Softmax(), scores), q)
    y = apply(graph, Transpose(perm=(0, 2, 1, 3)), y)
    return apply(graph, Reshape(), y, ints(-1, 8))


def product(graph: Graph, x: Value) -> Value:
    y = apply(graph, MatMul(), x, normal(0, 3))
    return apply(graph, Unsqueeze(), apply(graph, Reshape(), y, ints(1, 4, 3)), ints(2))


def image(graph: Graph, x: Value) -> Value:
    transposed = apply(graph, Transpose(perm=(0, 2, 1)), x)
    return apply(graph, Relu(), apply(graph, Unsqueeze(), transposed, ints(3)))


def views(graph: Graph, x: Value) -> Value:
    y = apply(graph, Reshape(allowzero=1), x, ints(3, 0, 4))
    y = apply(graph, Transpose(perm=(2, 0, 1)), y)
    y = apply(graph, Reshape(allowzero=1), y, ints(2, 2, 3, 1, 0))
    return apply(graph, Transpose(perm=(3, 0, 1, 2, 4)), y)


@pytest.mark.parametrize(
    ("build", "shape"),
    [(attention, (3, 0, 8)), (product, (4, 0)), (image, (4, 1, 0)), (views, (12, 0))],
)
def test_empty_tensors_keep_their_shapes(build: Build, shape: tuple[int, ...]) -> None:
    graph = make(build, shape)
    after, log = optimised(graph)
    optimise(after, STATIC_PASSES, Options(), evaluate, log)
    assert_same(graph, after)


def test_an_attention_whose_number_of_heads_varies_may_have_none() -> None:
    proto = parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2, h, 6, 4] x) => (float[a, b, c, d] y)
        { t = Transpose <perm = [0, 1, 3, 2]> (x) s = MatMul (x, t) p = Softmax (s)
          y = MatMul (p, x) }"""
    )
    with tercet.load(proto) as model:
        assert "Attention" in kinds(model.graph)
        assert model.run({"x": normal(2, 0, 6, 4)})["y"].shape == (2, 0, 6, 4)
