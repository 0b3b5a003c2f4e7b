"""A convolution with an epilogue as one cuDNN graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...runtime.dtypes import float32
from ..cuda.layout import Ints
from .operation import NEVER, ROUNDING, SLOW, Operand, times
from .stages import NO_TAIL, Tail, expressed

#: cuDNN 9's engines for float32 on plain tensors, with an epilogue and without: products of tiles.
TILED = ("eng44", "eng70")
#: Filters up to which their tile of 128 filters (knob 2 is 4) is mostly empty.
FEW = 32


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution over two or three spatial axes; a single axis has become the second of two.

    Attributes:
        x: what is read, [n, c, *spatial].
        w: the weights: [m, c/group, *kernel], transposed [c, m/group, *kernel].
        y: the result, [n, m, *spatial].
        pads_begin: padding before the first element of each spatial axis.
        pads_end: padding after the last one.
        strides: distance of neighbouring windows.
        dilations: distance of neighbouring elements of a window.
        transposed: the gradient of the convolution whose result `x` would be, with respect to its
            input `y`.
        tf32: whether float32 may be rounded to TF32.
        epilogue: what the same graph does to the result.
        written: whether cuDNN shall write a kernel for the graph, although there are engines for
            such ones.
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
        """What it does, in short: ``conv+bias+relu``."""
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
        """What is read and given."""
        return {"x": self.x, "w": self.w, **dict(self.epilogue.operands), "y": self.y}

    @property
    def results(self) -> tuple[str, ...]:
        """What is given."""
        return ("y",)

    @property
    def notes(self) -> tuple[str, ...]:
        """Float32 is not rounded unless that is wanted; 16-bit floats are summed in float32."""
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
        """Whether cuDNN 9.19 compiles a wrong kernel: of 16 bits, where groups meet padding alone.

        On an H200 eng8 gave infinities for 12 channels of one element in 3 groups, pads 1 and 3.
        """
        if self.y.dtype == float32 or self.transposed or self.group == 1:
            return False
        extents = [1 + (k - 1) * d for k, d in zip(self.w.dims[2:], self.dilations, strict=True)]
        pads = map(max, self.pads_begin, self.pads_end)
        return any(pad >= extent for pad, extent in zip(pads, extents, strict=True))

    @property
    def thinnest(self) -> int:
        """Channels that a group reads or gives, the smaller number."""
        return min(self.w.dims[1], self.w.dims[0] // self.group)

    def rank(self, engine: str) -> int:
        """Return how far behind an engine is to come; see `Ranked`.

        In float32, cuDNN 9's heuristics are wrong in this on an H200: where there are few input
        channels, engine 11 goes first, and engine 44 takes 1.2 to 1.7 times less (3x3 over
        32x3x224x224 for 64 filters 473 and 326 us); for few filters the tile is too wide (1x1 over
        32x96x54x54 for 16 filters 52 and 29 us); and where nothing but an engine without knobs
        has the epilogue, a kernel behind is better (3x3 over 32x512x28x28 4.2 and 2.8 ms).
        """
        if self.y.dtype != float32 or self.tf32 or self.transposed or self.group > 1:
            return 0
        name, _, knobs = engine.partition("_")
        if not knobs:
            return SLOW
        if name not in TILED or "k18=0" not in knobs:
            return 2
        return int(self.y.dims[1] <= FEW and knobs.startswith("k2=4_"))

    def express(self, graph: Any, cudnn: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put it into a graph; see `Operation`."""
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
        if self.written:  # what cuDNN proposes no other engine for
            y = graph.identity(y)
        return {"y": expressed(self.epilogue.stages, graph, cudnn, y, tensors)}
