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


def _launch(
    y: Tensor,
    operands: Sequence[Tensor],
    moved: Mapping[int, Movement],
    scanned: _Scanned,
) -> Launch | str:
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
    flat = [size for axis in cuts for size in axis]
    begin = sum(map(len, cuts[: scanned.axis]))
    inside = range(begin, begin + len(cuts[scanned.axis]))
    across = [i for i in range(len(flat)) if i not in inside]
    along, steps = merge([flat[i] for i in inside], [tuple(row[i] for i in inside) for row in rows])
    sizes, lines = merge([flat[i] for i in across], [tuple(row[i] for i in across) for row in rows])
    size, *more = along
    if more:
        return "elements of a line have no common distance"
    count = prod(flat[i] for i in across)
    reverse = bool(scanned.ops[0].reverse)
    is_row = steps[0] == (1,)
    beside = 1 if is_row else _beside(count, size)
    most = MAX_ALONG if is_row else max(MAX_BESIDE, WIDE // beside)
    vector = FEW if y.size < ENOUGH * MANY and size <= most * FEW * TILES else MANY
    each = 2 * beside * sum(arithmetic(dtype).itemsize for dtype in scanned.dtypes)
    shares = 1
    while shares < most and shares * vector < size and (is_row or 2 * shares * each <= EXCHANGED):
        shares *= 2
    threads = max(THREADS, shares * beside)
    reads = [
        _adjacent(x, walk.origin, move[0], line, size, vector, reverse=reverse)
        for x, walk, move, line in zip(
            (y, *operands), (walk_of(y, None, y, cuts), *walks), steps, lines, strict=True
        )
    ]
    numbers = range(len(operands))
    args: dict[str, Given] = {"y": y, "strides": lines[0], "step": steps[0][0], "lines": count}
    args |= {"size": size, "sizes": sizes, **divisors(sizes)}
    for i, x in enumerate(operands):
        args |= {f"a{i}": x, f"strides{i}": lines[i + 1], f"step{i}": steps[i + 1][0]}
        args[f"origin{i}"] = walks[i].origin
    return Launch(
        "reduce/scan_chain.cu",
        "scan_chain",
        grid=(ceil_div(count, threads // shares), 1, 1),
        block=threads,
        args=args,
        types=(
            ("Index", index_type(y.extent, count, size, *(x.extent for x in operands))),
            ("Y", y.dtype),
            *((f"A{i}", x.dtype) for i, x in enumerate(operands)),
        ),
        constants=(
            *(("RANK", len(sizes)), ("VECTOR", vector), ("THREADS", threads), ("SHARES", shares)),
            *(("ALONG", is_row), ("REVERSE", reverse), ("STORED", reads[0])),
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
