"""A convolution with an epilogue as one cuDNN graph."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ...runtime.base.record import record
from ...runtime.ir.dtypes import float32
from ..cuda.recipe.operands import Ints, ceil_div
from .operation import NEVER, ROUNDING, SLOW, Operand, times
from .stages import NO_TAIL, Tail, expressed

#: cuDNN 9's tiled engines for float32 on contiguous tensors, with an epilogue and without.
TILED = ("eng44", "eng70")


@record
class TileTime:
    """The cost model of such an engine on an H200: within 2 to 4 % of most measurements.

    The measurements are those that tuning stored for 158 convolutions of ResNet-50, VGG-16 and
    GoogLeNet at batch 1 and 32, with cuDNN 9.19 (`python -m tercet.tools.workshop.peer_bench
    --backend cudnn --tune`).

    Attributes:
        pixels, filters: of a tile.
        start: fixed cost in microseconds.
        step: microseconds per eight terms of each tile of a multiprocessor.
    """

    pixels: int
    filters: int
    start: float
    step: float

    def microseconds(self, pixels: int, filters: int, terms: int) -> float:
        """Return the estimated time of a matrix product."""
        tiles = ceil_div(pixels, self.pixels) * ceil_div(filters, self.filters)
        return self.start + self.step * ceil_div(terms, 8) * ceil_div(tiles, PROCESSORS)


#: By the value of knob 2.
TILES = {
    "k2=2": TileTime(64, 64, 5.3, 0.279),
    "k2=4": TileTime(256, 64, 9.6, 0.83),
    "k2=12": TileTime(64, 32, 4.7, 0.165),
}
#: Multiprocessors of an H200; slowdown by knob 18; microseconds of a kernel after the engine, and
#: its bytes per microsecond.
PROCESSORS, OTHERWISE = 132, 1.4
KERNEL, MEMORY = 2.0, 3.5e6


@record
class Convolution:
    """A convolution over two or three spatial axes; a single axis becomes the second of two.

    Attributes:
        x: the input, [n, c, *spatial].
        w: the weights: [m, c/group, *kernel], transposed [c, m/group, *kernel].
        y: the result, [n, m, *spatial].
        pads_begin: padding before the first element of each spatial axis.
        pads_end: padding after the last one.
        strides: distances between adjacent windows.
        dilations: distances between adjacent elements of a window.
        transposed: whether it is the gradient, with respect to its input `y`, of the convolution
            with result `x`.
        tf32: whether float32 may be rounded to TF32.
        epilogue: applied to the result by the same graph.
        written: whether cuDNN should generate a kernel for the graph, although it has engines for
            it.
    """

    x: Operand
    w: Operand
    y: Operand
    pads_begin: Ints
    pads_end: Ints
    strides: Ints
    dilations: Ints
    transposed: bool
    tf32: bool = False
    epilogue: Tail = NO_TAIL
    written: bool = False

    @property
    def title(self) -> str:
        """A short name: ``conv+bias+relu``."""
        name = "dgrad" if self.transposed else "conv"
        return f"{name}+{self.epilogue.title}" if self.epilogue else name

    def __str__(self) -> str:
        pads = f"pads {times(self.pads_begin)}:{times(self.pads_end)}"
        text = (
            f"{self.title} x {self.x} w {self.w} y {self.y} {pads}"
            f" strides {times(self.strides)} dilations {times(self.dilations)}"
        )
        text += " tf32" if self.tf32 else ""
        text += " written" if self.written else ""
        return f"{text}: {self.epilogue}" if self.epilogue else text

    @property
    def operands(self) -> Mapping[str, Operand]:
        """The tensors read and written."""
        return {"x": self.x, "w": self.w, **dict(self.epilogue.operands), "y": self.y}

    @property
    def results(self) -> tuple[str, ...]:
        """The roles of the tensors written."""
        return ("y",)

    @property
    def notes(self) -> tuple[str, ...]:
        """Numeric restrictions: float32 is not rounded unless allowed; 16-bit sums are float32."""
        if self.y.dtype == float32:
            return NEVER if self.tf32 else NEVER + ROUNDING
        compiled = ("RUNTIME_COMPILATION",) if self.is_fragile else ()
        return (*NEVER, "REDUCED_PRECISION_REDUCTION", *compiled)

    @property
    def group(self) -> int:
        """Number of groups of channels."""
        if self.transposed:
            return self.y.dims[1] // self.w.dims[1]
        return self.x.dims[1] // self.w.dims[1]

    @property
    def is_fragile(self) -> bool:
        """Whether cuDNN 9.19 compiles a wrong kernel: 16 bits, groups, windows of padding only.

        On an H200, eng8 gave infinities for 12 channels of one element in 3 groups, pads 1 and 3.
        """
        if self.y.dtype == float32 or self.transposed or self.group == 1:
            return False
        extents = [1 + (k - 1) * d for k, d in zip(self.w.dims[2:], self.dilations, strict=True)]
        pads = map(max, self.pads_begin, self.pads_end)
        return any(pad >= extent for pad, extent in zip(pads, extents, strict=True))

    @property
    def thinnest(self) -> int:
        """The number of input or output channels per group, whichever is smaller."""
        return min(self.w.dims[1], self.w.dims[0] // self.group)

    def rank(self, engine: str) -> int:
        """Return the position of an engine in the order of trials; see `Ranked`.

        In float32, cuDNN 9's heuristics often choose too large a tile, or have only a small one for
        the epilogue, so that a separate kernel is faster (3x3 over 32x256x56x56: 4.3 and 2.8 ms).
        In the measurements to which `TILES` was fitted, the first engine by this rank is 0.7 %
        slower than the fastest (geometric mean).
        """
        if self.y.dtype != float32 or self.tf32 or self.transposed or self.group > 1:
            return 0
        name, _, knobs = engine.partition("_")
        tile, _, form = knobs.partition("_")
        if name not in TILED or tile not in TILES:
            return SLOW
        images, filters, *spatial = self.y.dims
        shape = (images * prod(spatial), filters, prod(self.w.dims[1:]))
        minimum = min(known.microseconds(*shape) for known in TILES.values())
        time = TILES[tile].microseconds(*shape) * (1 if form == "k18=0" else OTHERWISE)
        if time > minimum + KERNEL + 8 * prod(self.y.dims) / MEMORY:
            return SLOW
        return min(SLOW - 1, int(20 * (time / minimum - 1)))

    def express(self, graph: Any, cudnn: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the operation to a cuDNN graph; see `Operation`."""
        windows = {
            "pre_padding": list(self.pads_begin),
            "post_padding": list(self.pads_end),
            "stride": list(self.strides),
            "dilation": list(self.dilations),
        }
        x, w = tensors["x"], tensors["w"]
        if self.transposed:
            y = graph.conv_dgrad(loss=x, filter=w, **windows)
            y.set_dim(list(self.y.dims))
        else:
            y = graph.conv_fprop(image=x, weight=w, **windows)
        if self.written:  # cuDNN proposes no other engine for this
            y = graph.identity(y)
        return {"y": expressed(self.epilogue.stages, graph, cudnn, y, tensors)}
