"""Nested assignments to parts of a new tensor, as exporters trace them, become Concats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.elementwise import Mul
from tercet.runtime.ops.gather import Gather, ScatterElements, ScatterND
from tercet.runtime.ops.movement import Slice, Transpose
from tercet.runtime.ops.shape import Unsqueeze

from . import graphs
from .graphs import assert_same, kinds, make, optimised, run

#: What is assigned: an index of the new tensor, and one of the input; a factor for it.
Assignments = Sequence[tuple[tuple[slice | int, ...], tuple[slice | int, ...], float]]
ALL = slice(None)


def apply(g: Graph, op: Op, *inputs: Value | Array) -> Value:
    """Return the result of a new node, of a known type."""
    result = graphs.apply(g, op, *inputs)
    infer(g)
    return result


def read(g: Graph, x: Value, index: Sequence[slice | int]) -> Value:
    """x[index], one axis after the other."""
    axis = 0
    for part in index:
        if isinstance(part, int):
            x = apply(g, Gather(axis=axis), x, np.array(part))
            continue
        first, last, step = part.indices(x.tensor.dims[axis])
        if len(range(first, last, step)) < x.tensor.dims[axis]:
            bounds = (np.array([n]) for n in (first, last, axis, step))
            x = apply(g, Slice(), x, *bounds)
        axis += 1
    return x


def written(g: Graph, x: Value, index: Sequence[slice | int], y: Value, axis: int = 0) -> Value:
    """`x[index] = y`: a part of x is cut, changed and written back, axis by axis."""
    while index and index[0] == ALL:
        index, axis = index[1:], axis + 1
    if not index:
        return y
    (part, *rest), dims = index, x.tensor.dims
    inner = read(g, x, (*(ALL,) * axis, part))
    if isinstance(part, int):
        inner = written(g, inner, rest, y, axis)
        places = np.full((*dims[:axis], 1, *dims[axis + 1 :]), part)
        update = apply(g, Unsqueeze(), inner, np.array([axis]))
        return apply(g, ScatterElements(axis=axis), x, places, update)
    inner = written(g, inner, rest, y, axis + 1)
    order = (axis, *(i for i in range(len(dims)) if i != axis))
    back = tuple(order.index(i) for i in range(len(dims)))
    places = np.arange(dims[axis])[part][:, None]
    front = (apply(g, Transpose(perm=order), each) for each in (x, inner))
    data, update = front
    return apply(g, Transpose(perm=back), apply(g, ScatterND(), data, places, update))


def written_at_once(g: Graph, x: Value, index: Sequence[slice | int], y: Value) -> Value:
    """`x[index] = y` as one node that has the place of every element (TorchScript)."""
    sizes = x.tensor.dims
    lines = [np.arange(n)[part] for part, n in zip(index, sizes, strict=False)]
    places = np.stack(np.meshgrid(*lines, indexing="ij"), -1)
    return apply(g, ScatterND(), x, places, y)


def temporal(count: int) -> Assignments:
    """A temporal shift (TSM): some channels are those of the next place, some of the last."""
    behind, front = slice(1, None), slice(None, -1)
    return (
        ((ALL, front, slice(count)), (ALL, behind, slice(count)), 1),
        ((ALL, behind, slice(count, 2 * count)), (ALL, front, slice(count, 2 * count)), 1),
        ((ALL, ALL, slice(2 * count, None)), (ALL, ALL, slice(2 * count, None)), 1),
    )


def wavelet() -> Assignments:
    """The pixels of an image twice as large (MWCNN)."""
    turns = slice(0, None, 2), slice(1, None, 2)
    half = slice(4)
    return [((ALL, i, j), (ALL, half, half), 1 + n) for n, i in enumerate(turns) for j in turns]


def costs() -> Assignments:
    """Columns of two images at several distances (PSMNet)."""
    return [
        ((ALL, side, i, slice(i, None)), (ALL, 0, slice(4 - i)), 2)
        for i in range(3)
        for side in (slice(0, 1), slice(1, 2))
    ]


CASES: dict[str, tuple[Assignments, tuple[int, ...], tuple[int, ...], float]] = {
    "shifted": (temporal(2), (2, 4, 8), (2, 4, 8), 0),
    "shifted, one sample": (temporal(2), (1, 4, 8), (1, 4, 8), 0),
    "wavelet": (wavelet(), (2, 8, 8), (2, 8, 8), 0),
    "between ones": (temporal(3)[:2], (2, 4, 8), (2, 4, 8), 1),
}
Build = Callable[[Graph, Value], Value]
Assign = Callable[[Graph, Value, Sequence[slice | int], Value], Value]


def build(
    case: tuple[Assignments, tuple[int, ...], tuple[int, ...], float], assign: Assign
) -> Build:
    assignments, _, shape, fill = case

    def made(g: Graph, x: Value) -> Value:
        y = g.constant(np.full(shape, fill, np.float32))
        for to, of, factor in assignments:
            part = apply(g, Mul(), read(g, x, of), np.array(factor, np.float32))
            y = assign(g, y, to, part)
        return apply(g, Mul(), y, np.array(3, np.float32))

    return made


def expected(case: tuple[Assignments, tuple[int, ...], tuple[int, ...], float], x: Array) -> Array:
    assignments, _, shape, fill = case
    y = np.full(shape, fill, x.dtype)
    for to, of, factor in assignments:
        y[to] = x[of] * factor
    return y * 3


@pytest.mark.parametrize("assign", [written, written_at_once])
@pytest.mark.parametrize("name", CASES)
def test_parts_are_joined(name: str, assign: Assign) -> None:
    case = CASES[name]
    graph = make(build(case, assign), case[1])
    after, log = optimised(graph)
    assert log.counts["join_assigned"] == 1
    assert "ScatterND" not in kinds(after)
    x = np.random.default_rng(1).standard_normal(case[1]).astype(np.float32)
    np.testing.assert_array_equal(run(after, x, np.float32), expected(case, x))
    assert_same(graph, after)


def test_places_of_an_axis_are_joined() -> None:
    """Images at several distances, which are assigned to one place of an axis each."""
    case = costs(), (2, 1, 4), (2, 2, 3, 4), 0.0

    def made(g: Graph, x: Value) -> Value:
        y = g.constant(np.zeros((2, 2, 3, 4), np.float32))
        for to, of, factor in case[0]:
            part = apply(g, Mul(), read(g, x, of), np.array(factor, np.float32))
            y = written(g, y, to, apply(g, Unsqueeze(), part, np.array([1])))
        return apply(g, Mul(), y, np.array(3, np.float32))

    graph = make(made, case[1])
    after, log = optimised(graph)
    assert log.counts["join_assigned"] == 1
    assert not {"ScatterND", "ScatterElements"} & set(kinds(after))
    assert_same(graph, after)


@pytest.mark.parametrize("assign", [written, written_at_once])
def test_pixels_of_blocks_are_channels(assign: Assign) -> None:
    """An inverse wavelet (MWCNN): four images are the pixels of one, whose channels are joined."""
    turns = slice(0, None, 2), slice(1, None, 2)
    half = slice(3)
    places = [(ALL, ALL, i, j) for i in turns for j in turns]
    assignments = [(to, (ALL, ALL, half, half), n) for n, to in enumerate(places)]
    case = assignments, (2, 5, 6, 6), (2, 5, 6, 6), 0.0
    graph = make(build(case, assign), case[1])
    after, log = optimised(graph)
    assert log.counts["join_assigned"] == 1
    assert "DepthToSpace" in kinds(after)
    x = np.random.default_rng(1).standard_normal(case[1]).astype(np.float32)
    np.testing.assert_array_equal(run(after, x, np.float32), expected(case, x))


@pytest.mark.parametrize("name", ["assigned twice", "another tensor", "read in between"])
def test_what_is_no_new_tensor_stays(name: str) -> None:
    assignments = list(temporal(2))
    if name == "assigned twice":
        assignments[1] = ((ALL, slice(1, None), slice(1, 3)), *assignments[1][1:])

    def made(g: Graph, x: Value) -> Value:
        y = x if name == "another tensor" else g.constant(np.zeros((2, 4, 8), np.float32))
        for to, of, factor in assignments:
            part = apply(g, Mul(), read(g, x, of), np.array(factor, np.float32))
            if name == "read in between":
                part = apply(g, Mul(), part, read(g, y, of))
            y = written(g, y, to, part)
        return apply(g, Mul(), y, np.array(3, np.float32))

    graph = make(made, (2, 4, 8))
    after, log = optimised(graph)
    assert ("join_assigned" in log.counts) == (name == "read in between")
    assert_same(graph, after)
