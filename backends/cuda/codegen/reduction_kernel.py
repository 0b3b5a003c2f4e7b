"""The kernel of a reduction of a chain: operands are read where they are, results by threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, DType, bool_, float64
from ....runtime.ir.graph import Value
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
from .chain_kernel import factors_of, inner_strides, refusal, table_of, vector_of, walk_of
from .elementwise import NUMBERS, ElementwiseChain, chain_of, unchanged
from .folds import FOLDS
from .moves import Movement
from .reductions import ChainReduction

THREADS, WARP = 256, 32
#: Maximum number of operands.
MAX_OPERANDS = 8
#: Threads that keep a GPU busy: fewer results are shared by more threads each.
ENOUGH = 1 << 16
#: Threads that share a result whose elements are far apart, where these are few.
FEW_SHARES = 16
#: Rows of such elements that a thread reduces alone at most, before it reads the widest words, and
#: more threads share a result, while those of a block read as many adjacent bytes of a row.
MAX_ROWS, SECTOR = 8, 32
#: Vectors of a row that a thread reduces where there are many rows: with one, a warp would end
#: before the next one starts.
SERIAL = 4
#: Bytes of operands that a thread requests before it combines the first, and rows of them at most.
AHEAD_BYTES, MAX_AHEAD = 256, 8
#: Elements that one thread reduces at most where there are few blocks; others take several passes.
MAX_SERIAL, FEW_BLOCKS = 64, 64


def chain_reduction(
    found: ChainReduction, y: Tensor, operand: Callable[[Value], Tensor]
) -> Launch | str:
    """Return the launch, or why there is none."""
    value = found.fold.operands[0]
    chain = chain_of(found.chain, rounds=False) if found.chain else unchanged(value)
    behind = chain_of(found.behind, "after", sums=[found.fold.output]) if found.behind else None
    if isinstance(chain, str):
        return chain
    if isinstance(behind, str):
        return behind
    moved = {each.y: each for each in found.moves}
    places = {i: moved[v] for i, v in enumerate(chain.operands) if v in moved}
    operands = [operand(moved[v].x if v in moved else v) for v in chain.operands]
    more = [] if behind is None else [operand(v) for v in behind.operands[1:]]
    if not value.tensor.size or len(operands) + len(more) > MAX_OPERANDS or not operands:
        return f"{len(operands) + len(more)} operands"
    whole = (t for t in operands if t.dims == value.tensor.dims)
    x = Tensor(value, next(whole, y).format)
    how, compute = FOLDS[type(found.fold.op)], arithmetic(x.dtype)
    if x.dtype not in NUMBERS | {bool_}:
        return f"dtype {x.dtype.name}"
    if how.floating and compute not in FLOATS:
        compute = float64
    refused = refusal(x, operands, places)
    if refused:
        return refused
    spread = _spread(found, y, x, operands, more, places)
    if isinstance(spread, str):
        return spread
    numbers, others = range(len(operands)), range(len(more))
    reads = "".join(f", b{j}[place{j} + q * places{j}.at[RANK - 1]]" for j in others)
    result = "Y(a)" if behind is None else f"after(a{reads})"
    title = [chain.title, type(found.fold.op).__name__, "" if behind is None else behind.title]
    return Launch(
        "reduce/reduce_chain.cu",
        "reduce_chain",
        grid=(ceil_div(spread.results, THREADS // spread.shares * spread.columns), 1, 1),
        block=THREADS,
        args={"y": y, **spread.args},
        types=(
            *(("Index", spread.index), ("Y", y.dtype), ("A", compute)),
            *((f"A{i}", t.dtype) for i, t in enumerate(operands)),
            *((f"B{j}", t.dtype) for j, t in enumerate(more)),
        ),
        constants=(("SHARES", spread.shares), ("ALONG", spread.along), *spread.constants),
        code="\n".join(
            [
                how.code(float64 if compute is float64 else x.dtype),
                *_apart(chain, behind),
                f"#define OPERANDS(X) {' '.join(f'X({i})' for i in numbers)}",
                f"#define BEHIND(X) {' '.join(f'X({j})' for j in others)}",
                f"#define ELEMENT(q) chain({', '.join(f'words{i}[row].at[q]' for i in numbers)})",
                f"#define RESULT(a, q) {result}",
            ]
        ),
        note="+".join(filter(None, title)) + f" of {spread.count}",
        pitched=(y, *operands, *more),
    )


def _apart(chain: ElementwiseChain, behind: ElementwiseChain | None) -> Iterator[str]:
    """Yield the code of both chains."""
    if behind is None:
        yield chain.code
        return
    yield from (chain.within("before"), "using before::chain;")
    yield from (behind.within("behind"), "using behind::after;")


@record
class _Spread:
    """How results and their elements are shared by threads.

    Attributes:
        results, count: the number of results, and of elements of each.
        vector, shares, along: see `reduce_chain.cu`.
        index: the type of indices.
        args: of the launch.
        constants: of the kernel.
    """

    results: int
    count: int
    vector: int
    shares: int
    along: bool
    index: DType
    args: Mapping[str, Given]
    constants: tuple[tuple[str, int], ...]

    @property
    def columns(self) -> int:
        """Adjacent results of a thread."""
        return 1 if self.along else self.vector


def _spread(
    found: ChainReduction,
    y: Tensor,
    x: Tensor,
    operands: Sequence[Tensor],
    more: Sequence[Tensor],
    moved: Mapping[int, Movement],
) -> _Spread | str:
    """Return how threads share the work, or why several passes are better."""
    cuts = factors_of(x.dims, tuple(moved.values()))
    assert cuts is not None
    folded, keeps = found.axes, found.keeps_axes
    kept = [axis for axis in range(x.rank) if keeps or axis not in folded]

    def along_x(steps: Ints) -> list[int]:
        """Return strides along the factors of the axes of x, given those along y."""
        own = {axis: 0 if axis in folded else s for axis, s in zip(kept, steps, strict=True)}
        return [s for a, sizes in enumerate(cuts) for s in inner_strides(sizes, own.get(a, 0))]

    walks = [walk_of(t, moved.get(i), x, cuts) for i, t in enumerate(operands)]
    rows = [along_x(y.strides), *(walk.strides for walk in walks), *(w.slots for w in walks)]
    rows += [along_x(broadcast_strides(t.dims, t.format, y.dims, t.pitch)) for t in more]
    firsts = [sum(map(len, cuts[:axis])) for axis in range(x.rank)]
    places = [firsts[a] + i for a in order(x.rank, x.format) for i in range(len(cuts[a]))]
    flat = [size for axis in cuts for size in axis]
    sizes, merged = merge([flat[p] for p in places], [tuple(r[p] for p in places) for r in rows])
    n = len(operands)
    result, moves, slots = merged[0], merged[1 : n + 1], merged[n + 1 : 2 * n + 1]
    stays = [i for i, step in enumerate(result) if step]
    folds = [i for i, step in enumerate(result) if not step]
    if not folds:
        return "no axis to reduce"
    results, count, along = y.size, prod(sizes[i] for i in folds), not result[-1]
    heads = (operands[0] if along else y, *operands)
    vector, reads = vector_of(heads, sizes, merged[: 2 * n + 1], walks)
    shared = _shares(results, count, vector, operands, along=along)
    if isinstance(shared, str):
        return shared
    shares, vector = shared

    def of_result(row: Ints) -> Ints:
        return tuple(row[i] for i in stays) or (0,)

    def of_fold(row: Ints) -> Ints:
        return tuple(row[i] for i in folds)

    outer, inner = of_result(sizes) if stays else (1,), of_fold(sizes)
    args: dict[str, Given] = {"strides": of_result(result), "results": results, "sizes": outer}
    args |= {**divisors(outer), "count": count, "folds": inner}
    args |= {f"fold_{name}": value for name, value in divisors(inner).items()}
    ahead = _ahead(ceil_div(count, shares * (vector if along else 1)), vector, operands)
    constants = [("RANK", len(outer)), ("FOLDED", len(inner)), ("VECTOR", vector)]
    constants += [("AHEAD", ahead)]
    for i, (t, walk, move, slot) in enumerate(zip(operands, walks, moves, slots, strict=True)):
        args |= {f"a{i}": t, f"strides{i}": of_result(move), f"steps{i}": of_fold(move)}
        args |= {f"table{i}": table_of(walk.table), f"origin{i}": walk.origin}
        args |= {f"slots{i}": of_result(slot), f"slot_steps{i}": of_fold(slot)}
        constants += [(f"INNER{i}", min(reads[i], vector)), (f"TABLED{i}", walk.table is not None)]
    for j, t in enumerate(more):
        args |= {f"b{j}": t, f"places{j}": of_result(merged[2 * n + 1 + j])}
    index = index_type(y.extent, results, count, *(t.extent for t in (*operands, *more)))
    return _Spread(results, count, vector, shares, along, index, args, tuple(constants))


def _shares(
    results: int, count: int, widest: int, operands: Sequence[Tensor], *, along: bool
) -> tuple[int, int] | str:
    """Return how many threads share a result, and how many adjacent elements each computes.

    If there is too much for the few blocks that there would be, return that.

    Args:
        results: number of results.
        count: elements of each.
        widest: maximum number of adjacent elements.
        operands: what is read.
        along: whether elements of a result are adjacent, rather than results.
    """
    shares, vector = _few_shares(results, count, widest, along=along)
    blocks = ceil_div(results * shares, THREADS * (1 if along else vector))
    if blocks < FEW_BLOCKS and count > MAX_SERIAL * shares * (vector if along else 1):
        return f"{count} elements for each of {results} results"
    if along or count <= MAX_ROWS * shares:
        return shares, vector
    nbytes = widest * max(each.dtype.itemsize for each in operands)
    most = max(FEW_SHARES, THREADS * nbytes // SECTOR)
    while shares < min(most, THREADS) and results // widest * shares < ENOUGH:
        shares *= 2
    return shares, widest


def _ahead(rows: int, vector: int, operands: Sequence[Tensor]) -> int:
    """Return how many of its rows, or vectors of its row, a thread requests at once."""
    nbytes = vector * sum(each.dtype.itemsize for each in operands)
    ahead = 1
    while 2 * ahead <= min(rows, MAX_AHEAD, AHEAD_BYTES // nbytes):
        ahead *= 2
    return ahead


def _few_shares(results: int, count: int, vector: int, *, along: bool) -> tuple[int, int]:
    """Return the same without regard to how many elements a thread has.

    Lanes of a warp read adjacent elements; beyond that, threads share results that are few.
    """
    if along:
        steps = ceil_div(count, vector)
        shares = 1 << (ceil_div(steps, SERIAL) - 1).bit_length()
        while shares < min(steps, WARP) and results * shares < 2 * ENOUGH:
            shares *= 2
        shares = min(shares, WARP)
        while shares < THREADS and results * shares < ENOUGH and steps > 4 * shares:
            shares *= 2
        return shares, vector
    while vector > 1 and results // vector * min(count, FEW_SHARES) < ENOUGH:
        vector //= 2
    shares = 1
    while shares < FEW_SHARES and results // vector * shares < ENOUGH and count >= 2 * shares:
        shares *= 2
    return shares, vector
