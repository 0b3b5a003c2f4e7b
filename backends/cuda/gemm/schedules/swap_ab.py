"""GEMM of few rows of 16-bit floats on Hopper, constant weights as left operand: `swap_ab.cu`.

Weights, of 16 bits or of a few, are in registers, and a block has as many rows of A as there are,
up to `MAX_ROWS`. Warp-specialized, with sliced-K, and split-K across the CTAs of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil, inf

from .....runtime.base.record import record
from .....runtime.ir.dtypes import uint8
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, Operand, Packed, Scratch, Tensor, TensorMap, ceil_div
from ...recipe.targets import REGISTERS, Target
from ..atoms import atom_of
from ..between import ON_ITS_OWN, Between
from ..packed_weights import CHUNK, STRIP, PackedWeights
from ..problem import GemmArguments
from ..resources import Resources
from ..tile import (
    LAUNCH,
    MAX_CLUSTER,
    Config,
    Cost,
    CtaTile,
    TimedConfig,
    clusters_of,
    inbox,
    ranked,
)
from ..turned import STILL, UNTURNED, Turned
from .multistage import SMALL_CLUSTER, SplitK

#: Maximum rows of A per block; elements of A per copy, and of a row of A in shared memory.
MAX_ROWS, VECTOR, SLAB = 128, 8, 64
#: Rows of weights of a warp, and bytes of a row in a quarter of 64.
ROWS_OF_WARP, QUARTER_BYTES = 16, 16
#: Maximum number of consumer warpgroups with rows of weights of their own, and of all; numbers of
#: slices for weights of 16 bits, which are as fast as four.
MAX_GROUPS, MAX_CONSUMERS, SLICES = 4, 7, (2, 3)
#: Maximum number of stages; bytes of a row of weights per step.
STAGES, WIDTH = 12, 128
#: Maximum registers per thread, those of consumers besides sums, those of packed weights and their
#: fragments, and at least, those of other threads, which store results.
MAX_REGISTERS, OTHER, UNPACKING, STORING = 240, 36, 16, 56
#: Weights of 16 bits: bytes per microsecond of memory; of weights per multiprocessor, and of A,
#: which are in the cache; microseconds until the first products, and after the last ones.
MEMORY, PROCESSOR_MEMORY, CACHED = 3.6e6, 42e3, 100e3
BEGIN, END = 1.6, 0.8
#: Maximum rows of A that are few, of weights of 16 bits with at least so many bytes, and of others:
#: on an H200 BERT-base takes 16 % less time with 64 rows that are not few, 20 % with 32. With more
#: rows, joining the sums of a cluster takes longer, in microseconds, and larger clusters wait for
#: multiprocessors of one GPC; of weights of 16 bits, which are requested early, so many bytes per
#: microsecond arrive where no other block of rows brings them to the cache. Fitted to ViT-B,
#: BERT-base and layers of 77 to 256 rows on an H200.
FEW_ROWS, LARGE_WEIGHTS, FEWEST_ROWS = 64, 8 << 20, 16
JOIN_MORE, ALONE_MEMORY = 1.1, 150e3
#: Packed weights, as fitted to 65 products of 16 to 64 rows and 4 bits on an H100, from which they
#: differ by 4 %: bytes per microsecond of memory, and of A per multiprocessor; microseconds in
#: which one unpacks and multiplies what a warp has of a quarter of 64 bytes per row, at first and
#: per row of A; before and after these, of a block and of two at a time; to combine the sums of
#: slices, and those of a cluster, which takes as long for weights of 16 bits.
PACKED_MEMORY, PACKED_CACHED = 2.9e6, 85e3
QUARTER, QUARTER_ROW, FITTED = 0.0068, 0.000117, 4
AROUND, SLICED, JOIN = (1.85, 1.35), 0.16, 0.31
#: Tiles of fewer rows than there are: warpgroups with weights of their own, and slices, of which
#: split sums have the first; shared memory beside which a neighbour finds room; steps per stage,
#: and steps, at most; and terms, at least, of more than `MAX_ROWS` rows beside a normalization
#: without a kernel, and else: with sums of 384 ViT-S takes 10 % more time alone, MiniLM (128 rows)
#: 2 % with both normalizations. Microseconds of a block besides what it reads, at first and per
#: row; bytes per microsecond that one multiprocessor reads, and that all read of the L2 cache,
#: fitted to 18 products of ViT-B and BERT-base on an H200.
WIDE, ROOMY = ((1, 3), (2, 2), (3, 1)), 160 << 10
NEARLY, MOST_STEPS, SHORT, LONG = 2.0, 16, 192, 768
AROUND_FEW, OF_ROW, OF_PROCESSOR, OF_CACHE = 0.95, 0.016, 105e3, 11e6
#: Steps whose weights are requested before the kernel waits: packed ones, 16-bit floats, and with
#: more than few rows all, or, of large weights, fewer, as memory takes longer to deliver them than
#: the kernel before still runs: ViT-B's first product of the feed-forward layer takes 0.25 us less.
EARLY_PACKED, EARLY, EARLY_LARGE, SMALL_WEIGHTS = 2, 6, 2, 2 << 20
#: Bytes of the mean and the deviation of a row that is normalized; of the inverse of its root mean
#: square, if the product in front has left its squares, of which terms have a word.
MOMENTS, INVERSE, MEASURED_WORDS = 8, 4, 128
#: Share of the clusters that would fit which start together: other blocks are in their way.
STARTING = 0.9


def few_rows_of(nbytes: int) -> int:
    """Return the maximum rows that are few, for so many bytes of weights of 16 bits."""
    return FEW_ROWS if nbytes >= LARGE_WEIGHTS else FEWEST_ROWS


@record
class Weights:
    """What the schedule has to know of weights.

    Attributes:
        bits: per weight.
        nbytes: total bytes, with scales.
        packed: how they are packed; None for 16-bit floats.
    """

    bits: int
    nbytes: int
    packed: PackedWeights | None = None

    @staticmethod
    def of(gemm: GemmArguments, packed: PackedWeights | None) -> Weights:
        """Return those of a product, packed or in rows of `ldb` elements."""
        if packed is not None:
            return Weights(packed.op.bits, packed.nbytes, packed)
        return Weights(16, gemm.shape[1] * gemm.ldb * gemm.dtype.itemsize)

    @property
    def terms(self) -> int:
        """Terms per step."""
        return 8 * WIDTH // self.bits

    @property
    def factor_bytes(self) -> int:
        """Bytes of scales and zero points per row and step."""
        return self.packed.factor_bytes_of(self.terms) if self.packed else 0


def resources(tile: CtaTile, weights: Weights, splits: int) -> Resources:
    """Return what a block takes, through whose stages its sums pass at the end."""
    factors = ceil_div(tile.bn * weights.factor_bytes, 1024) * 1024
    stages = tile.stages * (2 * tile.bm * tile.bk + tile.bn * WIDTH + factors)
    sums = tile.slices * tile.bm * (tile.bn + 4) * 4
    barriers = 16 * ceil_div(tile.stages, tile.slices) * tile.slices
    consumers = tile.groups * tile.slices
    threads = 128 * (consumers + 1)  # a warpgroup requests copies
    equal = min(REGISTERS // (threads * tile.resident) // 8 * 8, MAX_REGISTERS)
    own = tile.bm // 2 + OTHER + (UNPACKING if weights.packed else 0)
    consumer = max(ceil_div(own, 8) * 8, equal)
    return Resources(
        threads,
        ring=ceil_div(max(stages, sums), 16) * 16 + barriers,
        inbox=inbox(tile.bm, tile.bn, splits),
        resident=tile.resident,
        registers=(consumer, equal - consumers * (consumer - equal)),
    )


def fits(block: Resources, target: Target) -> bool:
    """Whether blocks fit on a multiprocessor, and threads have enough registers."""
    consumer, other = block.registers
    return block.fits(target) and other >= STORING and consumer <= MAX_REGISTERS


@record
class RowsNorm:
    """A normalization of the rows of A; see `normalized_rows.cuh`.

    Attributes:
        weights: of the product, with the scale of the rows.
        columns: factors, sums and shifts of all columns of the product, in float32.
        scale, shift: those of the rows; None if there is no shift.
        rows: the rows as they are, if `kept` needs them; None if they are A.
        kept: where normalized rows are stored as well; None if nowhere.
        epsilon: added to the variance.
        centred: whether the mean is subtracted.
        kind: the operator, for reports.
    """

    weights: Packed
    columns: Packed
    scale: Tensor
    shift: Tensor | None
    kept: Tensor | None
    epsilon: float
    centred: bool
    kind: str
    rows: Tensor | Scratch | None = None


@record
class SwapAb:
    """A product with constant weights.

    Attributes:
        gemm: the product; without packed weights, its `b` is [n][ldb].
        packed: the packed weights; None for 16-bit floats.
        norm: the normalization of its rows; None if there is none.
        moments: where those of rows of A are, if these are normalized, or else those of results are
            stored; None if nowhere.
        products: one, or two whose weights take transposes and whose results the epilogue combines:
            `gemm` has the columns of both.
        between: what is known of its rows, and what it leaves of its results.
        turned: what rotates heads in the first columns of its results; None if nothing does.
    """

    gemm: GemmArguments
    packed: PackedWeights | None = None
    products: int = 1
    norm: RowsNorm | None = None
    moments: Scratch | None = None
    between: Between = ON_ITS_OWN
    turned: Turned | None = None

    @property
    def weights(self) -> Weights:
        """The weights."""
        return Weights.of(self.gemm, self.packed)

    def _fitted(
        self,
        groups: int,
        slices: int,
        resident: int,
        splits: int,
        target: Target,
        rows: int = 0,
    ) -> CtaTile | None:
        """Return a tile with so many rows, or an equal part of all, and as many stages as fit."""
        (m, _, k), weights = self.gemm.shape, self.weights
        rows = rows or ceil_div(ceil_div(m, ceil_div(m, MAX_ROWS)), 8) * 8
        steps = ceil_div(ceil_div(k, weights.terms), splits)
        for stages in range(min(STAGES, max(2, steps)), 1, -1):
            warps, cost = (4, groups), Cost(0, 0, 0)
            tile = CtaTile(
                *(rows, 64 * groups, weights.terms, stages, warps, "wgmma", resident, cost),
                slices=slices,
            )
            block = resources(tile, weights, splits)
            if fits(block, target) and block.shared + self._row_bytes(tile) <= target.room(
                resident
            ):
                return tile
        return None

    def _row_bytes(self, tile: CtaTile) -> int:
        """Return the bytes of shared memory for what is known of the rows of a block."""
        if self.norm is not None:
            return tile.bm * MOMENTS
        return 0 if self.between.measured is None else tile.bm * INVERSE

    def _shapes(self, steps: int) -> set[tuple[int, int]]:
        """Return how many warpgroups have rows of their own, and in how many slices of K.

        A single one waits for memory most of the time. Weights of 16 bits are bound by memory,
        for which small tiles suffice.
        """
        if self.packed is None:
            return {(1, min(slices, steps)) for slices in SLICES}
        most = min(MAX_CONSUMERS, steps)
        pairs = product(range(1, MAX_GROUPS + 1), range(1, most + 1))
        return {(g, s) for g, s in pairs if min(2, most) <= g * s <= MAX_CONSUMERS}

    @property
    def more_rows(self) -> bool:
        """Whether weights of 16 bits are not what bounds it; see `FEW_ROWS`."""
        return self.packed is None and self.gemm.shape[0] > few_rows_of(self.weights.nbytes)

    @property
    def _most_splits(self) -> int:
        return SMALL_CLUSTER if self.more_rows else MAX_CLUSTER

    def configs(self, target: Target) -> Iterator[Config]:
        """Yield tiles with splits such that all blocks run at once, or without splits."""
        (m, n, k), weights = self.gemm.shape, self.weights
        if not target.has_wgmma or self.gemm.a.vector < VECTOR:
            return
        steps = ceil_div(k, weights.terms)
        if self.between.measured is not None and k % MEASURED_WORDS:
            return
        for groups, slices in sorted(self._shapes(steps)):
            blocks = ceil_div(m, MAX_ROWS) * ceil_div(n, 64 * groups)
            for resident in (1, 2) if blocks > target.processors else (1,):
                if tile := self._fitted(groups, slices, resident, 1, target):
                    yield Config(tile)
            for splits in range(2, min(self._most_splits, steps // slices) + 1):
                together = clusters_of(splits, target)
                if weights.packed and groups > 1:
                    break  # blocks of 64 rows, of which there are more, take 10 to 40 % less time
                if blocks <= (together if splits == 2 else STARTING * together) and (
                    tile := self._fitted(groups, slices, 1, splits, target)
                ):
                    yield Config(tile, splits)

    def few_rows(self, target: Target) -> Iterator[Config]:
        """Yield tiles of fewer rows than there are, whose blocks run at once.

        What a block loads after it has stopped waiting is little, then. With up to `MAX_ROWS`
        rows, neighbours are as small, and find room beside such a block; and of more than
        `FEW_ROWS`, half of them for each of the blocks that share long sums are worth trying.
        """
        m, _, k = self.gemm.shape
        beside = self.norm is not None or self.moments is not None
        if k < (SHORT if beside and m > MAX_ROWS else LONG):
            return
        room = ROOMY if m <= MAX_ROWS and self.norm is None else target.shared
        for parts in range(2, ceil_div(m, 8) + 1):
            rows = ceil_div(ceil_div(m, parts), 8) * 8
            if rows <= MAX_ROWS and rows * (parts - 1) < m:  # else fewer parts are as large
                yield from self._of_rows(rows, WIDE, 1, room, target)
        if FEW_ROWS < m <= MAX_ROWS:
            rows = ceil_div(ceil_div(m, 2), 8) * 8
            for splits in range(2, min(self._most_splits, k // LONG) + 1):
                yield from self._of_rows(rows, WIDE[:1], splits, target.shared, target)

    def _of_rows(
        self, rows: int, shapes: tuple[Ints, ...], splits: int, room: int, target: Target
    ) -> Iterator[Config]:
        """Yield tiles of so many rows that most steps of a block fit, in this much memory."""
        (m, n, k), weights = self.gemm.shape, self.weights
        steps = ceil_div(ceil_div(k, weights.terms), splits)
        together = target.processors if splits == 1 else STARTING * clusters_of(splits, target)
        for groups, slices in shapes:
            blocks = ceil_div(m, rows) * ceil_div(n, 64 * groups)
            if blocks > together or steps > MOST_STEPS:
                continue
            tile = self._fitted(groups, slices, 1, splits, target, rows)
            whole = tile is not None and steps <= NEARLY * tile.stages
            if tile and whole and resources(tile, weights, splits).shared <= room:
                yield Config(tile, splits)

    def holds_moments(self, config: Config, target: Target) -> bool:
        """Whether one block has all terms of its rows, and room for what normalizes them."""
        block, tile = resources(config.tile, self.weights, config.splits), config.tile
        has_columns = block.threads % (tile.bn // 8) == 0
        room = block.shared + tile.bm * MOMENTS <= target.shared
        whole = self.turned is None or tile.bn % self.turned.size == 0
        return config.splits == 1 and has_columns and room and whole

    def choose(self, target: Target) -> TimedConfig | None:
        """Return the tile and splits with the lowest estimate; None if nothing fits."""
        if self.norm is not None:
            whole = (c for c in self.few_rows(target) if self.holds_moments(c, target))
            return next(iter(ranked(whole, self._expected_of_few)), None)
        found = ranked(self.configs(target), lambda config: self.expected(config, target))
        if self.more_rows and target.has_wgmma and self.gemm.a.vector >= VECTOR:
            found += ranked(self.few_rows(target), self._expected_of_few)
        return min(found, key=lambda way: way.microseconds, default=None)

    def _expected_of_few(self, config: Config) -> float:
        """Return the estimate for one of `few_rows`, which waits for what it reads."""
        (m, n, k), tile = self.gemm.shape, config.tile
        splits = config.splits
        nbytes = ceil_div(ceil_div(k, tile.bk), splits) * (tile.bm + tile.bn) * WIDTH
        reading = max(nbytes / OF_PROCESSOR, tile.count(m, n) * splits * nbytes / OF_CACHE)
        return AROUND_FEW + OF_ROW * tile.bm + reading + (JOIN_MORE if splits > 1 else 0.0)

    def expected(self, config: Config, target: Target) -> float:
        """Return the estimate for a configuration in microseconds."""
        (m, n, k), tile, splits, weights = self.gemm.shape, config.tile, config.splits, self.weights
        blocks = tile.count(m, n) * splits
        own, waves = (ceil(blocks / (target.processors * each)) for each in (1, tile.resident))
        steps = own * ceil_div(ceil_div(k, tile.bk), splits)
        traffic = weights.nbytes + 2 * m * (n + k)
        if weights.packed:
            quarters = steps * tile.bn // ROWS_OF_WARP * WIDTH // QUARTER_BYTES
            unpacking = quarters * (QUARTER + QUARTER_ROW * tile.bm) * FITTED / weights.bits
            reading = steps * 2 * tile.bm * tile.bk / PACKED_CACHED
            time = (unpacking**4 + reading**4 + (traffic / PACKED_MEMORY) ** 4) ** 0.25
            time += waves * AROUND[tile.resident - 1] + (SLICED if tile.slices > 1 else 0.0)
            return LAUNCH + time + (JOIN if splits > 1 else 0.0)
        rate = PROCESSOR_MEMORY
        if self.more_rows:
            rate = ALONE_MEMORY if m <= MAX_ROWS else inf
        of_step = tile.bn * WIDTH / rate + 2 * tile.bm * tile.bk / CACHED
        time = waves * (BEGIN + END) + steps * of_step
        time = (time**4 + (traffic / MEMORY) ** 4) ** 0.25
        join = JOIN_MORE if self.more_rows else JOIN
        return LAUNCH + time + (join if splits > 1 else 0.0)

    def _early(self, tile: CtaTile) -> int:
        """Return of how many steps weights are requested before the kernel waits."""
        if self.weights.packed:
            return EARLY_PACKED
        if not self.more_rows:
            return EARLY
        return tile.stages if self.weights.nbytes <= SMALL_WEIGHTS else EARLY_LARGE

    @property
    def _norm_args(self) -> dict[str, Operand | float | None]:
        """The arguments that say how rows are normalized, and where they are stored."""
        args: dict[str, Operand | float | None] = {"epsilon": 0.0}
        args |= dict.fromkeys(("columns", "rows", "scale", "shift", "kept"))
        if self.norm is not None:
            args |= {"columns": self.norm.columns, "epsilon": self.norm.epsilon}
        if self.norm is not None and self.norm.kept is not None:
            args |= {"rows": self.gemm.a.data, "kept": self.norm.kept}
            args |= {"scale": self.norm.scale, "shift": self.norm.shift}
        return args

    def launch(self, epilogue: Epilogue, config: Config, target: Target) -> Launch:
        """Return the launch of the product, with `epilogue` applied to every result."""
        gemm, weights, tile = self.gemm, self.weights, config.tile
        block, tiles = resources(tile, weights, config.splits), tile.count(*gemm.shape[:2])
        norm, shared = self.norm, block.shared + self._row_bytes(tile)
        alone = tiles * config.splits <= target.processors
        (m, n, k), packed = gemm.shape, weights.packed
        pair = f", {self.products} products" if self.products > 1 else ""
        title = epilogue.title + ("" if self.turned is None else " RotaryEmbedding")
        measured = norm is None and self.moments is not None
        after = f"after {norm.kind}, " if norm else ""
        before = ", moments" if measured else self.between.note
        after = "after a norm in front, " if self.between.measured else after
        split = SplitK.CLUSTER if config.splits > 1 else SplitK.WHOLE
        if packed is None:
            w = factors = TensorMap(gemm.b, gemm.dtype, (k, n), (gemm.ldb,), (SLAB, tile.bn))
        else:
            w, factors = _strips(packed, tile)
        return Launch(
            "gemm/swap_ab.cu",
            "swap_ab",
            grid=(tiles, config.splits, 1),
            block=block.threads,
            args={
                "a": TensorMap(gemm.a.data, gemm.dtype, (k, m), (gemm.a.row,), (SLAB, tile.bm)),
                "w": w,
                "factors": factors,
                **{"c": gemm.c, "bias": gemm.bias, **epilogue.args},
                **{"m": m, "n": n, "tiles_m": ceil_div(m, tile.bm)},
                **{"moments": self.moments, **self._norm_args, **self.between.args},
                **(STILL if self.turned is None else self.turned.args_of_rows),
            },
            types=(("T", gemm.dtype), *epilogue.aliases),
            constants=(
                *tile.constants("BM", "GROUPS", "SLICES", "STAGES", "RESIDENT"),
                *(("EARLY", self._early(tile)), ("LAUNCHES", not self.more_rows)),
                *zip(("REGISTERS", "OTHER_REGISTERS"), block.registers, strict=True),
                *(("WIDTH", WIDTH), ("K", k), ("SPLIT", int(split))),
                *(packed.constants if packed else ()),
                ("PRODUCTS", self.products),
                *(("NORMALIZED", norm is not None), ("CENTRED", bool(norm and norm.centred))),
                *(("MEASURED", measured), ("KEPT", bool(norm and norm.kept))),
                *(("MOMENTS", block.shared), *self.between.constants),
                *(("VECTOR_C", gemm.vector_c(8)), *epilogue.flags(gemm.bias)),
                *(UNTURNED if self.turned is None else self.turned.constants),
            ),
            code="\n".join(
                (
                    f"#define PACKED {int(packed is not None)}",
                    atom_of(gemm.dtype).code(tile.bm, a_in_registers=packed is not None),
                    epilogue.code,
                )
            ),
            shared=target.alone(shared) if alone else shared,
            cluster=(1, config.splits, 1),
            note=f"{after}{config}{pair}{before}, {weights.bits} bits {title}".strip(),
        )


def _strips(weights: PackedWeights, tile: CtaTile) -> tuple[TensorMap, TensorMap]:
    """Return the fragments and scales of strips, those of a step of a tile at a time."""
    strips, lines = tile.bn // STRIP, CHUNK // WIDTH * weights.chunks
    words = TensorMap(
        weights.fragments,
        uint8,
        (WIDTH, lines, weights.strips),
        (WIDTH, WIDTH * lines),
        (WIDTH, STRIP, strips),
    )
    dtype, block = weights.scales.dtype, weights.strip_factors
    step, strip = (
        block * max(1, tile.bk // weights.op.block_size),
        block * weights.blocks_of(tile.bk),
    )
    line = min(WIDTH // dtype.itemsize, step)
    scales = TensorMap(
        weights.fragment_factors(tile.bk),
        dtype,
        (line, strip // line, weights.strips),
        (line, strip),
        (line, step // line, strips),
    )
    return words, scales
