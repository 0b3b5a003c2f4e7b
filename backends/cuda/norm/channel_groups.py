"""Normalizations of groups of channels, channels last: `channel_groups.cu`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from math import gcd, lcm, log2, prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, DType, float64
from ....runtime.ir.types import Array
from ..algorithms.registry import Answer, need_dtypes
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div, index_type
from ..recipe.source import arithmetic
from ..recipe.targets import Target
from .norm_parts import WORD

#: Threads of a block, and of all blocks of a multiprocessor; maximum blocks of a cluster, and of
#: those that share a slab in two launches; bytes in flight per thread.
THREADS, MOST_THREADS, MAX_CLUSTER, MAX_PARTS, UNDER_WAY = (256, 512), 1024, 8, 256, 64
#: Bytes of shared memory of a multiprocessor that are not for parts.
SPARE = 4096
#: Sums of a group between those of different kinds, so that these are in different banks.
GAP = 16
#: Bytes of a sector and of a line: narrower slabs are read more slowly.
SECTOR, LINE = 32, 128
#: For the choice of slabs, measured on an H100 with 16-bit floats: bytes that one block, and that a
#: multiprocessor moves per nanosecond, by threads of a block; nanoseconds of a second launch.
ALONE = {256: 14.0, 512: 18.0}
TOGETHER = {256: 20.0, 512: 22.0}
LAUNCH = 1000.0
#: Elements are read twice: from the cache if it holds what all blocks work on, which are so many
#: bytes. Moves of each, with that of the result.
CACHE, CACHED, READ_AGAIN = 26e6, 2.2, 3.0


@record
class Costs:
    """Nanoseconds of sums.

    Attributes:
        sums: of a block, by its threads.
        exchange: between two halves of a cluster.
        crowded: the same with others on the same multiprocessors.
        part: of a part's sums in a second launch.
    """

    sums: Mapping[int, float]
    exchange: float
    crowded: float
    part: float


#: Of several groups, and of whole images, which all warps of a block add up. With those of the
#: former PoolFormer-S12 takes 4 % more time at batch 32 in float16 on an H200.
SEVERAL = Costs({256: 2800.0, 512: 4000.0}, exchange=1000.0, crowded=3000.0, part=50.0)
WHOLE = Costs({256: 2000.0, 512: 4000.0}, exchange=100.0, crowded=300.0, part=5.0)


@record
class Images:
    """What is normalized: `number` images of pixels and channels, in groups of `depth`."""

    number: int
    pixels: int
    channels: int
    depth: int
    itemsize: int

    @property
    def vector(self) -> int:
        """Adjacent channels that are read at once."""
        return gcd(WORD // self.itemsize, self.channels)

    @property
    def kinds(self) -> int:
        """Groups of the channels that are read at once, or parts of them."""
        return self.vector // self.alike

    @property
    def alike(self) -> int:
        """Adjacent channels of one group that are read at once."""
        return gcd(self.depth, self.vector)

    def blocks(self, slabs: Slabs) -> int:
        """Return the number of blocks."""
        return self.number * self.channels // slabs.width * slabs.parts


@record
class Slabs:
    """How images are divided among blocks.

    Attributes:
        threads: threads of a block.
        width: channels of a slab.
        parts: blocks that share one.
        chunk: pixels of each part but the last.
        is_cluster: whether they exchange their sums as a cluster, or by a second launch.
        kept: bytes of shared memory for a part's elements; 0 if they are read again.
    """

    threads: int
    width: int
    parts: int
    chunk: int
    is_cluster: bool
    kept: int


def normalize_channels(
    y: Tensor,
    x: Tensor,
    parameters: tuple[Tensor, Tensor] | None,
    number: int,
    epsilon: float,
    target: Target,
    epilogue: Epilogue,
    *,
    centred: bool = True,
) -> Answer:
    """Return the launches that normalize `number` groups of channels of each image.

    Args:
        y: the result, channels last.
        x: the images, channels last.
        parameters: scale and shift of the results, one of each for each channel; None: 1 and 0.
        number: groups of an image.
        epsilon: added to the variance.
        target: the GPU.
        epilogue: applied to the results.
        centred: whether the mean is subtracted.
    """
    refused = need_dtypes(FLOATS, y, x, *(parameters or ()))
    if refused:
        return refused
    channels, pixels = x.dims[1], prod(x.dims[2:])
    images = Images(x.dims[0], pixels, channels, channels // number, x.dtype.itemsize)
    slabs = divided(images, target)
    if slabs is None:
        return f"groups of {images.depth} channels"
    expected = (channels,), _scale_dtype(x, parameters)
    if parameters and any((t.dims, t.dtype) != expected for t in parameters):
        return f"scale of {parameters[0].value.tensor}"
    if images.blocks(slabs) >= 2**31:
        return f"{images.blocks(slabs)} blocks"
    last = _launch(y, x, parameters, images, slabs, epsilon, epilogue, centred=centred)
    if not last.scratch:
        return last
    args = {name: last.args[name] for name in ("x", "sums", "of")}
    return replace(last, entry="channel_moments", args=args, pitched=(x,)), last


def _launch(
    y: Tensor,
    x: Tensor,
    parameters: tuple[Tensor, Tensor] | None,
    images: Images,
    slabs: Slabs,
    epsilon: float,
    epilogue: Epilogue,
    *,
    centred: bool,
) -> Launch:
    """Return the launch that stores the results; with scratch, it reads sums of another."""
    channels = images.channels
    scale, shift = parameters or (_each(channels, x.dtype, 1), _each(channels, x.dtype, 0))
    vector, alike, compute = images.vector, images.alike, arithmetic(x.dtype)
    groups, blocks = slabs.width // images.depth, images.blocks(slabs)
    statistic = 16 * ceil_div(3 * compute.itemsize, 16)
    stage = (3 * slabs.threads * (vector // alike) + 2 * GAP) * compute.itemsize
    joined = slabs.parts > 1 and not slabs.is_cluster
    shape = {
        **{"pixels": images.pixels, "channels": channels, "depth": images.depth},
        **{"width": slabs.width, "words": slabs.width // vector, "groups": groups},
        **{"parts": slabs.parts, "chunk": slabs.chunk, "row_x": x.row, "row_y": y.row},
    }
    number = images.number * channels // images.depth
    how = f" in {'a cluster of ' if slabs.is_cluster else ''}{slabs.parts}" * (slabs.parts > 1)
    return Launch(
        "norm/channel_groups.cu",
        "channel_groups",
        grid=(blocks, 1, 1),
        block=slabs.threads,
        args={
            **{"x": x, "sums": Scratch(0) if joined else None, "scale": scale, "shift": shift},
            **{"y": y, **epilogue.args, "of": shape, "epsilon": epsilon},
        },
        types=(
            *(("X", x.dtype), ("S", _scale_dtype(x, parameters)), *epilogue.types),
            *(("A", compute), ("I", index_type(x.extent, y.extent))),
        ),
        constants=(
            *(("WARPS", slabs.threads // 32), ("SINGLE", groups == 1)),
            *(("VECTOR", vector), ("ALIKE", alike)),
            *(("BATCH", UNDER_WAY // (vector * images.itemsize)), ("CENTRED", centred)),
            *(("KEPT", slabs.kept > 0), ("JOINED", slabs.parts > 1)),
            *(("CLUSTER", slabs.is_cluster), *epilogue.flags(None)[1:]),
        ),
        shared=2 * groups * statistic + stage + slabs.kept,
        scratch=statistic * groups * blocks if joined else 0,
        cluster=(slabs.parts, 1, 1) if slabs.is_cluster else (1, 1, 1),
        code=epilogue.code,
        note=f"{number} x {images.depth * images.pixels}{how} {epilogue.title}".strip(),
        pitched=(x, y, *epilogue.apart),
    )


def _scale_dtype(x: Tensor, parameters: tuple[Tensor, Tensor] | None) -> DType:
    """Return the dtype of scale and shift, that of the images if there are none."""
    return parameters[0].dtype if parameters else x.dtype


def _each(channels: int, dtype: DType, number: int) -> Packed:
    """Return a number for each channel."""
    layout = ("each", channels, dtype.name, number)
    return Packed((), layout, partial(_full, channels, number, dtype))


def _full(channels: int, number: int, dtype: DType) -> Array:
    return np.full(channels, number, dtype)


@lru_cache(maxsize=256)
def divided(images: Images, target: Target) -> Slabs | None:
    """Return the slabs that are estimated to be the fastest; None if a group is too wide."""
    ways = _divisions(images, target)
    return min(ways, key=lambda way: _time(images, way, target), default=None)


def _divisions(images: Images, target: Target) -> Iterator[Slabs]:
    """Yield how images can be divided."""
    unit, vector = lcm(images.depth, images.vector), images.vector
    for times in range(1, images.channels // unit + 1):
        width = unit * times
        if images.channels % width:
            continue
        if width < images.channels and width * images.itemsize < SECTOR:
            continue
        for threads in THREADS:
            if width // vector <= threads:
                yield from _parted(images, threads, width, target)


def _parted(images: Images, threads: int, width: int, target: Target) -> Iterator[Slabs]:
    """Yield the numbers of parts of slabs of this width."""
    clusters = target.has_clusters and images.itemsize < float64.itemsize
    rows = threads // (width // images.vector)
    # The rest is for sums, and for what the GPU takes for itself.
    sums = max(64, 12 * images.kinds) * threads + 1024 + 8 * GAP
    room = (target.shared - SPARE) * threads // MOST_THREADS - sums
    parts = 1
    while parts == 1 or (parts <= MAX_PARTS and (parts - 1) * rows < images.pixels):
        chunk = ceil_div(images.pixels, parts)
        if ceil_div(images.pixels, chunk) == parts:
            memory = ceil_div(chunk, rows) * threads * images.vector * images.itemsize
            if parts == 1 or (clusters and parts <= MAX_CLUSTER):
                yield Slabs(threads, width, parts, chunk, parts > 1, 0)
                if memory <= room:
                    yield Slabs(threads, width, parts, chunk, parts > 1, memory)
            if parts > 1:
                yield Slabs(threads, width, parts, chunk, False, 0)
        parts *= 2


def _time(images: Images, slabs: Slabs, target: Target) -> float:
    """Return the estimated nanoseconds."""
    costs = WHOLE if images.depth == images.channels else SEVERAL
    blocks = images.blocks(slabs)
    run, threads = slabs.width * images.itemsize, slabs.threads
    waste = 1.0
    if slabs.width < images.channels:
        waste = 1 + 0.1 * log2(max(1.0, LINE / run)) if run % SECTOR == 0 else 1 + SECTOR / run
    nbytes = slabs.chunk * run * waste
    most = MOST_THREADS // threads
    resident = min(ceil_div(blocks, target.processors), most)
    rate = min(ALONE[threads], TOGETHER[threads] / resident)
    waves = ceil_div(blocks, most * target.processors)
    is_cached = min(blocks, most * target.processors) * nbytes <= CACHE
    moves = 2.0 if slabs.kept else CACHED if is_cached else READ_AGAIN
    time = waves * (costs.sums[threads] + moves * nbytes / rate)
    if slabs.is_cluster:
        exchange = costs.exchange if blocks <= target.processors else costs.crowded
        return time + waves * exchange * log2(slabs.parts)
    if slabs.parts > 1:
        return time + waves * costs.sums[threads] + LAUNCH + costs.part * slabs.parts
    return time
