"""The kernel of reductions of rows with elementwise operators: threads keep rows in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, DType, float64
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.op import Op
from ....runtime.ops.norm import LogSoftmax
from ....runtime.ops.reduce import ReduceMax, ReduceSum
from ....runtime.plan.format import Format
from ..recipe.launch import Launch
from ..recipe.operands import (
    Given,
    Ints,
    Tensor,
    broadcast_strides,
    ceil_div,
    divisors,
    index_type,
    merge,
    order,
)
from ..recipe.source import arithmetic
from .chain_kernel import factors_of, inner_strides, refusal, vector_of, walk_of
from .elementwise import compute_type
from .folds import FOLDS
from .moves import Movement, Walk
from .row_chains import RowChain, Rows, folds_of
from .stages import Stage, stage_of

#: Threads of a block, lanes of a warp, and threads of a row at most whose elements are adjacent or
#: far apart.
THREADS, WARP, MAX_ALONG, MAX_APART = 128, 32, 512, 32
#: Maximum number of elements in the registers of a thread.
MAX_KEPT = 32
#: Bytes that threads of a row read next to one another at least; threads that keep a GPU busy.
SECTOR, ENOUGH = 64, 1 << 16


def row_chain(found: RowChain, operand: Callable[[Value], Tensor]) -> Launch | str:
    """Return the launch, or why there is none."""
    stages = _stages(found)
    if isinstance(stages, str):
        return stages
    firsts = [0, *accumulate(map(folds_of, found.folds))]
    totals = {node.output: i for node, i in zip(found.folds, firsts, strict=False)}
    values = [v for v in dict.fromkeys(v for s in stages for v in s.operands) if v not in totals]
    moved = {each.y: each for each in found.moves}
    results = [operand(value) for value in found.results]
    operands = [operand(moved[v].x if v in moved else v) for v in values]
    places = {i: moved[v] for i, v in enumerate(values) if v in moved}
    shared = _share(found, results, operands, places)
    if isinstance(shared, str):
        return shared
    numbers = range(len(operands))
    names = {v: f"words{i}[{'p' if shared.wide[i] else 0}].at[q]" for i, v in enumerate(values)}
    names |= {node.output: _total(node, totals[node.output]) for node in found.folds}
    code = [stage.code for stage in stages]
    for stage, node in zip(stages, found.folds, strict=False):
        code += _folds(totals[node.output], node, stage.call(names))
    for i, stage in enumerate(stages[len(totals) :]):
        code.append(f"#define RESULT{i}(p, q) {stage.call(names)}")
    code.append(f"#define OPERANDS(X) {' '.join(f'X({i})' for i in numbers)}")
    code.append(f"#define FOLDS(X) {' '.join(f'X({i})' for i in range(firsts[-1]))}")
    code.append(f"#define RESULTS(X) {' '.join(f'X({i})' for i in range(len(results)))}")
    title = "+".join(type(node.op).__name__ for node in found.chain)
    several = f", {len(results)} results" if len(results) > 1 else ""
    return Launch(
        "reduce/row_chain.cu",
        "row_chain",
        grid=(shared.blocks, 1, 1),
        block=shared.threads,
        args=shared.args,
        types=(
            ("Index", shared.index),
            *((f"R{i}", y.dtype) for i, y in enumerate(results)),
            *((f"A{i}", x.dtype) for i, x in enumerate(operands)),
        ),
        constants=shared.constants,
        code="\n".join(filter(None, code)),
        note=f"{title} of {shared.count}{several}",
        pitched=(*results, *operands),
    )


def _stages(found: RowChain) -> list[Stage] | str:
    """Return what each reduction combines, and then the results; or why there is none."""
    stages = list[Stage]()
    feeds = [(node.operands[0], f"feed{i}", False) for i, node in enumerate(found.folds)]
    stored = [(value, f"result{i}", True) for i, value in enumerate(found.results)]
    for value, name, rounds in (*feeds, *stored):
        stage = stage_of(found.chain, found.folds, value, name, rounds=rounds)
        if isinstance(stage, str):
            return stage
        stages.append(stage)
    return stages


def _total(node: Node, number: int) -> str:
    """Return what a node has combined, as C++; of a Softmax, what it computes of an element.

    Args:
        node: the node.
        number: of its first reduction.
    """
    if type(node.op) in FOLDS:
        return f"total{number}[COLUMN(q)]"
    above, total = _above(number), f"total{number + 1}[COLUMN(q)]"
    is_log = isinstance(node.op, LogSoftmax)
    return f"({above} - log({total}))" if is_log else f"(exp({above}) / {total})"


def _folds(number: int, node: Node, feed: str) -> Iterator[str]:
    """Yield the reductions of a node as C++, and what each combines.

    Args:
        number: of the first one.
        node: the node.
        feed: what it reads.
    """
    if type(node.op) in FOLDS:
        yield from _fold(number, type(node.op), node)
        yield f"#define FEED{number}(p, q) {feed}"
        return
    yield from _fold(number, ReduceMax, node)
    yield f"#define FEED{number}(p, q) {feed}"
    yield from _fold(number + 1, ReduceSum, node)
    yield f"#define FEED{number + 1}(p, q) exp({_above(number)})"


def _above(number: int) -> str:
    """Return how far an element is above the greatest of its row, as C++."""
    return f"Total{number}(FEED{number}(p, q)) - total{number}[COLUMN(q)]"


def _fold(number: int, kind: type[Op], node: Node) -> Iterator[str]:
    """Yield a reduction as C++, in a namespace: its states, and the type of its result."""
    how, dtype = FOLDS[kind], node.operands[0].tensor.dtype
    compute = arithmetic(dtype)
    if how.floating and compute not in FLOATS:
        compute = float64
    yield how.within(f"fold{number}", float64 if compute is float64 else dtype, compute)
    state, head = f"fold{number}::State", "__device__ __forceinline__"
    yield f"struct Combine{number} {{"
    yield f"    {head} {state} operator()({state} a, {state} b) const"
    yield f"    {{ return fold{number}::combine(a, b); }}"
    yield "};"
    yield f"using Total{number} = {compute_type(node.output.tensor.dtype)};"


@record
class _Shared:
    """How rows are shared by threads.

    Attributes:
        blocks, threads: their number, and that of the threads of each.
        count: the number of elements of a row.
        wide: by operand, whether it has more than one element for each row.
        index: the type of indices.
        args: of the launch.
        constants: of the kernel.
    """

    blocks: int
    threads: int
    count: int
    wide: tuple[bool, ...]
    index: DType
    args: Mapping[str, Given]
    constants: tuple[tuple[str, int], ...]


def _share(
    found: RowChain,
    results: Sequence[Tensor],
    operands: Sequence[Tensor],
    moved: Mapping[int, Movement],
) -> _Shared | str:
    tensors, made, rows = (*results, *operands), len(results), found.rows
    same = next((t for t in tensors if t.dims == rows.dims), results[0])
    x = Tensor(found.folds[0].operands[0], same.format)
    refused = refusal(x, operands, moved)
    cuts = factors_of(rows.dims, tuple(moved.values()))
    if refused or cuts is None or not x.size:
        return refused or "no elements"
    walks = [
        _walk_of_result(t, rows, x, cuts) if i < made else walk_of(t, moved.get(i - made), x, cuts)
        for i, t in enumerate(tensors)
    ]
    if any(walk.table is not None for walk in walks):
        return "operands are not where strides lead"
    axes = _axes(rows, x, cuts, walks)
    folds, stays, lines = axes.folded, axes.kept, axes.strides
    number, count = prod(rows.dropped), rows.count
    wide = [any(line[i] for i in folds) for line in lines]
    along = axes.numbers[-1] == 0
    head, slots = tensors.index(same), [(0,) * len(axes.sizes)] * len(tensors)
    most, parts = vector_of((same, *tensors), axes.sizes, (lines[head], *lines, *slots), walks)
    kept = MAX_KEPT // max(sum(wide[made:]), 1)
    nbytes = max(t.dtype.itemsize for t in tensors)
    split = _along if along else _apart
    vector, shares, threads = split(number, count, most, kept, nbytes)
    per = ceil_div(count, shares * (vector if along else 1))
    if per * vector > 2 * kept:
        return f"rows of {count} elements"
    parts = [min(part, vector) for part in parts]

    def of_rows(line: Ints) -> Ints:
        return tuple(line[i] for i in stays) or (0,)

    def of_row(line: Ints) -> Ints:
        return tuple(line[i] for i in folds)

    outer, inner = (of_rows(axes.sizes) if stays else (1,)), of_row(axes.sizes)
    args: dict[str, Given] = {"rows": number, "count": count, "sizes": outer, **divisors(outer)}
    args |= {"folds": inner, **{f"fold_{name}": v for name, v in divisors(inner).items()}}
    constants = [
        *(("RANK", len(outer)), ("FOLDED", len(inner)), ("VECTOR", vector), ("PER", per)),
        *(("THREADS", threads), ("SHARES", shares), ("ALONG", along)),
    ]
    for i, y in enumerate(results):
        args |= {f"y{i}": y, f"lines{i}": of_rows(lines[i]), f"into{i}": of_row(lines[i])}
        constants += [(f"OUTER{i}", max(parts[i], 1)), (f"WHOLE{i}", y.dims == rows.dims)]
    for i, a in enumerate(operands):
        line = lines[made + i]
        args |= {f"a{i}": a, f"strides{i}": of_rows(line), f"steps{i}": of_row(line)}
        args[f"origin{i}"] = walks[made + i].origin
        constants += [(f"INNER{i}", parts[made + i]), (f"WIDE{i}", wide[made + i])]
    index = index_type(number, count, *(t.extent for t in tensors))
    wide = tuple(wide[made:])
    blocks = ceil_div(number, threads // shares * (1 if along else vector))
    return _Shared(blocks, threads, count, wide, index, args, tuple(constants))


@record
class _Axes:
    """Axes of rows and of their elements, in memory order, those merged that can be.

    Attributes:
        sizes: of the axes.
        numbers: strides of one number for each row.
        strides: of the tensors.
    """

    sizes: Ints
    numbers: Ints
    strides: tuple[Ints, ...]

    @property
    def kept(self) -> list[int]:
        """The places of the axes of rows."""
        return [i for i, step in enumerate(self.numbers) if step]

    @property
    def folded(self) -> list[int]:
        """The places of the axes within a row."""
        return [i for i, step in enumerate(self.numbers) if not step]


def _walk_of_result(y: Tensor, rows: Rows, x: Tensor, cuts: Sequence[Ints]) -> Walk:
    """Return the places of a result along the factors of the axes of rows."""
    if y.dims != rows.dropped:
        return walk_of(y, None, x, cuts)
    own = iter(y.strides)
    steps = [0 if axis in rows.axes else next(own) for axis in range(x.rank)]
    return _plain_walk(steps, cuts)


def _plain_walk(steps: Sequence[int], cuts: Sequence[Ints]) -> Walk:
    """Return the walk of these strides along axes, which are cut into factors."""
    pairs = zip(cuts, steps, strict=True)
    strides = tuple(s for sizes, step in pairs for s in inner_strides(sizes, step))
    return Walk(0, strides, None, (0,) * len(strides))


def _axes(rows: Rows, x: Tensor, cuts: Sequence[Ints], walks: Sequence[Walk]) -> _Axes:
    numbers = _plain_walk(broadcast_strides(rows.kept, Format.CONTIGUOUS, rows.dims), cuts)
    firsts = [sum(map(len, cuts[:axis])) for axis in range(x.rank)]
    places = [firsts[a] + i for a in order(x.rank, x.format) for i in range(len(cuts[a]))]
    flat = [size for axis in cuts for size in axis]
    lines = [tuple(walk.strides[p] for p in places) for walk in (numbers, *walks)]
    sizes, merged = merge([flat[p] for p in places], lines)
    return _Axes(sizes, merged[0], merged[1:])


def _along(rows: int, count: int, vector: int, kept: int, nbytes: int) -> tuple[int, int, int]:
    """Return how threads share rows whose elements are adjacent: more share one if rows are few.

    Args:
        rows: their number.
        count: the number of elements of a row.
        vector: maximum number of elements of a word.
        kept: the elements that a thread keeps.
        nbytes: of an element.

    Returns:
        Elements of a word, threads of a row, threads of a block.
    """
    words, shares = count // vector, 1
    # Adjacent threads read adjacent rows if these are that short.
    least = 1 if count * nbytes <= SECTOR else min(WARP, SECTOR // (vector * nbytes))
    while shares < min(MAX_ALONG, words) and (
        ceil_div(words, shares) * vector > kept or shares < least or rows * shares < ENOUGH
    ):
        shares *= 2
    return vector, shares, max(THREADS, shares)


def _apart(rows: int, count: int, vector: int, kept: int, nbytes: int) -> tuple[int, int, int]:
    """Return the same of rows that are side by side, of which a thread has as many as a word."""
    few = ceil_div(count, MAX_APART)
    while vector > 1 and (few * vector > kept or rows // vector * MAX_APART < ENOUGH):
        vector //= 2
    shares = 1
    while shares < min(MAX_APART, count) and (
        ceil_div(count, shares) * vector > kept or rows // vector * shares < ENOUGH
    ):
        shares *= 2
    beside = max(2 * THREADS // shares, min(WARP, SECTOR // (vector * nbytes)))
    return vector, shares, beside * shares
