"""Elements that follow from shapes, through the chains that exporters write around them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tercet.runtime.errors import ModelError
from tercet.runtime.ir.dtypes import DType, bool_, float32, float64, int32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer, specialise
from tercet.runtime.ir.op import Op, TensorAttribute
from tercet.runtime.ir.types import Dim, TensorType, constant_type
from tercet.runtime.ops.elementwise import Add, Cast, Div, Equal, Floor, IsNaN, Mul, Pow, Sub, Where
from tercet.runtime.ops.gather import Gather, GatherElements, GatherND, ScatterElements, ScatterND
from tercet.runtime.ops.movement import Concat, Expand, Slice, Split, Tile, Transpose
from tercet.runtime.ops.reduce import ReduceProd
from tercet.runtime.ops.shape import (
    ConstantOfShape,
    Flatten,
    Range,
    Reshape,
    Shape,
    Squeeze,
    Unsqueeze,
)


class Chain:
    """A graph that is written as calls; its one input `x` is float32 of symbolic shape."""

    def __init__(self, *shape: Dim) -> None:
        self.graph = Graph()
        self.x = self.graph.add_input("x", TensorType(float32, shape))

    def __call__(self, op: Op, *inputs: Value | Any) -> Value:
        return self.all(op, *inputs)[0]

    def all(self, op: Op, *inputs: Value | Any, outputs: int = 1) -> tuple[Value, ...]:
        values = [v if isinstance(v, Value) else self.constant(v) for v in inputs]
        return self.graph.insert(op, values, outputs).outputs

    def constant(self, data: Any, dtype: DType | None = None) -> Value:
        array = np.array(data, dtype)
        return self.graph.constant(array.astype(int64) if array.dtype.kind == "i" else array)

    def size(self, axis: int) -> Value:
        """The size of an axis of x, as exporters ask for it."""
        return self(Gather(), self(Shape(), self.x), axis)

    def vector(self, *sizes: Value | int) -> Value:
        parts = [self(Unsqueeze(), s, [0]) if isinstance(s, Value) else [s] for s in sizes]
        return self(Concat(axis=0), *parts)

    def type(self, value: Value) -> TensorType:
        infer(self.graph)
        return value.tensor


def flatten_by_view(c: Chain) -> Value:
    return c(Reshape(), c.x, c.vector(c.size(0), -1))


def split_heads(c: Chain) -> Value:
    heads = c(Reshape(), c.x, c.vector(c.size(0), c.size(1), 4, c(Div(), c.size(2), 4)))
    return c(Transpose(perm=(0, 2, 1, 3)), heads)


def resize_sizes(c: Chain) -> Value:
    """Sizes for Resize: floor(height · 2.0), as upsampling by a factor is written."""
    height = c(Floor(), c(Mul(), c(Cast(to=float32), c.size(2)), np.float32(2.0)))
    return c(ConstantOfShape(), c.vector(c.size(0), c(Cast(to=int64), height)))


def expand_by_minus_one(c: Chain) -> Value:
    """`tensor.expand(-1, 5, -1)`: ones take the place of -1."""
    wanted = c.constant([-1, 5, -1])
    ones = c(ConstantOfShape(value=TensorAttribute(np.array([1]))), [3])
    return c(Expand(), c.x, c(Where(), c(Equal(), wanted, -1), ones, wanted))


def expand_to_shape(c: Chain) -> Value:
    """The same for a shape of which elements are symbols, none of which can be -1."""
    shape = c(Shape(), c.x)
    ones = c(ConstantOfShape(value=TensorAttribute(np.array([1]))), [2])
    wanted = c(Where(), c(Equal(), shape, -1), ones, shape)
    return c(Expand(), np.float32(0), wanted)


def last_two_sizes(c: Chain) -> Value:
    return c(ConstantOfShape(), c(Slice(), c(Shape(), c.x), [2], [2**63 - 1], [0]))


def positions(c: Chain) -> Value:
    return c(Range(), 0, c.size(1), 1)


def causal_mask(c: Chain) -> Value:
    past = c(Sub(), c.size(1), c.size(1))
    return c(Expand(), c.constant(True), c.vector(1, c(Add(), c.size(1), past)))


def halves(c: Chain) -> Value:
    """Both halves of a channel axis, put together again in the other order."""
    first, second = c.all(Split(axis=0, num_outputs=2), c(Shape(), c.x), outputs=2)
    return c(ConstantOfShape(), c(Concat(axis=0), second, first))


def patched(c: Chain) -> Value:
    return c(ConstantOfShape(), c(ScatterND(), c(Shape(), c.x), [[1]], [7]))


def reversed_by_elements(c: Chain) -> Value:
    return c(ConstantOfShape(), c(GatherElements(), c(Shape(), c.x), [-1, 1, 0]))


def corners(c: Chain) -> Value:
    """First and last size, as coordinates in a table of two rows choose them."""
    table = c(Reshape(), c(Shape(), c.x), [2, 2])
    return c(ConstantOfShape(), c(GatherND(), table, [[0, 0], [1, -1]]))


def one_of_each_row(c: Chain) -> Value:
    table = c(Reshape(), c(Shape(), c.x), [2, 2])
    return c(ConstantOfShape(), c(GatherND(batch_dims=1), table, [[1], [0]]))


def patched_elements(c: Chain) -> Value:
    return c(ConstantOfShape(), c(ScatterElements(), c(Shape(), c.x), [-1, 0], [7, 6]))


def flat_size(c: Chain) -> Value:
    return c(ConstantOfShape(), c(Unsqueeze(), c(ReduceProd(keepdims=0), c(Shape(), c.x)), [0]))


def through_int32(c: Chain) -> Value:
    narrow = c(Cast(to=int32), c(Shape(), c.x))
    return c(ConstantOfShape(), c(Cast(to=int64), c(Squeeze(), c(Unsqueeze(), narrow, [0]), [0])))


def square_grid(c: Chain) -> Value:
    """`size = int(tokens**0.5)`, as DPT puts patches in a square."""
    root = c(Pow(), c(Cast(to=float32), c.size(1)), np.float32(0.5))
    side = c(Cast(to=int64), root)
    return c(Reshape(), c.x, c.vector(c.size(0), side, side, c.size(2)))


def levels(c: Chain) -> Value:
    """As many elements as a pyramid of `2**level` has at its top."""
    return c(ConstantOfShape(), c.vector(c(Pow(), 2, c.size(1)), c(Pow(), c.size(1), 2)))


def tiled(c: Chain) -> Value:
    return c(Tile(), c.x, c.vector(1, c.size(1)))


def all_but_two(c: Chain) -> Value:
    """A length computed in floats, tested for NaN before it becomes an integer (ndonnx)."""
    length = c(Sub(), c(Cast(to=float64), c.size(1)), np.float64(2))
    there = c(Where(), c(IsNaN(), length), np.float64(0), length)
    return c(Slice(), c.x, [0], c.vector(c(Cast(to=int64), there)), [1], [1])


CASES: tuple[tuple[Callable[[Chain], Value], tuple[Dim, ...], tuple[Dim, ...]], ...] = (
    (flatten_by_view, ("n", 8, 3, 3), ("n", 72)),
    (flatten_by_view, ("n", "c", 3, 3), ("n", None)),
    (split_heads, ("n", "t", 32), ("n", 4, "t", 8)),
    (resize_sizes, ("n", 3, 15, 15), ("n", 30)),
    (resize_sizes, ("n", 3, "h", 15), ("n", None)),
    (expand_by_minus_one, ("n", 1, 7), ("n", 5, 7)),
    (expand_to_shape, ("n", 6), ("n", 6)),
    (last_two_sizes, ("n", 3, "h", 9), ("h", 9)),
    (positions, ("n", 11), (11,)),
    (positions, ("n", "t"), ("t",)),
    (causal_mask, ("n", "t"), (1, "t")),
    (halves, ("n", 2, 3, "w"), (3, "w", "n", 2)),
    (patched, ("n", "c", 5), ("n", 7, 5)),
    (reversed_by_elements, ("n", "c", 5), (5, "c", "n")),
    (corners, ("n", "c", 5, 6), ("n", 6)),
    (one_of_each_row, ("n", "c", 5, 6), ("c", 5)),
    (patched_elements, ("n", "c", 5), (6, "c", 7)),
    (flat_size, (2, 3, 4), (24,)),
    (through_int32, ("n", 3), ("n", 3)),
    (square_grid, ("n", 576, 8), ("n", 24, 24, 8)),
    (levels, ("n", 5), (32, 25)),
    (tiled, ("n", 3), ("n", 9)),
    (tiled, ("n", 1), ("n", 1)),
    (all_but_two, ("n", 5), ("n", 3)),
)


@pytest.mark.parametrize(("chain", "given", "expected"), CASES)
def test_shapes_through_chains(
    chain: Callable[[Chain], Value], given: tuple[Dim, ...], expected: tuple[Dim, ...]
) -> None:
    c = Chain(*given)
    assert c.type(chain(c)).shape == expected


@pytest.mark.parametrize("chain", dict.fromkeys(case[0] for case in CASES))
def test_nothing_unknown_is_left_when_sizes_are_given(chain: Callable[[Chain], Value]) -> None:
    given = next(shape for c, shape, _ in CASES if c is chain)
    c = Chain(*given)
    c.graph.set_outputs({"y": chain(c)})
    sizes = tuple(d if isinstance(d, int) else 12 for d in given)
    bound = specialise(c.graph, {"x": TensorType(float32, sizes)})
    assert bound.outputs["y"].tensor.is_static
    assert not {type(node.op) for node in bound.nodes} & {Shape, Gather, Concat, Where, Cast, Div}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (-7, 2, -3),  # integers are divided toward zero, not down
        (7, -2, -3),
        (-8, 2, -4),
        (-(2**62), 3, -(2**62 // 3)),
    ],
)
def test_integer_division_truncates(a: int, b: int, expected: int) -> None:
    c = Chain()
    assert c.type(c(Div(), a, b)).ints == (expected,)


@pytest.mark.parametrize(
    ("x", "y"), [(2, -1), (2, np.float32(0.5)), (np.float16(3), np.float16(0.5))]
)
def test_powers_that_backends_round_are_left_to_them(x: Any, y: Any) -> None:
    c = Chain()
    assert c.type(c(Pow(), x, y)).value is None


def test_division_by_zero_is_left_to_the_backend() -> None:
    c = Chain()
    assert c.type(c(Div(), 1, 0)).value is None


def test_floats_are_computed_in_their_own_precision() -> None:
    """In float32, 0.1 · 30 is 3 and not a little more, or the floor would differ."""
    c = Chain(30)
    scaled = c(Mul(), c(Cast(to=float32), c.size(0)), np.float32(0.1))
    known = c.type(scaled).known
    assert known is not None
    assert known == np.float32(30) * np.float32(0.1)


def test_casts_out_of_range_are_left_to_the_backend() -> None:
    c = Chain()
    assert c.type(c(Cast(to=int64), np.float32("nan"))).value is None
    assert c.type(c(Cast(to=int32), np.float32(3e9))).value is None
    assert c.type(c(Cast(to=bool_), np.float32("nan"))).ints == (1,)


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        (np.array([3, -1], np.int8), (3, -1)),
        (np.array([2.0, 5.0], np.float32), (2, 5)),
        (np.array([2.0, 5.5], np.float32), None),
        (np.array([np.nan], np.float16), None),
        (np.array([-np.inf]), None),
        (np.array([1j], np.complex64), None),
        (np.array([True]), (1,)),
    ],
)
def test_fractions_are_no_integers(elements: np.ndarray, expected: tuple[int, ...] | None) -> None:
    assert constant_type(elements).ints == expected


def test_large_tensors_are_not_looked_at() -> None:
    c = Chain("n", 3)
    assert c.type(c(ConstantOfShape(), [2**31, 2**31])).value is None
    assert c.type(c(Range(), 0, 2**62, 1)).value is None


def test_batches_of_nothing_keep_their_other_sizes() -> None:
    c = Chain(0, 8, 2)
    assert c.type(c(Reshape(), c.x, [0, -1])).shape == (0, 16)
    assert c.type(c(Flatten(), c.x)).shape == (0, 16)


@pytest.mark.parametrize(
    ("given", "wanted", "said"),
    [
        ((2, 3), [4, 2], "3 elements against 4 where they differ"),
        ((2, 3), [4, -1], "no size fits"),
        ((2, 3), [-1, -1], "more than once"),
        ((2, 3), [1, 2, 0], "copies an axis that the data lacks"),
        ((2, 3), [-2, 3], "impossible size -2"),
        (("n", 3), ["n", 4], "where they differ"),
    ],
)
def test_reshape_says_what_is_wrong(given: Any, wanted: Any, said: str) -> None:
    c = Chain(*given)
    sizes = [c.size(0) if isinstance(w, str) else w for w in wanted]
    c(Reshape(), c.x, c.vector(*sizes))
    with pytest.raises(ModelError, match=said):
        infer(c.graph)


def test_a_table_is_cut_to_a_symbol() -> None:
    """Position embeddings, of which a sequence reads its own number or all there are."""
    chain = Chain(2, "seq", 8)
    size = chain(Unsqueeze(), chain.size(1), [0])
    table = chain.constant(np.zeros((1, 512, 8), np.float32))
    cut = chain(Slice(), table, [0], size, [1])
    total = chain(Add(), chain.x, cut)
    assert str(chain.type(cut)) == "float32[1,min(seq, 512),8]"
    assert chain.type(total).shape == (2, "seq", 8)
    chain.graph.set_outputs({"y": total, "cut": cut})
    for count in (1, 40, 512):
        known = specialise(chain.graph, {"x": TensorType(float32, (2, count, 8))})
        assert known.outputs["y"].tensor.shape == (2, count, 8)
    with pytest.raises(ModelError, match=r"\[2,513,8\] and \[1,512,8\] do not broadcast"):
        specialise(chain.graph, {"x": TensorType(float32, (2, 513, 8))})


def test_a_table_of_one_row_broadcasts_with_any_size() -> None:
    chain = Chain("seq", 8)
    size = chain(Unsqueeze(), chain.size(0), [0])
    one = chain(Slice(), chain.constant(np.zeros((1, 8), np.float32)), [0], size, [0])
    two = chain(Slice(), chain.constant(np.zeros((2, 8), np.float32)), [0], size, [0])
    assert chain.type(chain(Add(), chain.x, one)).shape == (None, 8)
    assert chain.type(chain(Add(), one, two)).shape == (None, 8)


def test_heads_of_a_symbolic_sequence() -> None:
    chain = Chain(1, "seq", 768)
    heads = chain(Reshape(), chain.x, [1, -1, 12, 64])
    assert chain.type(heads).shape == (1, "seq", 12, 64)
    assert chain.type(chain(Reshape(), heads, [1, -1, 768])).shape == (1, "seq", 768)
    assert chain.type(chain(Reshape(), heads, [-1, 384])).shape == (None, 384)
    assert chain.type(chain(Reshape(), heads, [2, -1, 384])).shape == (2, "seq", 384)
