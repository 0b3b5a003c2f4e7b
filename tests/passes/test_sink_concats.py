"""What follows concatenated convolutions is applied to each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Clip, Mul, Relu, Sigmoid, Swish
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Expand, Slice, Split, Transpose
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.passes import STATIC_PASSES
from tercet.runtime.passes.images import sink_concats

from .graphs import Build, apply, assert_same, batchnorm, kinds, make, normal, optimised, passed

#: Passes that would change the same nodes.
OTHERS = ("merge_linear", "merge_branches", "lower_conv", "pad_channels")


def conv(graph: Graph, x: Value, channels: int, size: int = 1) -> Value:
    w = normal(channels, 8, size, size)
    return apply(graph, Conv(pads=(size // 2,) * 4), x, w)


def joined(graph: Graph, x: Value, axis: int = 1) -> Value:
    parts = (
        [conv(graph, x, 4), conv(graph, x, 4, 3)]
        if axis != 1
        else [conv(graph, x, 3), conv(graph, x, 5, 3), conv(graph, x, 4, 5)]
    )
    return apply(graph, Concat(axis=axis), *parts)


def clipped(graph: Graph, x: Value) -> Value:
    bounds = (graph.constant(np.array(n, np.float32)) for n in (0, 6))
    return graph.insert(Clip(), [x, *bounds]).output


def added(graph: Graph, x: Value, *channels: int, first: bool = False) -> Value:
    parts = (conv(graph, x, count, size) for count, size in zip(channels, (1, 3), strict=True))
    pair = apply(graph, Concat(axis=1), *parts), apply(graph, Sigmoid(), conv(graph, x, 24))
    return apply(graph, Add(), *(pair if first else reversed(pair)))


def pooled(graph: Graph, x: Value) -> Value:
    """A block that halves an image (ENet, ERFNet)."""
    pool = MaxPool(kernel_shape=(2, 2), strides=(2, 2))
    wide = apply(graph, Conv(strides=(2, 2)), x, normal(4, 8, 2, 2))
    return apply(graph, Concat(axis=1), wide, apply(graph, pool, x))


SUMMED = [*("Conv", "Add", "Slice") * 2, "Conv", "Concat", "Sigmoid"]
TAKEN: dict[str, tuple[Build, list[str]]] = {
    "norm": (lambda g, x: batchnorm(g, joined(g, x), 12), ["Conv"] * 3 + ["Concat"]),
    "norm, Relu": (
        lambda g, x: apply(g, Relu(), batchnorm(g, joined(g, x), 12)),
        ["Conv", "Relu"] * 3 + ["Concat"],
    ),
    "norm, Swish": (
        lambda g, x: apply(g, Swish(), batchnorm(g, joined(g, x), 12)),
        ["Conv", "Swish"] * 3 + ["Concat"],
    ),
    "norm, Relu, beside a pooling": (
        lambda g, x: apply(g, Relu(), batchnorm(g, pooled(g, x), 12)),
        ["Conv", "Relu", "MaxPool", "Mul", "Add", "Relu", "Concat"],
    ),
    "Clip": (lambda g, x: clipped(g, joined(g, x)), ["Conv", "Clip"] * 3 + ["Concat"]),
    "a sum": (lambda g, x: added(g, x, 16, 8), SUMMED),
    "a sum, first": (lambda g, x: added(g, x, 8, 16, first=True), SUMMED),
    "another axis": (
        lambda g, x: apply(g, Relu(), joined(g, x, 2)),
        ["Conv", "Relu"] * 2 + ["Concat"],
    ),
}


def read_twice(graph: Graph, x: Value) -> Value:
    both = joined(graph, x)
    return apply(graph, Add(), apply(graph, Relu(), both), both)


def with_input(graph: Graph, x: Value) -> Value:
    """Join a layer and its input, as in a DenseNet: the input would be copied."""
    return batchnorm(graph, apply(graph, Concat(axis=1), conv(graph, x, 4), x), 12)


def shared(graph: Graph, x: Value) -> Value:
    part = conv(graph, x, 4)
    both = apply(graph, Concat(axis=1), part, conv(graph, x, 4))
    return apply(
        graph, Add(), apply(graph, Sigmoid(), both), apply(graph, Concat(axis=1), part, part)
    )


LEFT: dict[str, Build] = {
    "read twice": read_twice,
    "an input": with_input,
    "a layer that others read": shared,
    "a sum of parts that are no words": lambda g, x: added(g, x, 10, 14),
    "norm of another axis": lambda g, x: batchnorm(g, joined(g, x, 2), 4),
}


def positions(graph: Graph, x: Value, *shape: int, axis: int = 1, token: str = "") -> Value:
    """Add a constant to what a product computes, behind a class token; `shape` is its own."""
    y = apply(graph, MatMul(), x, normal(6, 6))
    if token == "computed":
        first = apply(graph, Slice(), y, *(np.array([n]) for n in (0, 1, 1)))
    elif token == "repeated":
        first = apply(graph, Expand(), normal(1, 1, 6), np.array([2, 1, 1]))
    else:
        first = graph.constant(normal(2, 1, 6) if axis == 1 else normal(2, 5, 1))
    return apply(graph, Add(), normal(*shape), apply(graph, Concat(axis=axis), first, y))


ADDED: dict[str, tuple[Build, list[str]]] = {
    "to a constant": (lambda g, x: positions(g, x, 1, 6, 6), ["Add", "Concat", "MatMul"]),
    "of fewer axes": (lambda g, x: positions(g, x, 6, 6), ["Add", "Concat", "MatMul"]),
    "of every sample": (lambda g, x: positions(g, x, 2, 6, 6), ["Add", "Concat", "MatMul"]),
    "to columns": (lambda g, x: positions(g, x, 7, axis=2), ["Add", "Concat", "MatMul"]),
    "to a repeated token": (
        lambda g, x: positions(g, x, 1, 6, 6, token="repeated"),
        ["Add", "Concat", "MatMul"],
    ),
}
NOT_ADDED: dict[str, Build] = {
    "no constant part": lambda g, x: positions(g, x, 1, 6, 6, token="computed"),
    "the same for all parts": lambda g, x: positions(g, x, 6),
    "a result of more axes": lambda g, x: positions(g, x, 3, 1, 6, 6),
}


@pytest.mark.parametrize("name", ADDED)
def test_constants_are_added_to_parts(name: str) -> None:
    build, left = ADDED[name]
    graph = make(build, (2, 5, 6))
    after, log = optimised(graph)
    after, _ = optimised(after, STATIC_PASSES)
    assert log.counts["sink_concats"] == 1
    assert sorted(kind for kind in kinds(after) if kind != "Expand") == left
    assert_same(graph, after)


@pytest.mark.parametrize("name", NOT_ADDED)
def test_other_sums_stay(name: str) -> None:
    graph = make(NOT_ADDED[name], (2, 5, 6))
    after, log = optimised(graph)
    assert "sink_concats" not in log.counts
    assert_same(graph, after)


@pytest.mark.parametrize("name", TAKEN)
def test_each_layer_has_its_part(name: str) -> None:
    build, left = TAKEN[name]
    graph = make(build, (2, 8, 5, 6))
    after, log = optimised(graph, skip=OTHERS)
    assert log.counts["sink_concats"]
    assert sorted(kinds(after)) == sorted(left)
    assert_same(graph, after, 2, 8, 5, 6)


@pytest.mark.parametrize("name", LEFT)
def test_others_stay(name: str) -> None:
    graph = make(LEFT[name], (2, 8, 5, 6))
    after, log = optimised(graph, skip=OTHERS)
    assert "sink_concats" not in log.counts
    assert_same(graph, after, 2, 8, 5, 6)


def gated(graph: Graph, x: Value, *, kept: int = 8, rows: bool = False) -> Value:
    """Channels that gate others, of which a convolution computes only some anew (MambaOut)."""
    sizes = np.array([kept + 8, kept, 8])
    image = conv(graph, x, 2 * kept + 16)
    image = apply(graph, Transpose(perm=(0, 2, 3, 1)), image) if rows else image
    axis = 3 if rows else 1
    cut = graph.insert(Split(axis=axis, num_outputs=3), [image, graph.constant(sizes)], 3)
    gate, whole, part = cut.outputs
    part = apply(graph, Transpose(perm=(0, 3, 1, 2)), part) if rows else part
    part = apply(graph, Conv(group=8, pads=(1, 1, 1, 1)), part, normal(8, 1, 3, 3))
    part = apply(graph, Transpose(perm=(0, 2, 3, 1)), part) if rows else part
    pair = apply(graph, Swish(), gate), apply(graph, Concat(axis=axis), whole, part)
    return apply(graph, Mul(), *pair)


@pytest.mark.parametrize("rows", [False, True])
def test_what_would_be_copied_is_combined_by_itself(
    *, rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_concats, "FEW", 1)
    graph = make(lambda g, x: gated(g, x, rows=rows), (2, 8, 5, 6))
    copy, said = passed(graph, sink_concats.run, "float32")
    assert len(said) == 1
    assert kinds(copy).count("Mul") == kinds(copy).count("Swish") == 2
    assert kinds(copy)[-1] == "Concat"
    assert_same(graph, copy, 2, 8, 5, 6)


def test_parts_of_words_and_few_elements_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passed(make(gated, (2, 8, 5, 6)), sink_concats.run, "float32")[1] == []
    monkeypatch.setattr(sink_concats, "FEW", 1)
    assert (
        passed(make(lambda g, x: gated(g, x, kept=6), (2, 8, 5, 6)), sink_concats.run, "float32")[1]
        == []
    )


def both(
    g: Graph, x: Value, *, op: Add | Mul | None = None, first: int = 1, twice: bool = False
) -> Value:
    """Combine two tensors of a row and five others, each joined of two parts (TimeSformer)."""
    pair = list[Value]()
    for end in (1, first):
        rows = [apply(g, MatMul(), x, normal(6, 6)) for _ in range(2)]
        bounds = ((0, end), (end, 6))
        parts = [
            apply(g, Slice(), rows[i], *(np.array([n]) for n in (*ends, 1)))
            for i, ends in enumerate(bounds)
        ]
        pair.append(apply(g, Concat(axis=1), *parts))
    y = apply(g, op or Add(), *pair)
    return apply(g, Add(), y, pair[0]) if twice else y


@pytest.mark.parametrize("op", [Add(), Mul()], ids=["sum", "product"])
def test_two_that_are_joined_alike_are_combined_part_by_part(op: Add | Mul) -> None:
    graph = make(lambda g, x: both(g, x, op=op), (2, 6, 6))
    copy, said = passed(graph, sink_concats.run, "float32")
    assert len(said) == 1
    assert kinds(copy).count(type(op).__name__) == 2
    assert kinds(copy)[-1] == "Concat"
    assert_same(graph, copy, 2, 6, 6)


@pytest.mark.parametrize("options", [{"first": 2}, {"twice": True}], ids=str)
def test_two_that_are_joined_otherwise_stay(options: dict[str, Any]) -> None:
    graph = make(lambda g, x: both(g, x, **options), (2, 6, 6))
    assert passed(graph, sink_concats.run, "float32")[1] == []
