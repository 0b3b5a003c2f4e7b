"""Operations that change no element: they disappear, or only repeat, as late as possible."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, float8e4m3fn, float32, int4, int64, name_of, string
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import (
    Abs,
    Add,
    And,
    Cast,
    Ceil,
    Floor,
    Greater,
    Mul,
    Or,
    Relu,
    Round,
    Sign,
    Where,
)
from tercet.runtime.ops.gather import OneHot
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Expand, Slice, Tile, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.recurrent import LSTM
from tercet.runtime.ops.reduce import (
    ArgMax,
    CumSum,
    Reduce,
    ReduceL1,
    ReduceMax,
    ReduceMean,
    ReduceSum,
)
from tercet.runtime.ops.shape import Reshape, Shape, Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised, run

LENGTH, SIZE = 6, 8
ALL = np.ones((1, 1, LENGTH, 1), bool)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("op", "constant"), [(And(), ALL), (Or(), ~ALL)], ids=["and", "or"])
def test_a_mask_of_keys_stays_one_row(op: And | Or, constant: np.ndarray, swapped: bool) -> None:
    """As torch.export writes it: padding, and a condition on queries that always holds."""

    def build(g: Graph, x: Value) -> Value:
        means = apply(g, ReduceMean(keepdims=1), x, np.array([1, 3]))
        keys = apply(g, Transpose(perm=(0, 1, 3, 2)), means)  # [n, 1, 1, keys]
        seen = apply(g, Greater(), keys, np.zeros((), np.float32))
        pair = (seen, constant)[:: -1 if swapped else 1]
        fill = (np.array(0, np.float32), np.array(-1e38, np.float32))
        mask = apply(g, Where(), apply(g, op, *pair), *fill)
        scores = apply(g, MatMul(), x, apply(g, Transpose(perm=(0, 1, 3, 2)), x))
        hidden = apply(g, Softmax(axis=-1), apply(g, Add(), scores, mask))
        return apply(g, MatMul(), hidden, x)

    before = make(build, (2, 4, LENGTH, SIZE))
    after, _ = optimised(before)
    (node,) = (node for node in after.nodes if isinstance(node.op, Attention))
    assert node.operands[3].tensor.dims == (2, 1, 1, LENGTH)
    assert not {"And", "Or", "Expand"} & set(kinds(after))
    assert_same(before, after, 2, 4, LENGTH, SIZE)


@pytest.mark.parametrize("chosen", [False, True])
def test_a_condition_that_always_holds_selects_nothing(chosen: bool) -> None:
    """A mask that hides nothing, as exporters write it without one: no element changes."""

    def build(g: Graph, x: Value) -> Value:
        fill = np.array(-1e38, np.float32)
        branches = (apply(g, Relu(), x), fill)[:: 1 if chosen else -1]
        return apply(g, Where(), np.full((1, 5, 1), chosen), *branches)

    for shape in ((2, 5, 7), (2, 1, 7)):
        before = make(build, shape)
        after, _ = optimised(before)
        assert kinds(after) == ["Relu", "Expand"][: 1 + (shape[1] == 1)]
        assert_same(before, after, *shape)


@pytest.mark.parametrize("whole", [True, False])
def test_zero_changes_no_integer(whole: bool) -> None:
    """But it changes -0."""

    def build(g: Graph, x: Value) -> Value:
        y, zero = (apply(g, Cast(to=int64), x), np.int64(0)) if whole else (x, np.float32(0))
        return apply(g, Cast(to=float32), apply(g, Add(), np.full((1, 3), zero), y))

    before = make(build, (2, 3))
    after, _ = optimised(before)
    assert ("Add" in kinds(after)) != whole
    assert_same(before, after, 2, 3)


def test_what_is_repeated_is_computed_first() -> None:
    def build(g: Graph, x: Value) -> Value:
        wide = apply(g, Mul(), np.ones((1, 3, 5, 7), np.float32), x)
        return apply(g, Add(), apply(g, Relu(), wide), normal(3, 1, 1))

    before = make(build, (2, 3, 1, 1))
    after, _ = optimised(before)
    assert kinds(after) == ["Relu", "Add", "Expand"]
    assert after.nodes[1].output.tensor.dims == (2, 3, 1, 1)
    assert_same(before, after, 2, 3, 1, 1)


def test_what_reads_other_wide_tensors_broadcasts() -> None:
    def build(g: Graph, x: Value) -> Value:
        wide = apply(g, Expand(), x, np.array([2, 3, 5, 7]))
        return apply(g, Mul(), wide, normal(2, 3, 5, 7))

    before = make(build, (2, 3, 1, 1))
    after, _ = optimised(before)
    assert kinds(after) == ["Mul"]
    assert_same(before, after, 2, 3, 1, 1)


@pytest.mark.parametrize(
    "constant", [np.zeros((1, 3, 5, 7), np.float32), np.full((1, 3, 5, 7), 2, np.float32)]
)
def test_other_constants_stay(constant: np.ndarray) -> None:
    before = make(lambda g, x: apply(g, Mul(), x, constant), (2, 3, 1, 1))
    after, _ = optimised(before)
    assert kinds(after) == ["Mul"]
    assert_same(before, after, 2, 3, 1, 1)


def test_readers_of_other_shapes_keep_what_is_repeated() -> None:
    def build(g: Graph, x: Value) -> Value:
        wide = apply(g, Expand(), x, np.array([2, 3, 5, 7]))
        return apply(g, Concat(axis=1), wide, normal(2, 4, 5, 7))

    before = make(build, (2, 3, 1, 1))
    after, _ = optimised(before)
    assert kinds(after) == ["Expand", "Concat"]
    assert_same(before, after, 2, 3, 1, 1)


KEPT: dict[str, tuple[Op, tuple[int, ...], tuple[int, ...], list[str]]] = {
    "its axis": (Reshape(), (1,), (4, 1, 3), ["ReduceMax"]),
    "both": (Unsqueeze(), (0, -1), (0, 2), ["ReduceMax"]),
    "another": (Unsqueeze(), (1,), (0,), ["ReduceMax", "Unsqueeze"]),
    "one of both": (Unsqueeze(), (0, 1), (0,), ["ReduceMax", "Unsqueeze"]),
    "rows": (Reshape(), (1,), (3, 1, 4), ["ReduceMax", "Reshape"]),
}


@pytest.mark.parametrize("name", KEPT)
def test_axes_that_are_put_back_are_kept(name: str) -> None:
    view, axes, given, expected = KEPT[name]

    def build(g: Graph, x: Value) -> Value:
        largest = apply(g, ReduceMax(keepdims=0), x, np.array(axes))
        return apply(g, view, largest, np.array(given))

    before = make(build, (4, 5, 3))
    after, _ = optimised(before)
    assert kinds(after) == expected
    assert_same(before, after, 4, 5, 3)


@pytest.mark.parametrize("known", [True, False], ids=["numbers", "another tensor"])
def test_axes_are_kept_behind_elementwise_nodes(known: bool) -> None:
    """As PyTorch exports `x / x.var(-1, keepdim=True)`: the view is behind a factor."""

    def build(g: Graph, x: Value) -> Value:
        largest = apply(g, ReduceMax(keepdims=0), x, np.array([-1]))
        factor = np.array([7] if known else [7, 8, 9], np.float32)
        scaled = apply(g, Mul(), apply(g, Mul(), np.array(2, np.float32), largest), factor)
        return apply(g, Mul(), x, apply(g, Unsqueeze(), scaled, np.array([-1])))

    before = make(build, (2, 3, 4))
    after, _ = optimised(before)
    assert set(kinds(after)).isdisjoint({"Unsqueeze", "Reshape"}) == known
    assert_same(before, after, 2, 3, 4)


def test_axes_that_others_do_not_read_stay_dropped() -> None:
    def build(g: Graph, x: Value) -> Value:
        largest = apply(g, ReduceMax(keepdims=0), x, np.array([2]))
        whole = apply(g, Unsqueeze(), largest, np.array([2]))
        return apply(g, Mul(), apply(g, Relu(), whole), apply(g, Relu(), largest))

    before = make(build, (4, 4, 4))
    after, _ = optimised(before)
    assert "Unsqueeze" in kinds(after)
    assert_same(before, after, 4, 4, 4)


@pytest.mark.parametrize(
    ("counts", "left"), [((2, 3, 1), ["Mul"]), ((1, 3, 1), ["Mul"]), ((2, 1, 2), ["Tile", "Mul"])]
)
def test_a_tile_of_single_elements_is_broadcast(counts: tuple[int, ...], left: list[str]) -> None:
    """``torch.arange(n).view(1, 1, n).repeat(b, s, 1)``, which nothing but a Where reads."""

    def build(g: Graph, x: Value) -> Value:
        small = apply(g, ReduceMean(keepdims=1), x, np.array([0, 1]))
        wide = apply(g, Tile(), small, np.array(counts))
        return apply(g, Mul(), apply(g, Concat(axis=2), *[x] * counts[2]), wide)

    before = make(build, (2, 3, 5))
    after, _ = optimised(before)
    assert [kind for kind in kinds(after) if kind in ("Tile", "Expand", "Mul")] == left
    assert_same(before, after, 2, 3, 5)


@pytest.mark.parametrize("readers", [1, 2])
def test_a_one_hot_writes_the_type_to_which_it_is_cast(readers: int) -> None:
    """PyTorch's one_hot gives integers, and networks multiply by floats."""

    def build(g: Graph, x: Value) -> Value:
        indices = apply(g, ArgMax(axis=-1, keepdims=0), x)
        chosen = apply(g, OneHot(), indices, np.array(SIZE), np.array([0, 1]))
        casts = [apply(g, Cast(to=float32), chosen) for _ in range(readers)]
        return apply(g, Mul(), x, apply(g, Add(), casts[0], casts[-1]))

    before = make(build, (LENGTH, SIZE))
    after, _ = optimised(before)
    assert "Cast" not in kinds(after)
    x = normal(LENGTH, SIZE)
    assert np.array_equal(run(before, x, np.float32), run(after, x, np.float32))


def test_a_one_hot_of_integers_that_are_read_stays() -> None:
    def build(g: Graph, x: Value) -> Value:
        indices = apply(g, ArgMax(axis=-1, keepdims=0), x)
        chosen = apply(g, OneHot(), indices, np.array(SIZE), np.array([0, 1]))
        counts = apply(g, CumSum(), chosen, np.array(0))
        floats = [apply(g, Cast(to=float32), each) for each in (chosen, counts)]
        return apply(g, Mul(), *floats)

    before = make(build, (LENGTH, SIZE))
    after, _ = optimised(before)
    assert kinds(after).count("Cast") == 2


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", [ReduceSum, ReduceMean, ReduceMax])
def test_a_reduction_of_single_elements_is_a_view(op: type[Reduce], keepdims: int) -> None:
    def build(g: Graph, x: Value) -> Value:
        return apply(g, Relu(), apply(g, op(keepdims=keepdims), x, np.array([-2])))

    before = make(build, ("batch", 1, 7))
    after, _ = optimised(before)
    assert set(kinds(after)) <= {"Relu", "Squeeze"}
    assert_same(before, after, 3, 1, 7)


def test_others_of_single_elements_compute() -> None:
    before = make(lambda g, x: apply(g, ReduceL1(), x, np.array([1])), (3, 1, 7))
    assert kinds(optimised(before)[0]) == ["ReduceL1"]


@pytest.mark.parametrize(("start", "read"), [(0, 3), (1, 5)])
def test_a_recurrent_layer_begins_with_zeros_of_its_own(start: int, read: int) -> None:
    """As PyTorch exports a layer of any batch: parts of what two layers begin with."""

    def build(g: Graph, x: Value) -> Value:
        steps = apply(g, Reshape(), x, np.array([LENGTH, -1, 4]))
        batch = apply(g, Slice(), apply(g, Shape(), steps), np.array([1]), np.array([2]))
        shape = apply(g, Concat(axis=0), np.array([2]), batch, np.array([3]))
        states = apply(g, Expand(), np.full((1, 1, 1), start, np.float32), shape)
        state = apply(g, Slice(), states, np.array([1]), np.array([2]), np.array([0]))
        w, r = normal(1, 12, 4), normal(1, 12, 3)
        return apply(g, LSTM(hidden_size=3), steps, w, r, None, None, state, state, outputs=3)

    graph = make(build, ("batch", LENGTH * 4))
    after, _ = optimised(graph)
    (layer,) = (node for node in after.nodes if node.kind == "LSTM")
    assert len([v for v in layer.inputs if v is not None]) == read
    assert_same(graph, after, 2, LENGTH * 4)


def test_axes_from_the_front_or_the_end() -> None:
    def build(g: Graph, x: Value) -> Value:
        parts = [apply(g, Unsqueeze(), x, np.array([axis])) for axis in (1, -2)]
        return apply(g, Add(), *(apply(g, Relu(), part) for part in parts))

    after, log = optimised(make(build, (3, 7)))
    assert log.counts["merge_duplicates"] == 2
    assert kinds(after).count("Relu") == 1


@pytest.mark.parametrize("dtype", [string, float8e4m3fn, int4], ids=name_of)
def test_a_one_hot_of_what_it_cannot_write_stays(dtype: DType) -> None:
    """Texts are no numbers, and few bits are none of a OneHot's types."""

    def build(g: Graph, x: Value) -> Value:
        indices = apply(g, ArgMax(axis=1, keepdims=0), x)
        chosen = apply(g, OneHot(), indices, np.array(SIZE), np.array([0, 1]))
        return apply(g, Cast(to=dtype), chosen)

    after, _ = optimised(make(build, (2, SIZE)))
    assert kinds(after) == ["ArgMax", "OneHot", "Cast"]


@pytest.mark.parametrize("op", [Abs(), Ceil(), Floor(), Relu(), Round(), Sign()], ids=str)
def test_what_is_done_again_is_done_once(op: Op) -> None:
    """Xception's stem ends with a Relu, and its first block begins with one."""

    def build(g: Graph, x: Value) -> Value:
        once = apply(g, op, x)
        return apply(g, Concat(axis=0), apply(g, op, once), once)

    before = make(build, (3, 5))
    after, _ = optimised(before)
    assert kinds(after).count(type(op).__name__) == 1
    assert_same(before, after, 3, 5)
