"""The kernel of scans with elementwise operators: each thread has some elements of a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd, prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.graph import Node, Value
from ....runtime.ops.reduce import CumSum, Cumulative
from ..recipe.launch import Launch
from ..recipe.operands import Given, Ints, Tensor, ceil_div, divisors, index_type, merge
from ..recipe.source import arithmetic
from .chain_kernel import factors_of, refusal, walk_of
from .elementwise import compute_type
from .moves import Movement
from .scans import ScanChain
from .stages import Stage, stage_of

#: Threads of a block, lanes of a warp; threads that share a line at most, if its elements are
#: adjacent or far apart; and bytes of shared memory for what they exchange.
THREADS, WARP, MAX_ALONG, MAX_BESIDE, EXCHANGED = 128, 32, 256, 32, 32 << 10
#: Threads of a block that has few lines side by side; lines that are few, and how many a block has.
WIDE, FEW_LINES, SECTOR = 512, 1 << 10, 8
#: Elements of a thread: many, unless threads are few, and so are the tiles of a line.
MANY, FEW, ENOUGH, TILES = 8, 4, 1 << 17, 4
#: Maximum length of a line where there are few lines: longer ones are cut into several blocks.
LONG, LINES = 2048, 1 << 13


@record
class _Scanned:
    """Scans along an axis, with the code of what is around them."""

    ops: tuple[Cumulative, ...]
    dtypes: tuple[DType, ...]
    axis: int
    code: str
    title: str


def scan_chain(found: ScanChain, y: Tensor, operand: Callable[[Value], Tensor]) -> Launch | str:
    """Return the launch, or why there is none."""
    if not suits(y.dims, found.axis):
        return f"few lines of {y.dims[found.axis]} elements"
    scans = {node.output: i for i, node in enumerate(found.scans)}
    stages = list[Stage]()
    last = found.chain[-1].output
    wanted = [(node.operands[0], f"feed{i}") for i, node in enumerate(found.scans)]
    for value, name in (*wanted, (last, "after")):
        stage = stage_of(found.chain, found.scans, value, name, rounds=value is last)
        if isinstance(stage, str):
            return stage
        stages.append(stage)
    values = [v for v in dict.fromkeys(v for s in stages for v in s.operands) if v not in scans]
    moved = {each.y: each for each in found.moves}
    operands = [operand(moved[v].x if v in moved else v) for v in values]
    names = {v: f"words{i}.at[q]" for i, v in enumerate(values)}
    names |= {v: f"sums{i}[q]" for v, i in scans.items()}
    code = [stage.code for stage in stages]
    for i, node in enumerate(found.scans):
        code += _scan(i, _op(node), node.output.tensor.dtype)
        code.append(f"#define FEED{i}(q) {stages[i].call(names)}")
    code.append(f"#define RESULT(q) {stages[-1].call(names)}")
    title = "+".join(type(node.op).__name__ for node in found.chain)
    places = {i: moved[v] for i, v in enumerate(values) if v in moved}
    scanned = _Scanned(
        tuple(map(_op, found.scans)),
        tuple(v.tensor.dtype for v in scans),
        found.axis,
        "\n".join(filter(None, code)),
        title,
    )
    return _launch(y, operands, places, scanned)


def plain_scan(op: Cumulative, y: Tensor, x: Tensor, axis: int) -> Launch | str:
    """Return the launch of a scan alone, or why there is none."""
    lines = _scan(0, op, x.dtype)
    lines += ["#define FEED0(q) words0.at[q]", "#define RESULT(q) sums0[q]"]
    scanned = _Scanned(
        (op,), (x.dtype,), axis, "\n".join(['#include "elementwise/functions.cuh"', *lines]), ""
    )
    return _launch(y, [x], {}, scanned)


def suits(dims: Ints, axis: int) -> bool:
    """Whether lines are short, or many, so that no line needs more than one block."""
    size = dims[axis]
    return prod(dims) > 0 and (size <= LONG or prod(dims) // size >= LINES)


def _op(scan: Node) -> Cumulative:
    assert isinstance(scan.op, Cumulative)
    return scan.op


def _scan(number: int, op: Cumulative, dtype: DType) -> list[str]:
    """Return a scan as C++: the type of its sums, where they start and how they are combined."""
    adds, kind = isinstance(op, CumSum), compute_type(dtype)
    return [
        f"struct Scan{number} {{",
        f"    using Sum = {kind};",
        f"    static constexpr bool EXCLUSIVE = {'true' if op.exclusive else 'false'};",
        f"    static __device__ __forceinline__ Sum start() {{ return Sum({int(not adds)}); }}",
        "    __device__ __forceinline__ Sum operator()(Sum a, Sum b) const",
        f"    {{ return a {'+' if adds else '*'} b; }}",
        "};",
    ]


@record
class _Lines:
    """The lines along which elements are scanned.

    Attributes:
        size: elements of a line.
        count: how many lines.
        steps: from an element of a line to the next, of the result and each operand.
        sizes: of the axes across lines, as few as there can be.
        strides: over these, of the result and each operand.
        origins: number of the first element, of the result and each operand.
    """

    size: int
    count: int
    steps: tuple[int, ...]
    sizes: Ints
    strides: tuple[Ints, ...]
    origins: tuple[int, ...]


def _lines_of(
    y: Tensor, operands: Sequence[Tensor], moved: Mapping[int, Movement], axis: int
) -> _Lines | str:
    """Return the lines along an axis of the result, or why operands do not have such lines."""
    refused = refusal(y, operands, moved)
    cuts = factors_of(y.dims, tuple(moved.values()))
    if refused or cuts is None:
        return refused
    walks = [walk_of(x, moved.get(i), y, cuts) for i, x in enumerate(operands)]
    if any(walk.table is not None for walk in walks):
        return "operands are not where strides lead"
    own = [
        s * prod(cut[i + 1 :])
        for s, cut in zip(y.strides, cuts, strict=True)
        for i in range(len(cut))
    ]
    rows = [tuple(own), *(walk.strides for walk in walks)]
    flat = [size for part in cuts for size in part]
    begin = sum(map(len, cuts[:axis]))
    inside = range(begin, begin + len(cuts[axis]))
    across = [i for i in range(len(flat)) if i not in inside]
    along, steps = merge([flat[i] for i in inside], [tuple(row[i] for i in inside) for row in rows])
    sizes, lines = merge([flat[i] for i in across], [tuple(row[i] for i in across) for row in rows])
    size, *more = along
    if more:
        return "elements of a line have no common distance"
    origins = (walk_of(y, None, y, cuts).origin, *(walk.origin for walk in walks))
    firsts = tuple(step[0] for step in steps)
    return _Lines(size, prod(flat[i] for i in across), firsts, sizes, tuple(lines), origins)


@record
class _Shares:
    """How threads share lines.

    Attributes:
        vector: adjacent elements of a thread.
        along: threads that share a line.
        threads: of a block.
    """

    vector: int
    along: int
    threads: int


def _shares_of(y: Tensor, lines: _Lines, dtypes: Sequence[DType]) -> _Shares:
    is_row = lines.steps[0] == 1
    beside = 1 if is_row else _beside(lines.count, lines.size)
    most = MAX_ALONG if is_row else max(MAX_BESIDE, WIDE // beside)
    few = y.size < ENOUGH * MANY and lines.size <= most * FEW * TILES
    vector = FEW if few else MANY
    each = 2 * beside * sum(arithmetic(dtype).itemsize for dtype in dtypes)
    along = 1
    while (
        along < most and along * vector < lines.size and (is_row or 2 * along * each <= EXCHANGED)
    ):
        along *= 2
    return _Shares(vector, along, max(THREADS, along * beside))


def _launch(
    y: Tensor,
    operands: Sequence[Tensor],
    moved: Mapping[int, Movement],
    scanned: _Scanned,
) -> Launch | str:
    lines = _lines_of(y, operands, moved, scanned.axis)
    if isinstance(lines, str):
        return lines
    shares, reverse = _shares_of(y, lines, scanned.dtypes), bool(scanned.ops[0].reverse)
    every = zip((y, *operands), lines.origins, lines.steps, lines.strides, strict=True)
    reads = [
        _adjacent(x, origin, step, line, lines.size, shares.vector, reverse=reverse)
        for x, origin, step, line in every
    ]
    numbers, size, count, sizes = range(len(operands)), lines.size, lines.count, lines.sizes
    args: dict[str, Given] = {
        "y": y,
        "strides": lines.strides[0],
        "step": lines.steps[0],
        "lines": count,
    }
    args |= {"size": size, "sizes": sizes, **divisors(sizes)}
    for i, x in enumerate(operands):
        args |= {f"a{i}": x, f"strides{i}": lines.strides[i + 1], f"step{i}": lines.steps[i + 1]}
        args[f"origin{i}"] = lines.origins[i + 1]
    return Launch(
        "reduce/scan_chain.cu",
        "scan_chain",
        grid=(ceil_div(count, shares.threads // shares.along), 1, 1),
        block=shares.threads,
        args=args,
        types=(
            ("Index", index_type(y.extent, count, size, *(x.extent for x in operands))),
            ("Y", y.dtype),
            *((f"A{i}", x.dtype) for i, x in enumerate(operands)),
        ),
        constants=(
            *(("RANK", len(sizes)), ("VECTOR", shares.vector)),
            *(("THREADS", shares.threads), ("SHARES", shares.along)),
            *(("ALONG", lines.steps[0] == 1), ("REVERSE", reverse), ("STORED", reads[0])),
            *((f"INNER{i}", reads[i + 1]) for i in numbers),
        ),
        code="\n".join(
            [
                scanned.code,
                f"#define OPERANDS(X) {' '.join(f'X({i})' for i in numbers)}",
                f"#define SCANS(X) {' '.join(f'X({i})' for i in range(len(scanned.ops)))}",
            ]
        ),
        note=f"{scanned.title} of {size}".strip(),
        pitched=(y, *operands),
    )


def _beside(count: int, size: int) -> int:
    """Return how many lines side by side a block has: few if there are few, and these are long."""
    beside = min(WARP, 1 << max(0, count - 1).bit_length())
    if size > MAX_BESIDE * FEW * TILES and count < FEW_LINES:
        beside = min(beside, SECTOR)
    return beside


def _adjacent(
    x: Tensor, origin: int, step: int, line: Ints, size: int, vector: int, *, reverse: bool
) -> int:
    """Return how many adjacent elements of a line are read or written at once."""
    if step != 1 or reverse:
        return 1
    return gcd(vector, 16 // x.dtype.itemsize, size, origin, *line)
