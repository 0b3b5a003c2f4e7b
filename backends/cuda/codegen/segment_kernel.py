"""The kernel of rows that are combined where their indices are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import int64
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.gather import ScatterND
from ....runtime.ops.reduce import ReduceMax, ReduceMin, ReduceProd, ReduceSum
from ....runtime.ops.shape import Unsqueeze
from ..recipe.launch import Launch
from ..recipe.operands import (
    Given,
    Ints,
    Packed,
    Tensor,
    broadcast_strides,
    ceil_div,
    divisors,
    index_type,
    merge,
)
from ..recipe.pattern import OperandOf
from ..recipe.source import C_TYPES, arithmetic
from .chain_kernel import inner_strides, vector_of, walk_of
from .elementwise import ElementwiseChain, chain_of
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


def segment_reduction(found: SegmentReduction, y: Tensor, operand: OperandOf) -> Launch | str:
    """Return the launch, or why there is none."""
    totals = [node.output for node in found.folds]
    totals = totals if found.view is None else [found.view.output]
    behind = chain_of(found.behind, "after", sums=totals) if found.behind else None
    if isinstance(behind, str):
        return behind
    rows = _rows_of(found)
    if isinstance(rows, str):
        return rows
    reads = _reads(found, rows, operand)
    if isinstance(reads, str):
        return reads
    values, operands, walks = reads
    every = [*(stage.fold for stage in found.stages), *found.folds]
    begun = [node for node in every if not _is_neutral(node)]
    after = [] if behind is None else list(behind.operands[len(totals) :])
    more = [operand(value) for value in (*after, *(node.operands[0] for node in begun))]
    if len(operands) + len(more) > MAX_OPERANDS:
        return f"{len(operands) + len(more)} operands"
    dims = found.folds[0].output.tensor.dims
    places = [broadcast_strides(t.dims, t.format, y.dims, t.pitch) for t in more[: len(after)]]
    places = [y.strides, *places]
    if found.view is not None:
        places = [(line, *inner_strides(dims[1:], step)) for line, step in places]
    places += [
        _appended(operand(node.operands[0]).strides, node.output.tensor.dims, len(dims))
        for node in begun
    ]
    spread = _spread(found, y, operands, walks, more, places)
    op, dtype = found.folds[0].op, totals[0].tensor.dtype
    assert isinstance(op, ScatterND)
    kinds = [str(getattr(node.op, "reduction", "")) for node in every]
    title = [*(c.title for c in rows.chains.values()), *kinds, behind.title if behind else ""]
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
        constants=(("FOLDS", len(totals)), ("EARLY", len(found.stages)), *spread.constants),
        code="\n".join(
            [
                FOLDS[_FOLDS[op.reduction]].code(dtype),
                *_stage_code(found),
                *(chain.within(f"rows{i}") for i, chain in enumerate(rows.chains.values())),
                *([] if behind is None else [behind.within("behind")]),
                *_macros(found, rows, values, behind, [_is_neutral(node) for node in every]),
            ]
        ),
        note="+".join(filter(None, dict.fromkeys(title))),
        pitched=(y, *operands, *more),
    )


@record
class _RowChains:
    """How rows are computed.

    Attributes:
        chains: by what they compute: rows that are combined, and those of which there are views.
        made: the values that rows read of earlier totals, with the number of the stage.
        views: what is a view, with an axis appended, and of which value.
    """

    chains: Mapping[Value, ElementwiseChain]
    made: Mapping[Value, int]
    views: Mapping[Value, Value]

    def element(self, value: Value, words: Mapping[Value, str]) -> str:
        """Return the C++ expression of an element."""
        if value in self.views:
            return self.element(self.views[value], words)
        if value in self.made:
            return f"{C_TYPES[value.tensor.dtype]}(value{self.made[value]}[q])"
        if value not in self.chains:
            return words[value]
        number = list(self.chains).index(value)
        reads = (self.element(each, words) for each in self.chains[value].operands)
        return f"rows{number}::chain({', '.join(reads)})"


def _rows_of(found: SegmentReduction) -> _RowChains | str:
    """Return how the rows of all folds are computed."""
    views = {node.output: node.operands[0] for node in found.rows if isinstance(node.op, Unsqueeze)}
    chained = [node for node in found.rows if node.output not in views]
    combined = [*(stage.fold.operands[2] for stage in found.stages)]
    combined += [node.operands[2] for node in found.folds]
    made = {stage.gather.output: number for number, stage in enumerate(found.stages)}
    chains: dict[Value, ElementwiseChain] = {}
    for value in dict.fromkeys((*views.values(), *combined)):
        nodes = _nodes_before(value, chained)
        if not nodes:
            continue
        chain = chain_of(nodes, rounds=value in views.values())
        if isinstance(chain, str):
            return chain
        chains[value] = chain
    return _RowChains(chains, made, views)


def _nodes_before(value: Value, nodes: Sequence[Node]) -> list[Node]:
    """Return those of some nodes that compute a value, in order."""
    needed, waiting = set[Node](), [value.producer]
    while waiting:
        node = waiting.pop()
        if node is not None and node in nodes and node not in needed:
            needed.add(node)
            waiting += [each.producer for each in node.distinct_reads]
    return [node for node in nodes if node in needed]


def _reads(
    found: SegmentReduction, rows: _RowChains, operand: OperandOf
) -> tuple[list[Value], list[Tensor], list[Walk]] | str:
    """Return what rows are computed of, and where that is by row and by axis of the result."""
    rank = len(found.folds[0].output.tensor.dims)
    gathers = {node.output: node for node in found.gathers}
    folds = (*(stage.fold for stage in found.stages), *found.folds)
    read = {(v, value) for value, chain in rows.chains.items() for v in chain.operands}
    read |= {(node.operands[2], node.operands[2]) for node in folds}
    read |= {(value, value) for value in rows.views.values()}
    made = {*rows.chains, *rows.views, *rows.made}
    walks: dict[Value, Walk] = {}
    order = {node.output: i for i, node in enumerate(found.rows)}
    for value, result in sorted(read, key=lambda pair: (order.get(pair[1], -1), pair[0].name)):
        if value in made:
            continue
        dims = result.tensor.dims
        if value in gathers:
            walk = walk_of_rows(gathers[value], operand, len(dims))
        else:
            walk = walk_of(operand(value), None, Tensor(result), [(size,) for size in dims])
        strides, slots = (_appended(steps, dims, rank) for steps in (walk.strides, walk.slots))
        walk = replace(walk, strides=strides, slots=slots)
        if walks.setdefault(value, walk).strides != strides:
            return f"'{value.name}' is read by rows of several sizes"
    operands = [operand(gathers[v].operands[0] if v in gathers else v) for v in walks]
    return list(walks), operands, list(walks.values())


def _appended(steps: Ints, dims: Ints, rank: int) -> Ints:
    """Return strides along the axes of a result: those behind the given ones repeat elements."""
    own = (s if d > 1 else 0 for s, d in zip(steps, dims, strict=True))
    return (*own, *(0,) * (rank - len(dims)))


def _stage_code(found: SegmentReduction) -> Iterator[str]:
    """Yield how earlier totals are made, and what rows read of them."""
    for number, stage in enumerate(found.stages):
        op, value = stage.fold.op, stage.fold.output
        assert isinstance(op, ScatterND)
        yield f"namespace Stage{number} {{"
        yield FOLDS[_FOLDS[op.reduction]].code(value.tensor.dtype)
        yield "}"
        if stage.between:
            chain = chain_of(stage.between, "after", sums=[value])
            assert not isinstance(chain, str)
            yield chain.within(f"between{number}")


def _is_neutral(fold: Node) -> bool:
    """Whether rows are added to zeros."""
    data = fold.operands[0].data
    add = isinstance(fold.op, ScatterND) and fold.op.reduction == "add"
    return add and data is not None and not data.any()


def _sorted(found: SegmentReduction, operand: OperandOf) -> Tensor | Packed:
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


def _macros(
    found: SegmentReduction,
    rows: _RowChains,
    values: Sequence[Value],
    behind: ElementwiseChain | None,
    neutral: Sequence[bool],
) -> Iterator[str]:
    """Yield what the kernel needs to be told; see `segments.cu`."""
    words = {value: f"words{i}.at[q]" for i, value in enumerate(values)}
    yield f"#define OPERANDS(X) {' '.join(f'X({i})' for i in range(len(values)))}"
    elements = (
        f"X({f}, ({rows.element(node.operands[2], words)}))" for f, node in enumerate(found.folds)
    )
    yield f"#define ELEMENTS(X, q) {' '.join(elements)}"
    after = 0 if behind is None else len(behind.operands) - len(found.folds)
    reads = [
        f"b{j}[place{j} + q * places{j}.at[RANK - 1]]"
        for j in range(after + len(neutral) - sum(neutral))
    ]
    begun = iter(reads[after:])
    stages: list[str] = []
    for number, stage in enumerate(found.stages):
        total = "sum[q]"
        if not neutral[number]:
            total = f"Stage{number}::combine(A({next(begun)}), {total})"
        total = f"between{number}::after({total})" if stage.between else total
        element = rows.element(stage.fold.operands[2], words)
        stages.append(f"X({number}, ({element}), ({total}))")
    totals = [
        f"total[{f}][q]" if is_neutral else f"combine(A({next(begun)}), total[{f}][q])"
        for f, is_neutral in enumerate(neutral[len(found.stages) :])
    ]
    yield f"#define STAGES(X) {' '.join(stages)}"
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
    places: Sequence[Ints],
) -> _Spread:
    count, nodes = found.indices.tensor.size, y.dims[0]
    rows = [places[0], *(walk.strides for walk in walks), *places[1:]]
    dims = found.folds[0].output.tensor.dims
    inner, merged = merge(dims[1:], [row[1:] for row in rows])
    whole = [(row[0], *steps) for row, steps in zip(rows, merged, strict=True)]
    slots = [(walk.slots[0], *(0 for _ in inner)) for walk in walks]
    n = len(operands) + 1
    vector, reads = vector_of((y, *operands), (count, *inner), [*whole[:n], *slots], walks)
    words = prod(inner) // vector
    columns, shares, shared = _shares(nodes, words, count / nodes)
    shared = shared and not found.stages
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
