"""Sums of every place along axes, as an adaptive pooling is exported."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

import tercet
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul, Relu
from tercet.runtime.ops.gather import Gather

from .graphs import Build, apply, assert_same, kinds, make, optimised


def place(g: Graph, x: Value, axis: int, at: int) -> Value:
    return apply(g, Gather(axis=axis), x, np.array(at))


def added(g: Graph, terms: Sequence[Value]) -> Value:
    total, *rest = terms
    for term in rest:
        total = apply(g, Add(), total, term)
    return total


def one_axis(g: Graph, x: Value) -> Value:
    return added(g, [place(g, x, 1, i) for i in range(4)])


def two_axes(g: Graph, x: Value) -> Value:
    """Windows of several rows and columns."""
    rows = [place(g, x, 1, i) for i in range(4)]
    return added(g, [place(g, row, -1, j) for row in rows for j in range(5)])


def nested(g: Graph, x: Value) -> Value:
    """Sums of sums, in any order, from the end."""
    pairs = [added(g, [place(g, x, 1, i), place(g, x, 1, -1 - i)]) for i in (1, 0)]
    return apply(g, Add(), *pairs)


def beside(g: Graph, x: Value) -> Value:
    y = apply(g, Relu(), place(g, x, 1, 2))
    return added(g, [place(g, x, 1, 0), y, *(place(g, x, 1, i) for i in (1, 2, 3))])


def missing(g: Graph, x: Value) -> Value:
    return added(g, [place(g, x, 1, i) for i in (0, 1, 3)])


def twice(g: Graph, x: Value) -> Value:
    return added(g, [place(g, x, 1, i) for i in (0, 1, 2, 3, 3)])


def read_inside(g: Graph, x: Value) -> Value:
    some = added(g, [place(g, x, 1, i) for i in (0, 1)])
    return apply(g, Mul(), added(g, [some, place(g, x, 1, 2), place(g, x, 1, 3)]), some)


def broadcast(g: Graph, x: Value) -> Value:
    """A row of one size is added to what has more."""
    return added(g, [*(place(g, x, 1, i) for i in range(4)), x])


@pytest.mark.parametrize(
    ("build", "sums"),
    [
        *((each, 1) for each in (one_axis, two_axes, nested, beside, broadcast)),
        *((each, 0) for each in (missing, twice, read_inside)),
    ],
)
def test_sums_of_places(build: Build, sums: int) -> None:
    graph = make(build, (4, 4, 4, 5) if build is broadcast else (3, 4, 2, 5))
    after, _ = optimised(graph)
    assert kinds(after).count("ReduceSum") == sums
    assert_same(graph, after, rel=1e-6)


@pytest.mark.parametrize(("size", "bins"), [((10, 13), (3, 5)), ((7, 7), (2, 3))])
def test_adaptive_pooling(size: tuple[int, int], bins: tuple[int, int]) -> None:
    """Windows of different sizes: what is beyond their ends is hidden before they are added."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((2, 3, *size), np.float32)
    starts = [[i * n // b for i in range(b)] for n, b in zip(size, bins, strict=True)]
    ends = [[-(-(i + 1) * n // b) for i in range(b)] for n, b in zip(size, bins, strict=True)]
    longest = [
        max(e - s for s, e in zip(*each, strict=True)) for each in zip(starts, ends, strict=True)
    ]
    index = [
        np.minimum(np.array(s)[:, None] + np.arange(n), full - 1)
        for s, n, full in zip(starts, longest, size, strict=True)
    ]
    inside = [
        np.array(s)[:, None] + np.arange(n) < np.array(e)[:, None]
        for s, e, n in zip(starts, ends, longest, strict=True)
    ]
    mask = inside[0][:, :, None, None] & inside[1][None, None]
    count = (inside[0].sum(1)[:, None] * inside[1].sum(1)[None]).astype(np.float32)
    arrays = {
        "rows": index[0],
        "columns": index[1],
        "mask": mask,
        "zero": np.float32(0),
        "count": count,
    }
    nodes = [
        helper.make_node("Gather", ["x", "rows"], ["a"], axis=2),
        helper.make_node("Gather", ["a", "columns"], ["b"], axis=4),
        helper.make_node("Where", ["mask", "b", "zero"], ["c"]),
    ]
    total = ""
    for i, j in product(*map(range, longest)):
        arrays |= {f"i{i}": np.array(i), f"j{j}": np.array(j)}
        nodes.append(helper.make_node("Gather", ["c", f"i{i}"], [f"r{i}_{j}"], axis=3))
        nodes.append(helper.make_node("Gather", [f"r{i}_{j}", f"j{j}"], [f"s{i}_{j}"], axis=4))
        if total:
            nodes.append(helper.make_node("Add", [total, f"s{i}_{j}"], [f"t{i}_{j}"]))
        total = f"t{i}_{j}" if total else f"s{i}_{j}"
    nodes.append(helper.make_node("Div", [total, "count"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, *bins])],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    peer = InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(proto) as model:
        (got,) = model.run({"x": x}).values()
        assert kinds(model.graph).count("ReduceSum") == 1
    np.testing.assert_allclose(got, np.asarray(peer.run(None, {"x": x})[0]), rtol=1e-5, atol=1e-6)
    wanted = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(x), bins).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
