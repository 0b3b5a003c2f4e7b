"""Convolutions over three spatial axes: products of images whose channels are stacked.

A window of some planes is one of a single plane whose pixels have the channels of all of them.
`im2col.cu` stacks these in the workspace; the windows in a plane are never stored. Windows of one
plane, or of one pixel in each, are read where they are. Others are, too, where tables of places say
which pixels are outside, or TMA reads squares of pixels of each frame.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer
from ..algorithms.selection import Formats
from ..gemm import f16, f32
from ..gemm.atoms import HALVES
from ..gemm.convolution import ConvProblem, image_formats
from ..gemm.forms import tma_tile
from ..gemm.pack import EIGHTS, filters_of, padded
from ..gemm.pack_image import padded_channels
from ..gemm.problem import (
    Frames,
    GemmArguments,
    Image,
    Order,
    Problem,
    RowKind,
    image_source,
    widest,
)
from ..gemm.schedules import multistage, simt, tma, tma_staging
from ..gemm.tile import LAUNCH, MARGIN, MEMORY, TimedConfig
from ..gemm.windows import MAX_REACH, VOLUME_REACH, reach_of
from ..recipe.launch import Launch, launches_of, sharing
from ..recipe.operands import Ints, Packed, Scratch, ceil_div
from .estimates import MIN_CHANNELS
from .im2col import columns_of

#: Maximum elements of the workspace: kernels count in 32 bits.
MAX_STACKED = 2**30
#: Channels of a step of `tma.cu`, which has those of one frame.
FRAME = 16


@record
class _Planes:
    """The windows in planes.

    Attributes:
        image: the windows.
        depth: planes whose channels are stacked; 0 if the windows are those of the input.
        packing: the launch that stacks them, if any.
    """

    image: Image
    depth: int = 0
    packing: tuple[Launch, ...] = ()

    @property
    def by_places(self) -> bool:
        """Whether windows are found by tables of their places in the volume."""
        return len(self.image.spatial) == 3

    @property
    def used(self) -> int:
        """Bytes of the workspace."""
        return max((launch.scratch for launch in self.packing), default=0)


def volume_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `volume`, or why it does not apply."""
    refused = conv.need_one_group() or conv.need_constants()
    if conv.x.rank != 5 or refused:
        return refused or f"{conv.x.rank - 2} spatial axes, not 3"
    refused = conv.need_halves() if conv.x.dtype in HALVES else conv.need_float32()
    formats = image_formats(conv, MIN_CHANNELS)
    elements = max(conv.x.size, conv.y.size)
    if not _is_in_place(conv, is_last=formats[0] is Format.CHANNELS_LAST):
        planes = conv.x.dims[0] * conv.view.output[0]
        stacked = planes * _depth(conv) * conv.channels * prod(conv.x.dims[3:])
        packed = conv.x.size // conv.channels * padded_channels(conv.channels)
        elements = max(elements, packed if _has_places(conv) else stacked)
    if refused or not conv.x.size or not conv.y.size or elements >= MAX_STACKED:
        return refused or f"{elements} elements"
    if reach_of(conv.x.dims[2:], conv.view) > MAX_REACH:
        return f"an extent of {max(conv.x.dims[3:])}"
    return formats


def volume(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the launches that stack planes, if needed, and multiply windows by filters."""
    epilogue, setting = conv.epilogue, conv.setting
    if conv.x.dtype in HALVES:
        way = _quickest(conv)
        if way.fed is not None:
            product, choice, staging = way.fed
            launch = tma.multiply(product, epilogue, choice.config, staging, setting.target)
            return sharing(*way.planes.packing, launch)
        gemm, used = _gemm(conv, way.planes), way.planes.used
        last = multistage.multiply_halves(gemm, epilogue, setting.target, used)
        return sharing(*way.planes.packing, *last)
    planes = _planes(conv)
    gemm = _gemm(conv, planes)
    if _by_parts(conv, planes.image):
        arithmetic = _arithmetic(conv, planes.image)
        return f32.packed_product(planes.packing, gemm, epilogue, setting, arithmetic)
    config = simt.unsplit(Problem(*gemm.shape), setting.target)
    return sharing(*planes.packing, *launches_of(simt.multiply(gemm, epilogue, setting, config)))


def volume_time(conv: ConvProblem) -> float:
    """Return the estimate of `volume`."""
    if conv.x.dtype in HALVES:
        return _quickest(conv).microseconds
    planes, target = _planes(conv), conv.setting.target
    gemm, packing = _gemm(conv, planes), _packing_time(conv, planes)
    if _by_parts(conv, planes.image):
        problem = Problem(*gemm.shape, rows=planes.image.rows)
        return packing + f32.time_of(problem, True, conv.setting)
    rows = RowKind.WINDOWS if planes.image.rows is RowKind.WINDOWS else RowKind.PIXELS
    return packing + simt.choose(Problem(*gemm.shape, rows=rows), target).microseconds


def _packing_time(conv: ConvProblem, planes: _Planes) -> float:
    """Return the estimate for stacking planes."""
    moved = conv.x.size * conv.x.dtype.itemsize + 2 * planes.used
    return LAUNCH + moved / MEMORY if planes.packing else 0.0


_Fed = tuple[tma_staging.TmaProduct, TimedConfig, tma_staging.Staging]


@record
class _Way:
    """A product of 16-bit floats.

    Attributes:
        microseconds: its estimate.
        planes: the windows.
        fed: how `tma.cu` multiplies them; None: `multistage.cu` does.
    """

    microseconds: float
    planes: _Planes
    fed: _Fed | None = None


def _quickest(conv: ConvProblem) -> _Way:
    """Return the product with the lowest estimate; TMA has to be faster by a margin."""
    planes, target = _planes(conv), conv.setting.target
    plain = _packing_time(conv, planes) + multistage.time_of(_gemm(conv, planes), target)
    ways = [planes]
    if planes.by_places:
        ways.append(_stacked(conv))
    copied = planes.by_places or planes.packing
    if copied and (frames := _frames(conv)) is not None:
        ways.append(frames)
    found = [_Way(plain, planes)]
    for way in ways:
        fed = _fed(conv, way)
        time = inf if fed is None else _packing_time(conv, way) + fed[1].microseconds
        if time < MARGIN * plain:
            found.append(_Way(time, way, fed))
    return min(found, key=lambda way: way.microseconds)


def _frames(conv: ConvProblem) -> _Planes | None:
    """Return windows whose frames `tma.cu` reads where they are; None if it cannot."""
    x, view = conv.x, conv.view
    images, channels, depth, height, width = x.dims
    if view.kernel[0] == 1 or channels % FRAME or not x.is_channels_last:
        return None
    frames = Frames(
        *(channels, depth, view.output[0], view.strides[0], view.dilations[0], view.pads_begin[0])
    )
    over = _over(view, (1, 2), view.output[1:])
    image = Image(
        data=x,
        spatial=(height, width),
        strides=(x.strides[2], 1, *x.strides[3:]),
        channels=view.kernel[0] * channels,
        view=over,
        output=over.output,
        vector=8,
        images=images * view.output[0],
        frames=frames,
    )
    return _Planes(image, view.kernel[0])


def _fed(conv: ConvProblem, planes: _Planes) -> _Fed | None:
    """Return how `tma.cu` multiplies the windows of 16-bit floats; None if it cannot."""
    image, target = planes.image, conv.setting.target
    if not target.has_wgmma or not conv.y.is_channels_last or planes.by_places:
        return None
    if image.channels % 8 or image.row % 8:
        return None
    product, along = tma_staging.TmaProduct(_gemm(conv, planes)), conv.epilogue.reads_along
    in_place = image.frames is not None
    key = (conv.signature, *conv.formats, conv.x.row, along, in_place)
    found = tma_tile([product], conv.setting, *key, along=along)
    return found and (product, *found[1:])


def _by_parts(conv: ConvProblem, image: Image) -> bool:
    """Whether tensor cores multiply float32."""
    return conv.setting.target.has_tf32 and image.channels % 4 == 0


def _arithmetic(conv: ConvProblem, image: Image) -> f32.Arithmetic:
    """Return how tensor cores multiply float32."""
    problem = Problem(conv.pixels, conv.filters, image.terms, rows=image.rows)
    return f32.filter_arithmetic(conv.setting, problem, conv.w)


def _is_in_place(conv: ConvProblem, *, is_last: bool) -> bool:
    """Whether the windows of an image, with channels last or not, are read where they are."""
    _, channels, _, height, width = conv.x.dims
    is_whole = conv.x.dtype not in HALVES or channels % 2 == 0
    pixels = _passes(conv.view, (1, 2)) and height * width <= MAX_REACH
    return is_last and is_whole and (pixels or _passes(conv.view, (0,)))


def _has_places(conv: ConvProblem) -> bool:
    """Whether kernels find pixels of a volume by tables of their places."""
    near = (
        reach_of((size,), _over(conv.view, (axis,), (count,))) <= most
        for axis, (size, count, most) in enumerate(
            zip(conv.x.dims[2:], conv.view.output, VOLUME_REACH, strict=True)
        )
    )
    return all(near) and (conv.x.dtype in HALVES or conv.setting.target.has_tf32)


def _depth(conv: ConvProblem) -> int:
    """Return how many planes are stacked: one more, with zero weights, if terms were odd."""
    depth = conv.view.kernel[0]
    odd = conv.x.dtype in HALVES and depth * conv.channels % 2
    return depth + 1 if odd else depth


def _planes(conv: ConvProblem) -> _Planes:
    """Return the windows where they are, or in planes with stacked channels."""
    x, view = conv.x, conv.view
    images, channels, planes, height, width = x.dims
    halves, moves = conv.x.dtype in HALVES, x.strides
    if not _is_in_place(conv, is_last=x.is_channels_last):
        if not _has_places(conv):
            return _stacked(conv)
        vectors = f16.VECTORS if halves else (4,)
        image, packing = image_source(x, conv.w, view, view.output, vectors)
        return _Planes(image, packing=packing)
    vector = widest(f16.VECTORS if halves else (4, 2), channels, x.row)
    # Only the schedule without tensor cores divides by output sizes as it goes.
    divided = halves or (conv.setting.target.has_tf32 and channels % 4 == 0)
    make = partial(Image, data=x, channels=channels, vector=vector, divided=divided)
    if _passes(view, (0,)):
        over = _over(view, (1, 2), view.output[1:])
        return _Planes(
            make(spatial=(height, width), strides=(moves[2], *moves[1:2], *moves[3:]), view=over,
                 output=over.output, images=images * planes)
        )  # fmt: skip
    over = _along(view, view.kernel[0], height * width)
    return _Planes(
        make(spatial=(planes, height * width), strides=(*moves[:3], moves[4]), view=over,
             output=over.output, images=images)
    )  # fmt: skip


def _stacked(conv: ConvProblem) -> _Planes:
    """Return the windows in planes with stacked channels, and the launch that stacks these."""
    x, view, halves = conv.x, conv.view, conv.x.dtype in HALVES
    images, channels, planes, height, width = x.dims
    vectors, moves = f16.VECTORS if halves else (4, 2), x.strides
    depth = _depth(conv)
    stacked, over = depth * channels, _over(view, (1, 2), view.output[1:])
    along = _along(view, depth, height * width)
    spatial, steps = (planes, height * width), (*moves[:3], moves[4])
    launch = columns_of(x, spatial, steps, along.output, along)
    image = Image(
        data=Scratch(0),
        spatial=(height, width),
        strides=(height * width * stacked, 1, width * stacked, stacked),
        channels=stacked,
        view=over,
        output=over.output,
        vector=widest(vectors, stacked),
        images=images * view.output[0],
        divided=halves or (conv.setting.target.has_tf32 and stacked % 4 == 0),
    )
    return _Planes(image, depth, (launch,))


def _passes(view: Window, axes: Ints) -> bool:
    """Whether windows have one element along some axes, and there is one for each."""
    fields = (view.kernel, view.strides), (view.pads_begin, view.pads_end)
    ones, zeros = ([field[a] for field in pair for a in axes] for pair in fields)
    return set(ones) == {1} and set(zeros) == {0}


def _over(view: Window, axes: Ints, output: Ints) -> Window:
    """Return the windows of some of the axes."""
    taken = {
        name: tuple(getattr(view, name)[a] for a in axes)
        for name in ("kernel", "strides", "dilations", "pads_begin", "pads_end")
    }
    return replace(view, **taken, output=output)


def _along(view: Window, depth: int, pixels: int) -> Window:
    """Return windows over planes whose pixels are columns."""
    return Window(
        kernel=(depth, 1),
        strides=(view.strides[0], 1),
        dilations=(view.dilations[0], 1),
        pads_begin=(view.pads_begin[0], 0),
        pads_end=(view.pads_end[0], 0),
        output=(view.output[0], pixels),
    )


def _gemm(conv: ConvProblem, planes: _Planes) -> GemmArguments:
    image, filters = planes.image, conv.filters

    def packed(order: str, arrange: Order) -> Packed:
        kernel, depth = image.view.kernel, planes.depth
        how = {"kernel": kernel, "depth": depth, "channels": image.channels}
        pack = partial(pack_volume, **how, arrange=arrange)
        return Packed((conv.w.value,), (f"volume {order}", *kernel, depth, image.channels), pack)

    ldb, scales = 0, None
    if conv.x.dtype in HALVES:
        b, ldb = packed("eights", EIGHTS), ceil_div(image.terms, 8) * 8
    elif _by_parts(conv, image):
        b, scales = _arithmetic(conv, image).packed(packed)
    else:
        b, ldb = packed("columns", _columns), ceil_div(filters, 4) * 4
    return GemmArguments(
        a=image,
        b=b,
        c=conv.y,
        shape=(conv.pixels, filters, image.terms),
        ldb=ldb,
        ldc=conv.y.row,
        bias=conv.b,
        scales=scales,
        dtype=conv.x.dtype,
    )


def _columns(rows: Array) -> Array:
    return padded(rows.transpose(0, 2, 1), 4)


def pack_volume(w: Array, kernel: Ints, depth: int, channels: int, arrange: Order) -> Array:
    """Return weights [m, c, *kernel of three axes] for windows in planes.

    Args:
        w: the weights.
        kernel: the windows over two axes.
        depth: planes whose channels are stacked, with zeros for those that the weights lack; 0 for
            none.
        channels: of a pixel, as stored.
        arrange: makes the order of a schedule.
    """
    m, c, planes, *rest = w.shape
    if depth:
        full = np.zeros((m, depth, c, *rest), w.dtype)
        full[:, :planes] = w.swapaxes(1, 2)
        w, c = full, depth * c
    return arrange(filters_of(w.reshape(m, c, *kernel), 1, channels))
