"""Parts of a tensor that a Concat joins along another axis: one Transpose between Reshapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.elementwise import Neg, Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Concat, Slice, Split
from tercet.runtime.ops.shape import Squeeze, Unsqueeze

from .graphs import apply, assert_same, kinds, make, optimised


def parts(graph: Graph, x: Value, axis: int, *sizes: int) -> tuple[Value, ...]:
    lengths = graph.constant(np.array(sizes, np.int64))
    return graph.insert(Split(axis=axis, num_outputs=len(sizes)), [x, lengths], len(sizes)).outputs


@pytest.mark.parametrize(
    ("shape", "cut", "joined"),
    [
        ((8, 3, 5), 0, 1),
        ((8, 3, 5), 0, -1),
        ((3, 8, 5), 1, 0),
        ((3, 5, 8), 2, 1),
        ((2, 8, 3, 4), 1, 3),
    ],
)
def test_all_parts_in_order(shape: tuple[int, ...], cut: int, joined: int) -> None:
    def build(graph: Graph, x: Value) -> Value:
        cuts = parts(graph, x, cut, 2, 2, 2, 2)
        y = graph.insert(Concat(axis=joined), cuts).output
        return graph.insert(Relu(), [y]).output

    graph = make(build, shape)
    after, _ = optimised(graph)
    assert not {"Split", "Concat"} & {*kinds(after)}
    assert_same(graph, after)


def slices(graph: Graph, x: Value, axis: int, size: int, count: int) -> list[Value]:
    bounds = [(np.array([size * i]), np.array([size * (i + 1)])) for i in range(count)]
    return [apply(graph, Slice(), x, *bound, np.array([axis])) for bound in bounds]


def split_and_stacked(graph: Graph, x: Value) -> Value:
    """``stack(x.split(4, 2))``, by which AutoInt has its heads in front."""
    heads = [apply(graph, Unsqueeze(), part, np.array([0])) for part in parts(graph, x, 2, 4, 4)]
    return graph.insert(Concat(axis=0), heads).output


def unbound_and_joined(graph: Graph, x: Value) -> Value:
    """``cat(x.unbind(0), -1)``, in slices as torch.onnx writes it."""
    heads = [apply(graph, Squeeze(), part, np.array([0])) for part in slices(graph, x, 0, 1, 4)]
    return graph.insert(Concat(axis=-1), heads).output


def gathered_and_joined(graph: Graph, x: Value) -> Value:
    """Rows of all places, one after the other, with the Gathers of TorchScript."""
    places = (np.array(i - 4) for i in range(4))
    return graph.insert(Concat(axis=1), [apply(graph, Gather(), x, i) for i in places]).output


def sliced_and_joined(graph: Graph, x: Value) -> Value:
    return graph.insert(Concat(axis=2), slices(graph, x, 0, 2, 2)).output


@pytest.mark.parametrize(
    "build", [split_and_stacked, unbound_and_joined, gathered_and_joined, sliced_and_joined]
)
@pytest.mark.parametrize("shape", [(4, 6, 8), (4, "time", 8)])
def test_views_of_parts(build: Callable[[Graph, Value], Value], shape: tuple[Dim, ...]) -> None:
    graph = make(lambda g, x: apply(g, Relu(), build(g, x)), shape)
    after, _ = optimised(graph)
    assert not {"Split", "Slice", "Gather", "Concat"} & {*kinds(after)}
    assert_same(graph, after, 4, 6, 8)


@pytest.mark.parametrize("shape", [("batch", 6, 4), (2, 6, "time")])
def test_one_unknown_size(shape: tuple[Dim, ...]) -> None:
    def build(graph: Graph, x: Value) -> Value:
        last = len(shape) - 1 if shape[0] == "batch" else 0
        y = graph.insert(Concat(axis=last), parts(graph, x, 1, 2, 2, 2)).output
        return graph.insert(Relu(), [y]).output

    graph = make(build, shape)
    after, _ = optimised(graph)
    assert not {"Split", "Concat"} & {*kinds(after)}
    assert_same(graph, after, 2, 6, 4)


def test_kronecker_products_of_bilinear_attention() -> None:
    """Both axes of windows are merged with those of the image, one after the other."""

    def build(graph: Graph, x: Value) -> Value:
        for cut, joined, count in ((1, 3, 3), (2, 4, 2)):
            x = graph.insert(Concat(axis=joined), parts(graph, x, cut, *(1,) * count)).output
        return graph.insert(Relu(), [x]).output

    graph = make(build, (5, 3, 2, 4, 4))
    after, _ = optimised(graph)
    assert kinds(after).count("Transpose") == 1
    assert_same(graph, after)


@pytest.mark.parametrize("what", ["order", "another", "axis", "few"])
def test_what_stays(what: str) -> None:
    def build(graph: Graph, x: Value) -> Value:
        cuts = parts(graph, x, 1, 2, 2)
        if what == "order":
            cuts = cuts[::-1]
        if what == "few":
            cuts = tuple(slices(graph, x, 1, 1, 3))
        if what == "another":
            cuts = (*cuts, graph.insert(Neg(), cuts[:1]).output)
        axis = 1 if what == "axis" else 2
        return graph.insert(Concat(axis=axis), cuts).output

    graph = make(build, (3, 4, 5))
    after, log = optimised(graph, skip=("compose_moves", "cut_splits"))
    assert "compose_views" not in log.counts
    assert_same(graph, after)
