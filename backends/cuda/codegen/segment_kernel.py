"""The kernel of rows that are combined where their indices are equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import int64
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.gather import ScatterND
from ....runtime.ops.reduce import ReduceMax, ReduceMin, ReduceProd, ReduceSum
from ..recipe.launch import Launch
from ..recipe.operands import (
    Given,
    Packed,
    Tensor,
    broadcast_strides,
    ceil_div,
    divisors,
    index_type,
    merge,
)
from ..recipe.pattern import Operand
from ..recipe.source import arithmetic
from .chain_kernel import vector_of, walk_of
from .elementwise import ElementwiseChain, chain_of, unchanged
from .folds import FOLDS
from .gathered import walk_of_rows
from .moves import Walk
from .segments import SegmentReduction

WARPS, WARP = 8, 32
#: Maximum number of operands.
MAX_OPERANDS = 16
#: Threads that keep a GPU busy, and rows of a thread from which on more threads share them.
ENOUGH, SERIAL = 1 << 16, 32
#: Rows of a warp from which on all warps of a block share a node, where nodes fill fewer blocks.
OF_WARP, FEW_BLOCKS = 64, 1 << 10

#: How rows are combined, by the reduction of ScatterND.
_FOLDS = {"add": ReduceSum, "mul": ReduceProd, "max": ReduceMax, "min": ReduceMin}


def segment_reduction(found: SegmentReduction, y: Tensor, operand: Operand) -> Launch | str:
    """Return the launch, or why there is none."""
    rows = found.folds[0].operands[2]
    totals = [node.output for node in found.folds]
    behind = chain_of(found.behind, "after", sums=totals) if found.behind else None
    chains = [_chain(*pair) for pair in zip(found.folds, found.before, strict=True)]
    refused = [each for each in (*chains, behind) if isinstance(each, str)]
    if refused or isinstance(behind, str):
        return refused[0]
    made = [each for each in chains if not isinstance(each, str)]
    gathers = {node.output: node for node in found.gathers}
    values = list(dict.fromkeys(value for chain in made for value in chain.operands))
    operands = [operand(gathers[v].operands[0] if v in gathers else v) for v in values]
    begun = [node.operands[0] for node in found.folds if not _is_neutral(node)]
    after = [] if behind is None else list(behind.operands[len(totals) :])
    more = [operand(value) for value in (*after, *begun)]
    if len(operands) + len(more) > MAX_OPERANDS:
        return f"{len(operands) + len(more)} operands"
    walks = [
        walk_of_rows(gathers[v], operand, rows.tensor.rank)
        if v in gathers
        else walk_of(t, None, Tensor(rows), [(size,) for size in rows.tensor.dims])
        for v, t in zip(values, operands, strict=True)
    ]
    spread = _spread(found, y, operands, walks, more)
    op, dtype = found.folds[0].op, totals[0].tensor.dtype
    assert isinstance(op, ScatterND)
    title = [*(c.title for c in made), f"{op.reduction}", "" if behind is None else behind.title]
    return Launch(
        "reduce/segments.cu",
        "segments",
        grid=spread.grid,
        block=WARPS * WARP,
        args={"y": y, "line": y.strides[0], **spread.args(_sorted(found, operand))},
        types=(
            *(("Index", spread.index), ("Y", y.dtype), ("A", arithmetic(dtype))),
            *((f"A{i}", t.dtype) for i, t in enumerate(operands)),
            *((f"L{i}", w.indices.dtype if w.indices else int64) for i, w in enumerate(walks)),
            *((f"B{j}", t.dtype) for j, t in enumerate(more)),
        ),
        constants=(("FOLDS", len(totals)), *spread.constants),
        code="\n".join(
            [
                FOLDS[_FOLDS[op.reduction]].code(dtype),
                *_apart(made, behind),
                *_macros(made, values, behind, [_is_neutral(node) for node in found.folds]),
            ]
        ),
        note="+".join(filter(None, dict.fromkeys(title))),
        pitched=(y, *operands, *more),
    )


def _chain(fold: Node, before: Sequence[Node]) -> ElementwiseChain | str:
    """Return the chain that computes the rows of a fold."""
    return chain_of(before, rounds=False) if before else unchanged(fold.operands[2])


def _is_neutral(fold: Node) -> bool:
    """Whether rows are added to zeros."""
    data = fold.operands[0].data
    add = isinstance(fold.op, ScatterND) and fold.op.reduction == "add"
    return add and data is not None and not data.any()


def _sorted(found: SegmentReduction, operand: Operand) -> Tensor | Packed:
    """Return the sorted indices."""
    if not found.indices.is_constant:
        return operand(found.indices)
    return Packed((found.indices,), ("sorted",), sorted_rows)


def sorted_rows(indices: Array) -> Array:
    """Return indices of rows [n, 1] as sorted pairs, each in one int64; see `Format.SORTED`."""
    limit = np.iinfo(np.int32).max
    keys = np.clip(indices.reshape(-1), -limit, limit).astype(np.int32)
    places = np.argsort(keys, kind="stable").astype(np.int32)
    return np.stack([keys[places], places], axis=1).view(np.int64)


def _apart(chains: Sequence[ElementwiseChain], behind: ElementwiseChain | None) -> Iterator[str]:
    """Yield the code of all chains."""
    for f, chain in enumerate(chains):
        yield chain.within(f"before{f}")
    if behind is not None:
        yield behind.within("behind")


def _macros(
    chains: Sequence[ElementwiseChain],
    values: Sequence[Value],
    behind: ElementwiseChain | None,
    neutral: Sequence[bool],
) -> Iterator[str]:
    """Yield what the kernel needs to be told; see `segments.cu`."""
    yield f"#define OPERANDS(X) {' '.join(f'X({i})' for i in range(len(values)))}"
    words = {value: f"words{i}.at[q]" for i, value in enumerate(values)}
    elements = (
        f"X({f}, before{f}::chain({', '.join(words[v] for v in chain.operands)}))"
        for f, chain in enumerate(chains)
    )
    yield f"#define ELEMENTS(X, q) {' '.join(elements)}"
    after = 0 if behind is None else len(behind.operands) - len(chains)
    reads = [
        f"b{j}[place{j} + q * places{j}.at[RANK - 1]]"
        for j in range(after + len(neutral) - sum(neutral))
    ]
    begun = iter(reads[after:])
    totals = [
        f"total[{f}][q]" if is_neutral else f"combine(A({next(begun)}), total[{f}][q])"
        for f, is_neutral in enumerate(neutral)
    ]
    yield f"#define BEHIND(X) {' '.join(f'X({j})' for j in range(len(reads)))}"
    call = f"behind::after({', '.join((*totals, *reads[:after]))})"
    yield f"#define RESULT(q) {f'Y({totals[0]})' if behind is None else call}"


@record
class _Spread:
    """How nodes, their elements and their rows are shared by threads.

    Attributes:
        grid: of blocks.
        index: the type of indices.
        given: arguments in front of and behind the sorted indices.
        constants: of the kernel.
    """

    grid: tuple[int, int, int]
    index: np.dtype
    given: tuple[dict[str, Given], dict[str, Given]]
    constants: tuple[tuple[str, int], ...]

    def args(self, pairs: Tensor | Packed) -> dict[str, Given]:
        """Return the arguments behind the result and its stride."""
        return {**self.given[0], "pairs": pairs, **self.given[1]}


def _spread(
    found: SegmentReduction,
    y: Tensor,
    operands: Sequence[Tensor],
    walks: Sequence[Walk],
    more: Sequence[Tensor],
) -> _Spread:
    count, nodes = found.indices.tensor.size, y.dims[0]
    rows = [y.strides, *(walk.strides for walk in walks)]
    rows += [broadcast_strides(t.dims, t.format, y.dims, t.pitch) for t in more]
    inner, merged = merge(y.dims[1:], [row[1:] for row in rows])
    whole = [(row[0], *steps) for row, steps in zip(rows, merged, strict=True)]
    slots = [(walk.slots[0], *(0 for _ in inner)) for walk in walks]
    n = len(operands) + 1
    vector, reads = vector_of((y, *operands), (count, *inner), [*whole[:n], *slots], walks)
    words = prod(inner) // vector
    columns, shares, shared = _shares(nodes, words, count / nodes)
    blocks = ceil_div(nodes, WARP // (columns * shares) * (1 if shared else WARPS))
    args: dict[str, Given] = {"count": count, "nodes": nodes, "inner": prod(inner), "sizes": inner}
    args |= divisors(inner)
    constants = [("RANK", len(inner)), ("VECTOR", vector), ("COLUMNS", columns)]
    constants += [("SHARES", shares), ("WHOLE", shared)]
    for i, (t, walk, steps, read) in enumerate(
        zip(operands, walks, whole[1:n], reads, strict=True)
    ):
        args |= {f"a{i}": t, f"row{i}": steps[0], f"strides{i}": steps[1:]}
        args |= {f"index{i}": walk.indices, f"slot{i}": walk.slots[0]}
        args |= {f"size{i}": walk.size, f"step{i}": walk.step}
        constants += [(f"INNER{i}", min(read, vector)), (f"INDEXED{i}", walk.indices is not None)]
    for j, (t, steps) in enumerate(zip(more, whole[n:], strict=True)):
        args |= {f"b{j}": t, f"line{j}": steps[0], f"places{j}": steps[1:]}
    index = index_type(y.extent, count, *(t.extent for t in (*operands, *more)))
    grid = (blocks, ceil_div(words, columns), 1)
    return _Spread(grid, index, ({"strides": merged[0]}, args), tuple(constants))


def _shares(nodes: int, words: int, degree: float) -> tuple[int, int, bool]:
    """Return lanes for the words of a row, how many share its edges, and whether a block does."""
    columns = min(WARP, 1 << (words - 1).bit_length())
    shares = 1
    while columns * shares < WARP and shares < degree:
        if nodes * words * shares >= ENOUGH and degree < SERIAL * shares:
            break
        shares *= 2
    blocks = nodes * ceil_div(words, columns)
    whole = columns * shares == WARP and degree >= OF_WARP * shares and blocks < FEW_BLOCKS
    return columns, shares, whole
