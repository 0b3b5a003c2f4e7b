"""Normalizations of rows that fit in registers, by mean, variance or length."""

from __future__ import annotations

from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, DType, float32, float64
from ....runtime.plan.format import Format
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Arguments, Tensor, ceil_div
from ..recipe.targets import Target, resident_with

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
#: Registers of a thread besides elements, scale, shift and operands.
SPARE = 32
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
    rows = _rows_of(x, axis, how, affine, gathered)
    if not rows.count or rows.number >= 2**31 or not rows.suit(x, y):
        return None
    if epilogue.reads_channels and rows.are_parts_of(x):
        return None
    layout = _layout_of(rows, x, y, epilogue)
    if layout is None:
        return None
    block, vector, per = layout.block, layout.vector, layout.per
    scale, shift, count, size = affine.scale, affine.shift, rows.count, rows.parameters
    return Launch(
        "norm/normalize_rows.cu",
        "normalize_rows",
        grid=(layout.blocks, 1, 1),
        block=block.threads,
        args={
            **{"x": x, "scale": scale, "shift": shift, "y": y if epilogue.plain else None},
            **{"halves": epilogue.halves, **epilogue.args},
            **{"rows": rows.number, "row_x": rows.distance, "count": count},
            **{"epsilon": how.epsilon, "multiple": how.factor},
            **{"places": gathered.places, "moved": gathered.moved},
            **_second(again),
        },
        types=(
            ("X", x.dtype),
            ("S", rows.parameter),
            ("A", (again.y if again else y).dtype),
            *epilogue.types,
        ),
        constants=(
            *(("WARPS", block.warps), ("LANES", block.lanes), ("ROWS", block.rows)),
            *(("VECTOR", vector), ("PER", per), ("WHOLE", count == per * vector * block.of_row)),
            ("CENTRED", how.centred),
            *(("BY_MEAN", how.by_mean), ("ADDED", how.is_added)),
            *(("SCALED", scale is not None), ("SHIFTED", shift is not None)),
            ("AHEAD", layout.ahead and all(t.data is not None for t in rows.given)),
            *(("EARLY", layout.early), ("HEADS", how.heads), *epilogue.flags(None)[1:]),
            ("PARAMETERS", (1 if size == how.heads else 2) if how.apart else 0),
            *(*gathered.flags, ("TWICE", again is not None)),
            ("MEAN_AGAIN", again is not None and again.centred),
            ("SHIFTED_AGAIN", again is not None and again.shift is not None),
            ("LAUNCHES", rows.number // how.heads <= MAX_LAUNCHING or y.dtype == float32),
        ),
        code="\n".join((KIND_OF_HALVES, epilogue.halves_code, epilogue.code)),
        shared=_spread(layout.blocks, y.dtype, target) if epilogue.halves is None else 0,
        note=f"{rows.number} x {count} {epilogue.title}".strip() + (", twice" if again else ""),
        pitched=(*epilogue.pitched, *((x,) if rows.whole == x.dims[-1] else ())),
    )


def _second(again: NormAgain | None) -> Arguments:
    """Return the arguments of the second normalization."""
    return {
        **{"scale_again": again and again.scale, "shift_again": again and again.shift},
        "epsilon_again": 0.0 if again is None else again.epsilon,
        "again": again and again.y,
    }


@record
class _Rows:
    """Rows, or equal parts of rows, that are normalized each for itself.

    Attributes:
        how: the statistic.
        number: how many.
        count: elements of one.
        whole: elements of all parts of a row.
        distance: elements from a row to the next one.
        given: the scale and the shift, as far as there are any.
        parameter: their dtype.
    """

    how: RowStatistic
    number: int
    count: int
    whole: int
    distance: int
    given: tuple[Tensor, ...]
    parameter: DType

    @property
    def parameters(self) -> int:
        """Elements of a scale or shift."""
        return self.given[0].size if self.how.apart else self.count

    @property
    def parameter_bytes(self) -> int:
        """Bytes of scale and shift for each element; a number for all of a head takes none."""
        of_heads = self.how.apart and self.parameters == self.how.heads
        return 0 if of_heads else len(self.given) * self.parameter.itemsize

    def are_parts_of(self, x: Tensor) -> bool:
        """Whether a row of the last axis is not one of these."""
        return self.whole != x.dims[-1] or self.how.heads > 1

    def suit(self, x: Tensor, y: Tensor) -> bool:
        """Whether the kernel has their dtypes, formats and parameters."""
        return (
            all(t.dtype in FLOATS and t.dtype != float64 for t in (x, y))
            and all(t.dtype == self.parameter and t.dtype != float64 for t in self.given)
            and all(t.size == self.parameters for t in self.given)
            and (not self.how.apart or self.parameters in (self.how.heads, self.whole))
            and all(t.format is Format.CONTIGUOUS for t in (y, x))
        )


def _rows_of(
    x: Tensor, axis: int, how: RowStatistic, affine: ScaleShift, gathered: RowPlaces
) -> _Rows:
    """Return the rows of the axes from `axis` on, or those at given places."""
    whole, places = prod(x.dims[axis:]), gathered.places
    return _Rows(
        how,
        number=(prod(x.dims[:axis]) if places is None else places.size) * how.heads,
        count=whole // how.heads,
        whole=whole,
        distance=x.row if whole == x.dims[-1] else whole,
        given=tuple(each for each in (affine.scale, affine.shift) if each is not None),
        parameter=x.dtype if affine.scale is None else affine.scale.dtype,
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
        return resident_with(words, self.threads) >= resident


@record
class _Layout:
    """How blocks share rows.

    Attributes:
        block: the threads of a block.
        blocks: how many.
        vector: elements of a word.
        per: words of a thread.
        early: whether operands of the epilogue are loaded before the row is there.
        ahead: whether scale and shift are.
    """

    block: _Block
    blocks: int
    vector: int
    per: int
    early: bool
    ahead: bool


def _layout_of(rows: _Rows, x: Tensor, y: Tensor, epilogue: Epilogue) -> _Layout | None:
    """Return how blocks share rows; None if registers, or formats, do not allow any way."""
    count, factors = rows.count, rows.parameter_bytes
    maximum = 16 // max(x.dtype.itemsize, rows.parameter.itemsize)
    steps = (count, rows.distance, *(t.row for z in epilogue.apart for t in (z, y)))
    vector = next(v for v in (8, 4, 2, 1) if v <= maximum and not any(n % v for n in steps))
    few = rows.number <= (FEW_ROWS if epilogue.halves is None else MAX_ROWS)
    block = _block_of(rows.number, count, vector, x.dtype.itemsize, few)
    if block is None:
        return None
    in_halves = vector == 4 and block.lanes >= 16 and count % 64 == 0 and rows.how.heads == 1
    if epilogue.halves is not None and not in_halves:
        return None
    blocks, per = ceil_div(rows.number, block.rows), ceil_div(count // vector, block.of_row)
    few_blocks = blocks <= MAX_EARLY
    operands = len(epilogue.operands) * epilogue.sums.itemsize
    early = few_blocks and block.has_room(per * vector, factors + operands, 1)
    ahead = bool(rows.given) and (vector == maximum or few_blocks)
    ahead = ahead and block.has_room(per * vector, factors, 1 if few_blocks else 2)
    return _Layout(block, blocks, vector, per, early, ahead)


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
