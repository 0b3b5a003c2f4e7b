"""Normalizations of rows that fit in registers, by mean, variance or length."""

from __future__ import annotations

from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, DType, float32, float64
from ....runtime.plan.format import Format
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Tensor, ceil_div
from ..recipe.targets import Target

#: What `ldmatrix.cuh` converts to.
KIND_OF_HALVES = '#define KIND "f16"'
#: Maximum elements per thread, and warps per row.
MAX_KEPT, MAX_WARPS = 32, 16
#: Maximum rows of which each has several warps, even if one has registers for it, and elements per
#: thread then: these blocks find idle multiprocessors. On an H200, decoding steps of 12 to 48
#: sequences take about 1 to 2 % less time at the sizes of Llama-3.2-1B, 3-8B and Qwen2.5-0.5B, of 8
#: as long, and of 64 in float16 1 % more.
FEW_ROWS, FEW_KEPT = 48, 8
#: The same of rows stored in halves, which takes longer than all the rest. On an H200 BERT-base and
#: ViT-B take 1 to 5 % less time with 197 to 591 rows, with 768 rows 1 % more.
MAX_ROWS = 640
#: Threads per block if it has several rows, and numbers of threads that may have one.
TOGETHER, LANES = 128, (32, 16, 8, 4)
#: Minimum threads, over all rows, of which twice as many are a block where each has one word: to
#: start a block takes as long as what it does. On an H200 131072 rows of 64 float16 elements take
#: 7.1 µs instead of 10.8 then, 8192 of 256 2.5 instead of 3.1, SegFormer-B0 at batch 32 3 % less.
MANY_THREADS = 1 << 17
#: Minimum bytes that threads of a row read next to one another.
SECTORS = 64
#: Maximum number of blocks that load operands of the epilogue, and a scale and shift that are no
#: constants or in narrow words, ahead: more of them wait for memory, not for these.
MAX_EARLY = 264
#: Registers of a multiprocessor, and of a thread besides elements, scale, shift and operands.
REGISTERS, SPARE = 1 << 16, 32
#: Maximum rows of which the next kernel starts while this one waits, except in float32: a product
#: with few rows loads its weights meanwhile; float32 products do not share multiprocessors.
#: With more rows they would: BERT-base at batch 1 in float16 took 3 % longer on an H100.
MAX_LAUNCHING = 64
#: Maximum blocks per multiprocessor, of more than one, that are spread evenly. On an H100
#: Whisper's encoder, with 1500 rows, takes 4 % less time in float32 then, 3 % in float16; BERT-base
#: at batch 32, with eight blocks per multiprocessor, would take 1 % more.
MAX_SPREAD = 4
#: Share of multiprocessors beyond which blocks of float32 results have one each: fewer find idle
#: ones. On an H100 at batch 1, Swin-T and ConvNeXtV2 take 1.5 % less time then, Twins 0.6 %; in
#: float16 Swin-T would take 0.7 % more. Neither these nor those that are spread are stored in
#: halves: products of such rows request their weights beside blocks that leave them room. On an
#: H200 at batch 1, OPT-125M takes 4 % less time so, DINOv2 and Swin-T 1.3 %.
ALONE = 1 / 4


@record
class ScaleShift:
    """The operands that scale and shift the normalized elements.

    Attributes:
        scale: factors.
        shift: addends.
        channel: their axis in the elements, and that of an epilogue's operands; None for the last
            axes.
    """

    scale: Tensor | None = None
    shift: Tensor | None = None
    channel: int | None = None


@record
class RowStatistic:
    """What rows are divided by, and what is subtracted before.

    Attributes:
        epsilon: added to the variance, or minimum of what divides.
        centred: whether the mean is subtracted.
        by_mean: whether it divides, instead of the length.
        factor: of the mean or the length.
        is_added: whether `epsilon` is added to these, rather than their minimum.
        heads: equal parts of a row, each of which is normalized.
        apart: whether heads have separate scales and shifts: one each, or one per element.
    """

    epsilon: float
    centred: bool = False
    by_mean: bool = False
    factor: float = 1.0
    is_added: bool = False
    heads: int = 1
    apart: bool = False


@record
class RowPlaces:
    """Which rows are normalized; all in order unless `places` are given.

    Attributes:
        places: which row of the elements, int64, each result is of.
        moved: stores these rows as they are; None if nothing does.
        behind: whether the rows of the epilogue's operands are at these places, too.
    """

    places: Tensor | None = None
    moved: Tensor | None = None
    behind: bool = False

    @property
    def flags(self) -> tuple[tuple[str, int | bool], ...]:
        """Compile-time constants for it."""
        gathered = 0 if self.places is None else 2 if self.behind else 1
        return ("GATHERED", gathered), ("MOVED", self.moved is not None)


@record
class NormAgain:
    """A second normalization of the results.

    Attributes:
        y: what it stores.
        scale, shift: as in `ScaleShift`, one element per element of a row.
        epsilon: added to the variance.
        centred: whether the mean is subtracted.
    """

    y: Tensor
    scale: Tensor
    shift: Tensor | None
    epsilon: float
    centred: bool


#: No scale and shift; all rows, in order.
_PLAIN, _IN_ORDER = ScaleShift(), RowPlaces()


def normalize_rows(
    y: Tensor,
    x: Tensor,
    axis: int,
    how: RowStatistic,
    epilogue: Epilogue,
    target: Target | None = None,
    *,
    affine: ScaleShift = _PLAIN,
    gathered: RowPlaces = _IN_ORDER,
    again: NormAgain | None = None,
) -> Launch | None:
    """Return the launch for rows of the axes from `axis` on; None if it does not apply.

    Args:
        y: the result.
        x: the elements.
        axis: the first axis of a row.
        how: the statistic.
        epilogue: applied to the results.
        target: the GPU over which blocks are spread; None if this does not matter.
        affine: one element per element of a row, unless heads have their own.
        gathered: the rows.
        again: what normalizes the results, or None; `y` is not stored if the epilogue is not plain.
    """
    whole, scale, shift, places = prod(x.dims[axis:]), affine.scale, affine.shift, gathered.places
    count = whole // how.heads
    rows = (prod(x.dims[:axis]) if places is None else places.size) * how.heads
    given = [each for each in (scale, shift) if each is not None]
    parameter = x.dtype if scale is None else scale.dtype
    if not count or rows >= 2**31 or not _has_types((x, y), given, parameter):
        return None
    size = given[0].size if how.apart else count
    if any(t.size != size for t in given) or (how.apart and size not in (how.heads, whole)):
        return None
    if any(t.format is not Format.CONTIGUOUS for t in (y, x)):
        return None
    if epilogue.reads_channels and (whole != x.dims[-1] or how.heads > 1):
        return None
    maximum = 16 // max(x.dtype.itemsize, parameter.itemsize)
    distance = x.row if whole == x.dims[-1] else whole
    steps = (count, distance, *(t.row for z in epilogue.apart for t in (z, y)))
    vector = next(v for v in (8, 4, 2, 1) if v <= maximum and not any(n % v for n in steps))
    few = rows <= (FEW_ROWS if epilogue.halves is None else MAX_ROWS)
    block = _block_of(rows, count, vector, x.dtype.itemsize, few)
    if block is None:
        return None
    blocks, per = ceil_div(rows, block.rows), ceil_div(count // vector, block.of_row)
    in_halves = vector == 4 and block.lanes >= 16 and count % 64 == 0 and how.heads == 1
    if epilogue.halves is not None and not in_halves:
        return None
    few_blocks = blocks <= MAX_EARLY
    factors = 0 if how.apart and size == how.heads else len(given) * parameter.itemsize
    operands = len(epilogue.operands) * epilogue.sums.itemsize
    early = few_blocks and block.has_room(per * vector, factors + operands, 1)
    ahead = bool(given) and (vector == maximum or few_blocks)
    ahead = ahead and block.has_room(per * vector, factors, 1 if few_blocks else 2)
    return Launch(
        "norm/normalize_rows.cu",
        "normalize_rows",
        grid=(blocks, 1, 1),
        block=block.threads,
        args={
            **{"x": x, "scale": scale, "shift": shift, "y": y if epilogue.plain else None},
            **{"halves": epilogue.halves, **epilogue.args},
            **{"rows": rows, "row_x": distance, "count": count, "epsilon": how.epsilon},
            **{"multiple": how.factor, "places": places, "moved": gathered.moved},
            **{"scale_again": again and again.scale, "shift_again": again and again.shift},
            "epsilon_again": 0.0 if again is None else again.epsilon,
            "again": again and again.y,
        },
        types=(
            ("X", x.dtype),
            ("S", parameter),
            ("A", (again.y if again else y).dtype),
            *epilogue.types,
        ),
        constants=(
            *(("WARPS", block.warps), ("LANES", block.lanes), ("ROWS", block.rows)),
            *(("VECTOR", vector), ("PER", per), ("WHOLE", count == per * vector * block.of_row)),
            ("CENTRED", how.centred),
            *(("BY_MEAN", how.by_mean), ("ADDED", how.is_added)),
            *(("SCALED", scale is not None), ("SHIFTED", shift is not None)),
            ("AHEAD", ahead and all(t.data is not None for t in given)),
            *(("EARLY", early), ("HEADS", how.heads), *epilogue.flags(None)[1:]),
            ("PARAMETERS", (1 if size == how.heads else 2) if how.apart else 0),
            *(*gathered.flags, ("TWICE", again is not None)),
            ("MEAN_AGAIN", again is not None and again.centred),
            ("SHIFTED_AGAIN", again is not None and again.shift is not None),
            ("LAUNCHES", rows // how.heads <= MAX_LAUNCHING or y.dtype == float32),
        ),
        code="\n".join((KIND_OF_HALVES, epilogue.halves_code, epilogue.code)),
        shared=_spread(blocks, y.dtype, target) if epilogue.halves is None else 0,
        note=f"{rows} x {count} {epilogue.title}".strip() + (", twice" if again else ""),
        pitched=(*epilogue.pitched, *((x,) if whole == x.dims[-1] else ())),
    )


def _has_types(rows: tuple[Tensor, ...], given: list[Tensor], parameter: DType) -> bool:
    """Return whether the kernel has rows and parameters of these dtypes."""
    return all(t.dtype in FLOATS and t.dtype != float64 for t in rows) and all(
        t.dtype == parameter and t.dtype != float64 for t in given
    )


@record
class _Block:
    """The threads of a block.

    Attributes:
        warps: per row.
        lanes: threads of a warp that have one row.
        rows: of a block; several only if each has one warp or less.
    """

    warps: int
    lanes: int
    rows: int

    @property
    def of_row(self) -> int:
        """Threads that have one row."""
        return self.lanes * self.warps

    @property
    def threads(self) -> int:
        return self.of_row * self.rows

    def has_room(self, own: int, nbytes: int, resident: int) -> bool:
        """Return whether a multiprocessor has registers for what threads keep.

        Args:
            own: elements of a thread, which are in float32.
            nbytes: of what it keeps besides, for each of them.
            resident: number of blocks on a multiprocessor.
        """
        words = own * (4 + nbytes) // 4 + SPARE
        return resident * self.threads * words <= REGISTERS


def _block_of(rows: int, count: int, vector: int, itemsize: int, few: bool) -> _Block | None:
    """Return the threads for rows of `count` elements; None if these do not fit in registers.

    Args:
        rows: their number.
        count: elements of a row.
        vector: elements of a word.
        itemsize: bytes of an element.
        few: whether there are so few rows that more warps share one.
    """
    warps = 1
    while warps < MAX_WARPS and count > 32 * warps * MAX_KEPT:
        warps *= 2
    if few:
        warps = max(warps, min(ceil_div(count, 32 * FEW_KEPT), MAX_WARPS))
    if count > 32 * warps * MAX_KEPT:
        return None
    if warps > 1:
        return _Block(warps, 32, 1)
    lanes = lanes_of(count // vector, MAX_KEPT // vector, vector * itemsize)
    short = lanes * vector >= count and rows * lanes >= MANY_THREADS
    return _Block(1, lanes, (2 if short else 1) * TOGETHER // lanes)


def _spread(blocks: int, dtype: DType, target: Target | None) -> int:
    """Return the shared memory that keeps blocks apart, see `Target.alone` and `spread`."""
    if target is None or not target.has_clusters:
        return 0
    if blocks > target.processors:
        return target.spread(blocks) if blocks <= MAX_SPREAD * target.processors else 0
    return target.alone(0) if dtype == float32 and blocks > ALONE * target.processors else 0


def lanes_of(words: int, maximum: int, nbytes: int) -> int:
    """Return the threads of a row that leave the fewest idle, each with at most `maximum` words.

    A row of 96 float16 elements is 12 words: 4 threads read three each; of 32, 20 would wait. Those
    of a row read whole sectors at a time, so there are more of them for small words.

    Args:
        words: of a row.
        maximum: words of a thread.
        nbytes: of a word.
    """
    usable = [
        lanes
        for lanes in LANES
        if ceil_div(words, lanes) <= max(maximum, 1) and lanes >= min(32, SECTORS // nbytes)
    ]
    return min(usable, key=lambda lanes: ceil_div(words, lanes) * lanes)
