"""Col2Im, also of blocks that are read where they are, through nodes that move their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import int32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Col2Im
from ....runtime.ops.window import window
from ....runtime.plan.format import Format
from ..codegen.chain_kernel import factors_of, walk_of
from ..codegen.elementwise import NUMBERS
from ..codegen.moves import Movement, chain_to, movement, moves
from ..recipe.launch import Launch, each
from ..recipe.operands import Ints, Tensor, index_type, merge, three
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from ..recipe.source import arithmetic

#: Bytes of a word.
WORD = 16


@record
class FoldedBlocks(Whole):
    """A Col2Im with channels last, and what moves the elements of its blocks.

    Attributes:
        fold: the Col2Im.
        moved: from where the blocks are.
    """

    fold: Node
    moved: Movement

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({*self.moved.nodes, self.fold})

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the format of its result; see `Pattern`."""
        return {self.fold.output: Format.CHANNELS_LAST}

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Launch | str:
        """Return its recipe; see `Pattern`."""
        op, block = self.fold.op, self.fold.operands[2]
        assert isinstance(op, Col2Im)
        assert block.data is not None
        if not y.is_channels_last:
            return "no channels last"
        kernel = tuple(int(n) for n in block.data)
        x = operand(self.moved.x)
        steps = _steps(self.moved, x, Tensor(self.fold.operands[0]), prod(kernel))
        return steps if isinstance(steps, str) else fold_columns(op, y, x, kernel, steps)


def folded_blocks_at(graph: Graph, fold: Node, free: Set[Node]) -> FoldedBlocks | None:
    """Return a Col2Im of blocks that a Transpose writes, with channels last (outlooking attention).

    It is one if neighbouring channels are adjacent in what the Transpose reads.
    """
    x, *given = fold.operands
    maker = x.producer
    if fold not in free or maker is None or maker not in free or not moves(maker):
        return None
    is_known = all(value.data is not None for value in given)
    if not is_known or graph.sole_consumer(x) is not fold or x.tensor.dtype not in NUMBERS:
        return None
    moved = movement(chain_to(graph, maker, free))
    block = given[1].data
    if moved is None or block is None or len(fold.output.tensor.dims) > 5:
        return None
    steps = _steps(moved, Tensor(moved.x), Tensor(x), int(prod(block)))
    return None if isinstance(steps, str) else FoldedBlocks(fold, moved)


@record
class _Steps:
    """Distances between the elements of blocks, see `fold_columns.cu`."""

    image: int
    outer: int
    tap: int
    block: int
    origin: int
    beside: int
    vector: int


def fold_columns(
    op: Col2Im, y: Tensor, x: Tensor, kernel: Ints, steps: _Steps | None = None
) -> Launch | str:
    """Return the launch that sums blocks into images.

    Args:
        op: the operator.
        y: the images.
        x: the blocks, or what they are in.
        kernel: sizes of a block.
        steps: how its elements are found, with channels last in images; None: in order.
    """
    if y.rank > 5:
        return f"{y.rank - 2} spatial axes"
    view = window(op, y.dims[2:], kernel)
    names = {"KERNEL": view.kernel, "STRIDE": view.strides, "DILATION": view.dilations}
    index = index_type(x.extent, y.size)
    if steps is not None and index != int32:
        return f"{x.extent} elements"
    own = steps or _Steps(0, 0, 0, 0, 0, 1, 1)
    vector = own.vector
    return each(
        "conv/fold_columns.cu",
        "fold_columns",
        y.size // vector,
        {
            **{"x": x, "y": y, "count": y.size // vector},
            "sizes": {
                **{"blocks": three(view.output, 1), "out": three(y.dims[2:], 1)},
                "pad": three(view.pads_begin, 0),
            },
            "steps": {
                **{"image": own.image, "outer": own.outer, "tap": own.tap, "block": own.block},
                **{"origin": own.origin, "channels": y.dims[1], "beside": own.beside},
            },
        },
        types=(("X", x.dtype), ("A", arithmetic(x.dtype)), ("Index", index)),
        constants=(
            *(("LAST", steps is not None), ("VECTOR", vector)),
            *(
                (f"{name}{axis}", step)
                for name, values in names.items()
                for axis, step in enumerate(three(values, 1))
            ),
        ),
    )


def _steps(moved: Movement, x: Tensor, blocks: Tensor, taps: int) -> _Steps | str:
    """Return how the elements of blocks [n, c * taps, blocks] are found, or why they are not."""
    cuts = factors_of(blocks.dims, [moved])
    if cuts is None or len(cuts) != 3:
        return "no factors"
    walk = walk_of(x, moved, blocks, cuts)
    if walk.table is not None:
        return "elements are not where strides lead"
    ends = [len(cuts[0]), len(cuts[0]) + len(cuts[1])]
    lines = [walk.strides[: ends[0]], walk.strides[ends[0] : ends[1]], walk.strides[ends[1] :]]
    cut = next((i for i in range(len(cuts[1]) + 1) if prod(cuts[1][i:]) == taps), None)
    if cut is None:
        return "taps and channels are mixed"
    image = _merged(cuts[0], lines[0])
    channels = _merged(cuts[1][:cut], lines[1][:cut])
    tap, block = _merged(cuts[1][cut:], lines[1][cut:]), _merged(cuts[2], lines[2])
    if max(map(len, (image, tap, block))) > 1 or len(channels) > 2:
        return "more axes"
    (outer, beside), steps = ([(1, 0), *channels])[-2:], [m[0][1] for m in (image, tap, block)]
    if beside[1] != 1:
        return "channels are not adjacent"
    vector = WORD // x.dtype.itemsize
    while any(n % vector for n in (*steps, outer[1], beside[0], walk.origin)):
        vector //= 2
    return _Steps(steps[0], outer[1], steps[1], steps[2], walk.origin, beside[0], vector)


def _merged(sizes: Sequence[int], line: Ints) -> list[tuple[int, int]]:
    """Return size and stride of the fewest axes."""
    found, (strides,) = merge(sizes, [line])
    return [(n, step if n > 1 else 0) for n, step in zip(found, strides, strict=True)]
