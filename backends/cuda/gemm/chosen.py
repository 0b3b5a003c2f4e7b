"""Products of rows with matrices that indices choose: each matrix is read where it is.

Exporters write mixtures of experts this way: they gather the weights of every row's experts, which
are many times as large as the weights, and multiply each row by its own. Here rows are sorted by
matrix (`sort_indices.cu`), and multiplied like those of experts (`experts_floats.cu`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import partial
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32, int32, int64
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.gather import Gather, GatherND
from ....runtime.ops.matmul import MatMul
from ....runtime.ops.movement import Expand, Transpose
from ....runtime.ops.shape import RESHAPES
from ..codegen.epilogue import no_epilogue
from ..recipe.launch import Launch, Recipe, sharing
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .atoms import HALVES, atom_of
from .experts import ALIGNED, MAX_TILES, SEVERAL, TILES
from .gemv import prologue_of
from .pack import padded

#: Maximum number of matrices, for each of which a warp looks at all indices.
MAX_MATRICES = 1024
#: Warps of a block of `sort_indices.cu`.
SORTING_WARPS = 4


@record
class ChosenMatrices(Whole):
    """A product of rows with chosen matrices.

    Attributes:
        product: a MatMul of [pairs, n, k] by [pairs, k, 1], or of [pairs, 1, k] by [pairs, k, n].
        gather: what takes the matrices of pairs from a constant of rank 3.
        transpose: what swaps their axes; None if nothing does.
        repeat: nodes that repeat each row as often as it chooses a matrix.
        x: the rows, before that.
        share: pairs of a row.
        is_left: whether the matrices are the left operand.
    """

    product: Node
    gather: Node
    transpose: Node | None
    repeat: tuple[Node, ...]
    x: Value
    share: int
    is_left: bool

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        moved = () if self.transpose is None else (self.transpose,)
        return frozenset((self.product, self.gather, *moved, *self.repeat))

    @property
    def weights(self) -> Value:
        """All matrices."""
        return self.gather.operands[0]

    @property
    def indices(self) -> Value:
        """The matrix of every pair."""
        return self.gather.operands[1]

    @property
    def is_by_column(self) -> bool:
        """Whether the matrices are [n, k] as they are stored."""
        return self.is_left == (self.transpose is None)

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        return chosen_matrices(self, y, operand, setting)


def chosen_matrices_at(graph: Graph, product: Node, free: Set[Node]) -> ChosenMatrices | None:
    """Return the product with chosen matrices that a node is."""
    if product not in free or not isinstance(product.op, MatMul):
        return None
    for is_left in (True, False):
        matrices, x = product.operands[:: 1 if is_left else -1]
        if len(x.tensor.dims) != 3 or x.tensor.dims[2 if is_left else 1] != 1:
            continue
        moved = gather = _only(graph, matrices, free)
        if moved is not None and isinstance(moved.op, Transpose) and moved.op.perm == (0, 2, 1):
            gather = _only(graph, moved.operands[0], free)
        if gather is None or not _takes_matrices(gather) or gather.output.tensor.rank != 3:
            continue
        transpose = None if moved is gather else moved
        repeat, source, share = _repeated(graph, x, free)
        return ChosenMatrices(product, gather, transpose, repeat, source, share, is_left)
    return None


def _only(graph: Graph, value: Value, free: Set[Node]) -> Node | None:
    """Return the free node whose result only one other reads."""
    node = graph.made_for_one(value)
    return node if node in free else None


def _takes_matrices(node: Node) -> bool:
    """Whether a node takes matrices from a constant of them, by known numbers of indices."""
    if isinstance(node.op, Gather):
        fits = node.op.axis % 3 == 0 and node.operands[1].tensor.rank == 1
    else:
        is_plain = isinstance(node.op, GatherND) and not node.op.batch_dims
        fits = is_plain and node.operands[1].tensor.dims[-1] == 1
    if not fits:
        return False
    weights, indices = (value.tensor for value in node.operands)
    is_small = weights.rank == 3 and 0 < weights.dims[0] <= MAX_MATRICES
    types = weights.dtype in HALVES | {float32} and indices.dtype in (int32, int64)
    return is_small and types and node.operands[0].is_constant and not node.operands[1].is_constant


def _repeated(graph: Graph, x: Value, free: Set[Node]) -> tuple[tuple[Node, ...], Value, int]:
    """Return the nodes that repeat rows, the rows before that, and how often each is repeated."""
    found, value, k = list[Node](), x, max(x.tensor.dims[1:])
    while (node := _only(graph, value, free)) is not None:
        found.append(node)
        if isinstance(node.op, Expand):
            source, dims = node.operands[0], node.output.tensor.dims
            *rows, share, width = dims
            if width != k or source.tensor.dims != (*rows, 1, width) or not prod(rows):
                break
            return tuple(found), source, share
        if not isinstance(node.op, RESHAPES):
            break
        value = node.operands[0]
    return (), x, 1


def chosen_matrices(
    found: ChosenMatrices, y: Tensor, operand: OperandOf, setting: Setting
) -> Recipe | str:
    """Return the launches of a product with chosen matrices, or why its nodes stay apart.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    setting = setting.for_node(found.product)
    if setting.asked:
        return f"algorithm '{setting.asked[0]}'"
    count, *sizes = found.weights.tensor.dims
    n, k = sizes if found.is_by_column else sizes[::-1]
    x, indices, dtype = operand(found.x), operand(found.indices), y.dtype
    pairs = indices.size
    if x.dtype != dtype or not pairs or not n or not k:
        return "types, or no elements"
    rows = _rows_of_tile(pairs / count, dtype in HALVES)
    active = min(count, pairs)
    tiles = (pairs - active) // rows + active
    if tiles > MAX_TILES or max(x.size, y.size) >= 2**31:
        return f"{pairs} rows"
    order, ends = Scratch(0), Scratch(ceil_div(4 * pairs, ALIGNED) * ALIGNED)
    sorting = Launch(
        "gemm/sort_indices.cu",
        "sort_indices",
        grid=(ceil_div(count + 1, SORTING_WARPS), 1, 1),
        block=32 * SORTING_WARPS,
        args={"indices": indices, "order": order, "ends": ends, "y": y, "pairs": pairs, "n": n},
        types=(("I", indices.dtype), ("T", dtype)),
        constants=(("EXPERTS", count),),
        scratch=ends.offset + 4 * count,
        note=f"{pairs} of {count}",
    )
    word = 8 if dtype in HALVES else 4
    tile = replace(SEVERAL, resident=1 if rows > TILES[0] else 2)
    layout = ("chosen", found.is_by_column, word)
    pack = partial(_packed, word=word, is_by_column=found.is_by_column)
    product = Launch(
        "gemm/experts_floats.cu",
        "experts_floats",
        grid=(tile.blocks(n), tiles, 1),
        block=32 * tile.warps,
        args={
            **{"w": Packed((found.weights,), layout, pack), "bias": None, "x": x, "y": y},
            **{"router": None, "given": None, "order": order, "ends": ends, "n": n},
        },
        types=(("T", dtype), ("R", dtype), ("L", float32), ("G", float32)),
        constants=(
            *(("M", rows), ("PRODUCTS", 1), *tile.constants),
            *(("EXPERTS", count), ("TOP", 1), ("HOW", 0)),
            *(("SHARE", found.share), ("SORTED", True)),
            *(("K", k), ("PITCH", ceil_div(k, word) * word)),
            *(("EDGE", tile.is_uneven(n, 1)), ("BIAS", False)),
            *prologue_of(None, k, dtype).constants,
        ),
        code=f"{atom_of(dtype).code()}\n{no_epilogue(dtype).code}",
        note=f"{tile.note(rows, 1)}, chosen of {count}",
    )
    return sharing(sorting, product)


def _rows_of_tile(average: float, is_half: bool) -> int:
    """Return the pairs of a tile, at most."""
    if not is_half:
        return TILES[0]
    return next((rows for rows in TILES if rows >= average), TILES[-1])


def _packed(weights: Array, *, word: int, is_by_column: bool) -> Array:
    return padded(weights if is_by_column else weights.swapaxes(1, 2), word)
