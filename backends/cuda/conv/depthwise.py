"""Depthwise convolutions: one filter per channel.

They are bound by memory and by instructions other than FMA. A thread of `depthwise.cu` computes a
patch of pixels of adjacent channels, so that it reads each input once for all of its windows. Where
windows are one row of many taps (speech), a thread of `depthwise_lines.cu` has a few of these at a
time. Where there are few pixels, latency counts: a warp of `depthwise_rows.cu` computes one row of
the windows. Channels that fill no words are left to `depthwise_pixels.cu`; transposed convolutions
have a kernel whose threads gather what reaches one pixel. Windows over three axes add up one plane
after the other; a warp of `depthwise_rows.cu` has a row of one plane.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod
from pathlib import PurePath

from ....runtime.base.record import record
from ..algorithms.registry import Answer
from ..gemm.convolution import MAX_ELEMENTS, ConvProblem, times
from ..gemm.pack_filters import DepthwiseOrder
from ..recipe.launch import Launch, each
from ..recipe.operands import Ints, Members, Packed, Tensor, by_axis, ceil_div, divisor, three
from .depthwise_mma import TILES, DiagonalProblem, depthwise_mma
from .estimates import WORD

THREADS = 128
#: Threads of a warp of `depthwise_rows.cu`, each with a patch.
LANES = 32


@record
class Patch:
    """The results of a thread.

    Attributes:
        rows, columns: of pixels.
        shared: whether as many warps as the planes of a window have rows compute it, one row each.
    """

    rows: int
    columns: int
    shared: bool = False

    def __str__(self) -> str:
        """Return its name, such as ``2x4``, or ``1x4 shared``."""
        return f"{self.rows}x{self.columns}{' shared' if self.shared else ''}"


SINGLE = Patch(1, 1)
#: Patch sizes for stride 1, by bytes of an element; and for other strides. Measured on an H200 over
#: the layers of MobileNet at batch 1 and 32.
LARGE = {4: Patch(4, 2), 2: Patch(2, 4)}
SMALL = Patch(2, 2)
#: Patch sizes for windows of one row; the largest one for stride 1.
LINES = (Patch(1, 8), Patch(1, 4), Patch(1, 2))
#: Patch sizes for windows of one column, one pixel apart.
TALL = (Patch(8, 1), Patch(4, 1))
#: Patches that warps share.
SHARED = (Patch(1, 4, shared=True), Patch(1, 2, shared=True), Patch(1, 1, shared=True))
#: Maximum taps of a window whose weights a thread of `depthwise.cu` holds in registers.
HELD = 9
#: Minimum threads per multiprocessor with each patch, for windows of at most `HELD` taps and for
#: larger ones. Measured on an H200 with 32 to 960 channels, images of 7 to 112 pixels, and windows
#: of 3 to 9, in chains of convolutions.
BUSY = {
    **{LARGE[4]: (256, 256), LARGE[2]: (70, 120), SMALL: (64, 512)},
    **dict(zip(SHARED, ((inf, 32), (0, 20), (inf, 0)), strict=True)),
    **dict(zip(LINES, ((192, 192), (96, 96), (64, 64)), strict=True)),
    **dict(zip(TALL, ((192, 192), (96, 96)), strict=True)),
}
#: Maximum taps for patches larger than a pixel, as windows are unrolled.
MAX_TAPS = 49
#: Maximum width of a window of which a warp has a row, and maximum number of its rows.
MAX_SHARES = 16


def depthwise_variants(conv: ConvProblem) -> tuple[str, ...]:
    """Return the names of the patch sizes that a convolution may use."""
    plane = Plane.of(conv)
    problem = plane.diagonal(conv)
    tiles = () if problem is None else TILES
    return tuple(map(str, (*plane.patches, *tiles)))


def depthwise(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the launch of a depthwise convolution."""
    if max(conv.x.size, conv.y.size) >= MAX_ELEMENTS:
        return f"{max(conv.x.size, conv.y.size)} elements"
    plane = Plane.of(conv)
    if not plane.has_words:
        return _pixels(conv, plane)
    named = {str(patch): patch for patch in plane.patches}
    problem = plane.diagonal(conv)
    if problem is not None and variant not in named:
        return depthwise_mma(problem, variant)
    patch = named.get(variant) or plane.patch(conv.setting.target.processors)
    return _words(conv, plane, patch)


def transposed(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the launch of a transposed depthwise convolution."""
    if max(conv.x.size, conv.y.size) >= MAX_ELEMENTS:
        return f"{max(conv.x.size, conv.y.size)} elements"
    return _words(conv, Plane.of(conv), SINGLE, "conv/depthwise_transposed.cu")


def _words(conv: ConvProblem, plane: Plane, patch: Patch, file: str = "") -> Launch:
    """Return the launch with patches of channel words; of `file` if it is not a convolution."""
    is_tall = patch in TALL
    if is_tall:
        plane, patch = plane.turned(), Patch(1, patch.rows)
    across, down = plane.spread(patch) if is_tall else reversed(plane.spread(patch))
    places = (plane.channels // WORD, across, down)
    names = ("words", "across", "down")
    divided = dict(zip((*names, "depth"), (*places, plane.outputs[0]), strict=True))
    members = {
        **dict(zip(names, places, strict=True)),
        **{f"by_{name}": divisor(size) for name, size in divided.items()},
    }
    constants = ("COLUMNS", patch.columns), ("VECTOR", WORD), *conv.epilogue.flags(conv.b)
    count = plane.threads(patch)
    if file:
        return _launch(conv, plane, file, count, constants, members)
    if patch.shared:
        launch = _launch(conv, plane, "conv/depthwise_rows.cu", count, constants, members)
        block = LANES * prod(plane.kernel[:2])
        return replace(launch, grid=(ceil_div(count, LANES), 1, 1), block=block)
    if plane.is_long and patch != SINGLE:
        constants = ("TURNED", is_tall), *constants
        return _launch(conv, plane, "conv/depthwise_lines.cu", count, constants, members)
    constants = ("ROWS", patch.rows), *constants
    return _launch(conv, plane, "conv/depthwise.cu", count, constants, members)


def _pixels(conv: ConvProblem, plane: Plane) -> Launch:
    """Return the launch with one thread per element."""
    count = conv.y.size
    constants = (("BIAS", conv.b is not None),)
    return _launch(conv, plane, "conv/depthwise_pixels.cu", count, constants, {})


def _launch(
    conv: ConvProblem,
    plane: Plane,
    file: str,
    count: int,
    constants: tuple[tuple[str, int], ...],
    members: Members,
) -> Launch:
    """Return the launch of one of the two kernels.

    Args:
        conv: the convolution.
        plane: its sizes.
        file: of the kernel, which has the file's name.
        count: number of threads.
        constants: compile-time constants besides those of the window.
        members: members of the kernel's struct besides the geometry.
    """
    x, y, epilogue = conv.x, conv.y, conv.epilogue
    return each(
        file,
        PurePath(file).stem,
        count,
        block=THREADS,
        args={
            **{"x": x, "w": weights_of(conv), "y": y, "bias": conv.b},
            **epilogue.args,
            **{"count": count},
            "p": {
                **{**plane.geometry, "row_x": x.row, "row_y": y.row, **members},
                "of_filters": conv.taps * x.dims[1] if conv.own else 0,
            },
        },
        types=epilogue.types,
        constants=(
            *zip(("KD", "KH", "KW"), plane.kernel, strict=True),
            *zip(("STEP_D", "STEP_H", "STEP_W"), plane.steps, strict=True),
            ("VOLUME", plane.has_planes),
            *constants,
        ),
        code=epilogue.code,
        note=f"{times(conv.view.kernel)} {epilogue.title}".strip(),
        pitched=(x, y, *epilogue.pitched),
    )


def weights_of(conv: ConvProblem) -> Packed | Tensor:
    """Return the weights in the kernels' order."""
    if conv.placed is not None:
        return conv.placed
    return Packed((conv.w.value,), ("depthwise", conv.apart), DepthwiseOrder(conv.apart))


_SIZES = ("depth", "height", "width")


@record
class Plane:
    """The geometry of a convolution; missing leading spatial axes have size 1.

    Attributes:
        images, channels: sizes of the first two axes.
        has_words: whether threads compute several channels.
        size: element size in bytes.
        inputs, outputs: depth, height and width of the image and the result.
        kernel, steps, dilations, pads: of the windows; leading pads.
    """

    images: int
    channels: int
    has_words: bool
    size: int
    inputs: Ints
    outputs: Ints
    kernel: Ints
    steps: Ints
    dilations: Ints
    pads: Ints

    @classmethod
    def of(cls, conv: ConvProblem) -> Plane:
        """Return the geometry of a convolution.

        Planes that it treats one by one are images, and a column of pixels is a row.
        """
        x, y, view = conv.x, conv.y, conv.view
        inputs, outputs = three(x.dims[2:], 1), three(y.dims[2:], 1)
        kernel, steps = three(view.kernel, 1), three(view.strides, 1)
        begins, ends = three(view.pads_begin, 0), three(view.pads_end, 0)
        alone = (kernel[0], steps[0], begins[0], ends[0]) == (1, 1, 0, 0)
        is_column = inputs[2] == outputs[2] == kernel[2] == 1 and begins[2] == 0

        def placed(sizes: Ints) -> Ints:
            return (sizes[0], 1, sizes[1]) if is_column else sizes

        return cls(
            images=x.dims[0] * (inputs[0] if alone else 1),
            channels=x.dims[1],
            has_words=x.dims[1] % WORD == 0,
            size=x.dtype.itemsize,
            inputs=placed((1, *inputs[1:]) if alone else inputs),
            outputs=placed((1, *outputs[1:]) if alone else outputs),
            kernel=placed(kernel),
            steps=placed(steps),
            dilations=placed(three(view.dilations, 1)),
            pads=(begins[0], 0, begins[1]) if is_column else begins,
        )

    @property
    def has_planes(self) -> bool:
        """Whether windows extend over planes."""
        return (self.inputs[0], self.outputs[0], self.kernel[0], self.pads[0]) != (1, 1, 1, 0)

    @property
    def is_long(self) -> bool:
        """Whether windows are one row of more taps than a thread holds, one pixel apart."""
        alone = self.has_lines and self.steps[2] == prod(self.dilations) == 1
        return alone and self.kernel[2] > HELD

    @property
    def has_lines(self) -> bool:
        """Whether windows are one row."""
        return not self.has_planes and self.kernel[1] == 1

    @property
    def geometry(self) -> dict[str, int]:
        """The members of struct `Plane` that all kernels have."""
        return {
            "channels": self.channels,
            **dict(zip(_SIZES, self.inputs, strict=True)),
            **{f"out_{name}": size for name, size in zip(_SIZES, self.outputs, strict=True)},
            **by_axis(dilation=self.dilations, pad=self.pads),
        }

    def diagonal(self, conv: ConvProblem) -> DiagonalProblem | None:
        """Return the convolution as products with diagonal matrices; None if it is not done so."""
        if self.has_planes or prod(self.dilations) != 1:
            return None
        sizes = self.kernel[1:], self.steps[1:], self.outputs[1:]
        problem = DiagonalProblem(conv, self.images, *sizes, self.geometry)
        return None if problem.refusal else problem

    def turned(self) -> Plane:
        """Return this with height and width in each other's place."""
        named = ("inputs", "outputs", "kernel", "steps", "dilations", "pads")
        sizes = {name: getattr(self, name) for name in named}
        return replace(self, **{name: (d, w, h) for name, (d, h, w) in sizes.items()})

    @property
    def patches(self) -> tuple[Patch, ...]:
        """The applicable patch sizes, largest first."""
        if not self.has_words:
            return ()
        rows = prod(self.kernel[:2])
        shared = SHARED if 1 < rows <= MAX_SHARES >= self.kernel[2] else ()
        if prod(self.dilations) > 1:
            return (*shared[-1:], SINGLE)
        tall = TALL if self.turned().is_long else ()
        if prod(self.kernel) > MAX_TAPS and not self.is_long:
            return (*tall, *shared, SINGLE)
        if self.has_lines:
            return (*LINES[self.steps[2] > 1 :], SINGLE)
        large = (LARGE[self.size],) if prod(self.steps) == 1 else ()
        return (*tall, *large, SMALL, *shared, SINGLE)

    def spread(self, patch: Patch) -> tuple[int, int]:
        """Return the number of patches along height and width."""
        _, height, width = self.outputs
        return ceil_div(height, patch.rows), ceil_div(width, patch.columns)

    def threads(self, patch: Patch) -> int:
        """Return the number of threads with a patch size."""
        words = self.images * self.outputs[0] * self.channels // WORD
        return words * prod(self.spread(patch))

    def patch(self, processors: int) -> Patch:
        """Return the largest patch that keeps every multiprocessor busy."""
        large = prod(self.kernel) > HELD

        def suits(patch: Patch) -> bool:
            return self.threads(patch) >= BUSY.get(patch, (0, 0))[large] * processors

        return next(filter(suits, self.patches))
