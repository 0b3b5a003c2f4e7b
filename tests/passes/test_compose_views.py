"""Chains of Reshape, Transpose, Squeeze and Unsqueeze become one Transpose between two Reshapes."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import pytest

from tercet import load
from tercet.runtime.errors import ModelError
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer_node
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Flatten, Reshape, Squeeze, Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised, run

ONLY = {"skip": ("sink_transposes", "remove_identity", "unflatten_softmax")}


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def random_chain(rng: np.random.Generator, sizes: tuple[int, ...]) -> Graph:
    """Return three to seven random steps over a tensor whose axes have these sizes."""
    shape = tuple(int(n) for n in rng.choice(sizes, rng.integers(1, 5)))

    def reshape(graph: Graph, x: Value) -> Value:
        left, wanted = prod(x.tensor.dims), list[int]()
        while left > 1 and len(wanted) < 4:
            size = int(rng.choice([n for n in range(1, left + 1) if left % n == 0]))
            wanted.append(size)
            left //= size
        return apply(graph, Reshape(), x, ints(*wanted, left))

    def build(graph: Graph, x: Value) -> Value:
        for _ in range(rng.integers(3, 8)):
            rank = x.tensor.rank
            assert rank is not None
            ones = [axis for axis, size in enumerate(x.tensor.dims) if size == 1]
            kind = rng.choice(["reshape", "transpose", "transpose", "squeeze", "unsqueeze", "flat"])
            if kind == "transpose":
                perm = tuple(int(axis) for axis in rng.permutation(rank))
                x = apply(graph, Transpose(perm=perm), x)
            elif kind == "squeeze" and ones:
                x = apply(graph, Squeeze(), x, ints(int(rng.choice(ones))))
            elif kind == "unsqueeze" and rank < 5:
                x = apply(graph, Unsqueeze(), x, ints(int(rng.integers(rank + 1))))
            elif kind == "flat":
                x = apply(graph, Flatten(axis=int(rng.integers(rank + 1))), x)
            else:
                x = reshape(graph, x)
            infer_node(graph.nodes[-1])
        return apply(graph, Relu(), x)

    return make(build, shape)


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (1, 2, 3, 4, 6)])
@pytest.mark.parametrize("seed", range(60))
def test_random_chains_order_the_same_elements(seed: int, sizes: tuple[int, ...]) -> None:
    graph = random_chain(np.random.default_rng(seed), sizes)
    after, _ = optimised(graph, **ONLY)
    x = normal(*graph.inputs[0].tensor.dims)
    np.testing.assert_array_equal(run(after, x, np.float32), run(graph, x, np.float32))
    before, found = kinds(graph), kinds(after)
    assert found.count("Transpose") <= before.count("Transpose")
    if 3 not in sizes and "Transpose" in found:  # powers of two can always be cut where needed
        assert found.count("Transpose") == 1
        assert len(found) <= min(4, len(before)), "three steps and the Relu"


def swapped(graph: Graph, x: Value, size: int, length: int) -> Value:
    """Return keys [b, h, t, d] as [b, h, d, t], the way torch.onnx decomposes an attention."""
    flat = apply(graph, Reshape(), x, ints(-1, length, size))
    transposed = apply(graph, Transpose(perm=(0, 2, 1)), flat)
    return apply(graph, Reshape(), transposed, ints(-1, 6, size, length))


@pytest.mark.parametrize("batch", [1, 2, "batch"])
def test_leading_axes_that_are_flattened_around_a_transpose(batch: Dim) -> None:
    graph = make(lambda g, x: apply(g, Relu(), swapped(g, x, 64, 5)), (batch, 6, 5, 64))
    after, log = optimised(graph)
    assert kinds(after) == ["Transpose", "Relu"]
    assert after.nodes[0].op == Transpose(perm=(0, 1, 3, 2))
    assert log.counts["compose_views"] == 1
    x = normal(2, 6, 5, 64)
    np.testing.assert_array_equal(run(after, x, np.float32), run(graph, x, np.float32))


def test_what_other_nodes_read_is_not_computed_twice() -> None:
    def build(graph: Graph, x: Value) -> Value:
        flat = apply(graph, Reshape(), x, ints(12, 5, 64))
        transposed = apply(graph, Transpose(perm=(0, 2, 1)), flat)
        return apply(graph, Reshape(), transposed, ints(2, 6, 64, 5))

    graph = make(build, (2, 6, 5, 64))
    graph.set_outputs({"y": graph.outputs["y"], "transposed": graph.nodes[1].output})
    after, log = optimised(graph)
    assert kinds(after).count("Transpose") == 1
    assert "compose_views" not in log.counts


def test_sizes_that_nobody_knows_are_left_alone() -> None:
    def build(graph: Graph, x: Value) -> Value:
        flat = apply(graph, Reshape(), x, ints(-1, 4, 3))
        transposed = apply(graph, Transpose(perm=(0, 2, 1)), flat)
        return apply(graph, Reshape(), transposed, ints(-1, 6))

    graph = make(build, ("rows", "columns"))
    after, log = optimised(graph)
    assert "compose_views" not in log.counts
    x = normal(6, 4)
    np.testing.assert_array_equal(run(after, x, np.float32), run(graph, x, np.float32))


def test_a_size_that_only_a_run_shows_is_still_the_one_that_was_asked_for() -> None:
    """Nine rows are not sixteen, whatever is done to them afterwards."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[1, n, 8] x) => (float[a, b] y) <int64[4] s = {1, 16, 1, 8}, int64[2] e = {8, -1}>
      { r = Reshape (x, s)  t = Transpose <perm = [3, 0, 1, 2]> (r)  y = Reshape (t, e) }"""
    with load(onnx.parser.parse_model(text)) as model:
        for x in (normal(1, 9, 8), normal(1, 32, 8)):
            with pytest.raises(ModelError, match="cannot take the shape"):
                model.run({"x": x})
        x = normal(1, 16, 8)
        np.testing.assert_array_equal(model.run({"x": x})["y"], x[0].T)


@pytest.mark.parametrize("shape", [(1, 1, 5, 8), (1, 1, 1, 5, 8)])
def test_axes_of_size_1_stay_where_they_are(shape: tuple[int, ...]) -> None:
    """Keys of a single head, transposed as a stack of matrices."""

    def build(g: Graph, x: Value) -> Value:
        flat = apply(g, Reshape(), apply(g, Relu(), x), np.array([-1, 5, 8]))
        return apply(
            g, Reshape(), apply(g, Transpose(perm=(0, 2, 1)), flat), np.array([1, 1, 8, 5])
        )

    graph = make(build, shape)
    after, _ = optimised(graph)
    (transpose,) = (node for node in after.nodes if isinstance(node.op, Transpose))
    assert transpose.op == Transpose(perm=(0, 1, 3, 2))
    assert_same(graph, after, rel=0)
