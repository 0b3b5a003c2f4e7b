"""Softmax, and one that stores its results in another float type, instead of a Cast behind it.

In a half precision network, scores that nothing bounds are float32 and their weights are multiplied
in 16 bits, and a classifier gives float32 at its end.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from math import gcd, prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from ....runtime.ir.graph import Graph, Node
from ....runtime.ops.elementwise import Cast
from ....runtime.ops.norm import Hardmax, LogSoftmax, Softmax
from ....runtime.ops.shapes import normalize_axis
from ..algorithms.registry import Answer
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Scratch, Tensor, ceil_div, index_type, order
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from ..recipe.source import arithmetic
from ..recipe.targets import Target
from .norm_parts import WORD, cut
from .norm_rows import MAX_KEPT, TOGETHER, lanes_of

THREADS = 128
#: Threads per multiprocessor that hide the latency of memory.
BUSY = 1024
#: Maximum threads per block, and bytes that are read from memory at once.
MAX_THREADS, SECTOR = 1024, 32
#: Maximum elements of a softmax, or of a group, that a few threads keep in registers.
SHORT = 32 * MAX_KEPT
#: The same of columns whose elements take turns, and possible words of these: lanes have one each.
BESIDE, WORDS = 32 * 64, (1, 2, 4)
#: Minimum number of rows of such columns per multiprocessor. On an H200 CaiT-XXS-24 in float16
#: takes 14 % less time at batch 32, with 48 of them; at batch 1, with one, it would take 7 % more.
ROWS = 8
#: The same of one thread, where no words divide a row: such threads store what others load.
SERIAL = 32
#: Types that a kernel stores in place of one another.
FLOATS = frozenset({float16, bfloat16, float32})


@record
class CastSoftmax(Whole):
    """A Softmax or LogSoftmax, and the Cast of its result.

    Attributes:
        softmax: the node.
        cast: the one behind it.
    """

    softmax: Node
    cast: Node

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Both."""
        return self.softmax, self.cast

    @property
    def follows(self) -> bool:
        """Whether it accepts any format; see `Pattern`."""
        return True

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        op = self.softmax.op
        assert isinstance(op, Softmax | LogSoftmax)
        return softmax_of(op, y, operand(self.softmax.operands[0]), setting.target)


def cast_softmax_at(graph: Graph, softmax: Node, free: Set[Node]) -> CastSoftmax | None:
    """Return a node with the Cast behind it, if nothing else reads its result.

    Args:
        graph: the graph.
        softmax: the node.
        free: nodes that may be taken.
    """
    cast = graph.sole_consumer(softmax.output)
    if cast is None or not isinstance(cast.op, Cast) or not free >= {softmax, cast}:
        return None
    types = {softmax.output.tensor.dtype, cast.output.tensor.dtype}
    return CastSoftmax(softmax, cast) if types <= FLOATS else None


def softmax_of(
    op: Softmax | LogSoftmax | Hardmax,
    y: Tensor | Scratch,
    x: Tensor,
    target: Target,
    taken: int = 0,
) -> Answer:
    """Return the launches of a softmax.

    Args:
        op: the operator.
        y: the result, of any float type if it is a tensor, and else of the dtype of x.
        x: the input.
        target: the GPU.
        taken: bytes of the workspace already in use, such as by `y`.
    """
    outer, count, inner = fold_to_3d(x, op.axis)
    if max(outer, count, inner) >= 2**31:
        return f"{outer} x {count} x {inner} elements"
    if inner == 1 and not isinstance(op, Hardmax):
        return _softmax_rows(op, y, x, (outer, count), target, taken)
    is_hard = isinstance(op, Hardmax)
    many = outer >= ROWS * target.processors
    if not is_hard and not taken and many and _are_words(x, count, inner):
        return _kept(op, y, x, (outer, count * inner), inner)
    columns, down = (THREADS, 1) if is_hard else _shared_columns(x, outer * inner, count, target)
    return Launch(
        "norm/softmax.cu",
        "hardmax" if is_hard else "softmax_columns",
        grid=(ceil_div(outer * inner, columns) if count else 0, 1, 1),
        block=columns * down,
        args={"x": x, "y": y, "columns": outer * inner, "count": count, "inner": inner},
        types=(("X", x.dtype), ("R", _result_of(y, x)), ("A", arithmetic(x.dtype))),
        constants=(
            *(("WARPS", 1), ("LOGARITHM", isinstance(op, LogSoftmax))),
            *(("COLUMNS", columns), ("DOWN", down)),
        ),
        scratch=taken,
        note=f"{outer} x {count}" if inner == 1 else f"{outer} x {count} x {inner}",
    )


def _shared_columns(x: Tensor, columns: int, count: int, target: Target) -> tuple[int, int]:
    """Return the columns of a block and the threads per column, more where columns are few.

    Each thread has at least four elements, and the threads are at most as many as fill the GPU.
    """
    adjacent, down = SECTOR // x.dtype.itemsize, 1
    while 8 * down <= count and 2 * down * adjacent <= MAX_THREADS:
        if 2 * down * columns > BUSY * target.processors:
            break
        down *= 2
    return max(THREADS // down, adjacent), down


def _softmax_rows(
    op: Softmax | LogSoftmax,
    y: Tensor | Scratch,
    x: Tensor,
    sizes: tuple[int, int],
    target: Target,
    taken: int,
) -> Answer:
    """Return the launches for (rows, elements per row)."""
    rows, count = sizes
    itemsize, compute, index = x.dtype.itemsize, arithmetic(x.dtype), index_type(x.size)
    if x.dtype != float64 and 0 < count <= SHORT and rows >= target.processors and not taken:
        return _short_rows(op, y, x, sizes)
    into = cut(rows, count, itemsize, gcd(WORD // itemsize, count), target)
    if into.blocks >= 2**31:
        return f"{rows} rows"
    sums = Scratch(taken) if into.is_shared else None
    args = {"x": x, "sums": sums, "count": count, "parts": into.struct}
    last = Launch(
        "norm/softmax_rows.cu",
        "softmax_rows",
        grid=(into.blocks if count else 0, 1, 1),
        block=32 * into.warps,
        args={**args, "y": y},
        types=(("X", x.dtype), ("R", _result_of(y, x)), ("A", compute), ("I", index)),
        constants=(*into.constants, ("LOGARITHM", isinstance(op, LogSoftmax))),
        scratch=taken + (2 * compute.itemsize * into.blocks if sums else 0),
        note=f"{rows} x {count}" + (f" in {into.parts}" if sums else ""),
    )
    return last if sums is None else (replace(last, entry="peaks", args=args), last)


def _are_words(x: Tensor, count: int, columns: int) -> bool:
    """Whether columns side by side fill words, and fit in the registers of a few threads."""
    vector = _vector_of(x, columns)
    few = vector > 1 and columns // vector in WORDS
    return few and x.dtype != float64 and 0 < count * columns <= BESIDE


def _vector_of(x: Tensor, count: int) -> int:
    """Return how many of so many adjacent elements are read at once."""
    return gcd(WORD // x.dtype.itemsize, count)


def _short_rows(
    op: Softmax | LogSoftmax, y: Tensor | Scratch, x: Tensor, sizes: tuple[int, int]
) -> Launch:
    """Return the launch for (rows, elements per row) that fit in the registers of a few threads."""
    rows, count = sizes
    nbytes = _vector_of(x, count) * x.dtype.itemsize
    if nbytes < WORD and count <= SERIAL and _result_of(y, x) == x.dtype:
        return Launch(
            "norm/softmax_serial.cu",
            "softmax_serial",
            grid=(ceil_div(rows, TOGETHER), 1, 1),
            block=TOGETHER,
            args={"x": x, "y": y, "rows": rows},
            types=(("X", x.dtype), ("A", arithmetic(x.dtype))),
            constants=(
                *(("COUNT", count), ("ROWS", TOGETHER)),
                ("LOGARITHM", isinstance(op, LogSoftmax)),
            ),
            note=f"{rows} x {count}",
        )
    return _kept(op, y, x, sizes)


def _kept(
    op: Softmax | LogSoftmax,
    y: Tensor | Scratch,
    x: Tensor,
    sizes: tuple[int, int],
    columns: int = 1,
) -> Launch:
    """Return the launch of a kernel that keeps rows in registers.

    Args:
        op: the operator.
        y: the result; see `softmax_of`.
        x: the input.
        sizes: rows, and elements of each.
        columns: of a row; the elements of several take turns.
    """
    rows, count = sizes
    vector = _vector_of(x, count if columns == 1 else columns)
    kept = MAX_KEPT if columns == 1 else BESIDE // 32
    lanes = lanes_of(count // vector, max(1, kept // vector), vector * x.dtype.itemsize)
    together = TOGETHER // lanes
    return Launch(
        "norm/softmax_short.cu",
        "softmax_short",
        grid=(ceil_div(rows, together), 1, 1),
        block=TOGETHER,
        args={"x": x, "y": y, "rows": rows, "count": count},
        types=(("X", x.dtype), ("R", _result_of(y, x)), ("A", arithmetic(x.dtype))),
        constants=(
            *(("LANES", lanes), ("ROWS", together), ("VECTOR", vector)),
            *(("PER", ceil_div(count, lanes * vector)), ("COLUMNS", columns)),
            ("LOGARITHM", isinstance(op, LogSoftmax)),
        ),
        note=f"{rows} x {count}" if columns == 1 else f"{rows} x {count // columns} x {columns}",
    )


def _result_of(y: Tensor | Scratch, x: Tensor) -> DType:
    return y.dtype if isinstance(y, Tensor) else x.dtype


def fold_to_3d(x: Tensor, axis: int) -> Ints:
    """Return the sizes in memory before, along and after an axis."""
    rank = x.rank
    axes = order(rank, x.format)
    place = axes.index(normalize_axis(axis, rank))
    sizes = [x.dims[a] for a in axes]
    return prod(sizes[:place]), sizes[place], prod(sizes[place + 1 :])
