"""The task of convolution algorithms: operator, operands, geometry and epilogue."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, float32, name_of
from ....runtime.ops.conv import Conv, ConvTranspose
from ....runtime.ops.window import Window, transposed_window, window
from ....runtime.plan.format import Format
from ..algorithms.registry import RecipeContext, Setting, need_dtypes
from ..algorithms.selection import Formats
from ..codegen.epilogue import Epilogue, no_epilogue
from ..recipe.operands import Ints, Tensor
from .atoms import HALVES
from .windows import MAX_REACH, reach_of

#: Maximum number of elements of an image: kernels count in 32 bits.
MAX_ELEMENTS = 2**31
#: Maximum taps of the only filter of the only channel for which a result is a thread's sum.
FEW_TAPS = 49


@record
class ConvProblem:
    """A convolution, or a transposed one.

    Attributes:
        op: the operator.
        y: the result [n, m, *output].
        x: the input [n, c, *spatial].
        w: the weights, [m, c / group, *kernel]; if transposed, [c, m / group, *kernel]; if images
            have their own, [n * m, c / group, *kernel].
        b: the bias [m], or [n * m] if images have their own; or None.
        view: the windows.
        epilogue: the fused elementwise nodes.
        setting: the GPU and the user's options.
        pooled: the maxima of squares of 2 x 2 results, which are stored instead of them; or None.
        own: whether each image has filters of its own, which are computed.
        placed: these filters of single channels, [n, m, *kernel], if they are read where they are.
        boxed: whether blocks may cut pixels once for all taps; see `schedules.boxes`.
    """

    op: Conv | ConvTranspose
    y: Tensor
    x: Tensor
    w: Tensor
    b: Tensor | None
    view: Window
    epilogue: Epilogue
    setting: Setting
    pooled: Tensor | None = None
    own: bool = False
    placed: Tensor | None = None
    boxed: bool = True

    @property
    def stored(self) -> Tensor:
        """What is stored."""
        return self.pooled or self.y

    @property
    def title(self) -> str:
        """What follows the sums, for reports."""
        return f"{self.epilogue.title}{' MaxPool 2x2' if self.pooled else ''}".strip()

    @property
    def group(self) -> int:
        """Number of groups."""
        return self.op.group

    @property
    def filters(self) -> int:
        """Filters (output channels) per group."""
        return self.y.dims[1] // self.group

    @property
    def channels(self) -> int:
        """Input channels per group."""
        return self.x.dims[1] // self.group

    @property
    def taps(self) -> int:
        """Window elements per channel."""
        return prod(self.view.kernel)

    @property
    def pixels(self) -> int:
        """Output positions of all images."""
        return prod(self.y.dims) // max(self.y.dims[1], 1)

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations by definition."""
        pixels = self.pixels
        if isinstance(self.op, ConvTranspose):
            pixels = prod(self.x.dims) // max(self.x.dims[1], 1)
        return pixels * self.filters * self.channels * self.taps * self.group

    @property
    def is_pointwise(self) -> bool:
        """Whether every window is one pixel, without padding."""
        return self.taps == 1 and not any(self.view.pads_begin + self.view.pads_end)

    @property
    def is_long(self) -> bool:
        """Whether the image is too long for tables of addresses, which `tma.cu` does without."""
        return self.x.rank > 3 and reach_of(self.x.dims[2:], self.view) > MAX_REACH

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel has its own filter."""
        return 1 < self.group == self.x.dims[1] == self.y.dims[1]

    @property
    def apart(self) -> int:
        """How many images have filters of their own; 1 if all of them share theirs."""
        return self.x.dims[0] if self.own else 1

    @property
    def formats(self) -> Formats:
        """The formats of input and result."""
        return self.x.format, self.y.format

    @property
    def plain(self) -> ConvProblem:
        """The same convolution, with results as they are."""
        return replace(self, epilogue=self.epilogue.as_plain) if self.epilogue.halves else self

    def within(self, formats: Formats) -> ConvProblem:
        """Return the same convolution with tensors in other formats."""
        if formats == self.formats:
            return self
        ends = zip((self.x, self.y), formats, strict=True)
        x, y = (Tensor(tensor.value, format, tensor.pitch) for tensor, format in ends)
        return replace(self, x=x, y=y)

    @property
    def is_cut(self) -> bool:
        """Whether the kernel before can store the input in halves."""
        return self.setting.cut.get(self.x.value) is Format.PIXEL_HALVES

    @property
    def around(self) -> tuple[str, ...]:
        """What its speed depends on besides; see `selection.Task`."""
        texts = {
            "cut": self.is_cut,
            "pooled": self.pooled is not None,
            "not boxed": not self.boxed,
            f"beside {self.setting.others}": self.setting.concurrent,
        }
        return tuple(text for text, applies in texts.items() if applies)

    @property
    def signature(self) -> str:
        """What speed depends on: ``Conv float32 1x64x56x56 64x64x3x3 stride 1x1 ...``."""
        view = self.view
        parts = [
            *(type(self.op).__name__, name_of(self.x.dtype), times(self.x.dims)),
            *(times(self.w.dims), "to", times(self.y.dims)),
            *("stride", times(view.strides), "pad", times(view.pads_begin)),
            *("dilation", times(view.dilations), "group", str(self.group)),
        ]
        if self.w.data is None:
            parts.append("weights of run time")
        if self.own:
            parts.append("for each image")
        if self.placed is not None:
            parts.append("in place")
        return " ".join(parts)

    # ── reasons ──────────────────────────────────────────────────────────────────────────────

    def need_float32(self) -> str:
        """Return why kernels for float32 with 32-bit indices do not apply; empty if they do."""
        refused = need_dtypes((float32,), self.x, self.w, self.b) or self.need_own()
        if refused:
            return f"{refused}, not float32"
        if max(self.x.size, self.y.size) >= MAX_ELEMENTS:
            return f"{max(self.x.size, self.y.size)} elements, not fewer than 2^31"
        return ""

    def need_halves(self) -> str:
        """Return why kernels for 16-bit floats do not apply; empty if they do."""
        refused = need_dtypes(HALVES, self.x, self.w, self.b)
        return f"{refused}, not float16 or bfloat16" if refused else ""

    def need_own(self) -> str:
        """Return why results must be stored in the input's dtype; empty if they are."""
        own, stored = self.x.dtype, self.y.dtype
        return "" if own == stored else f"sums of {own.name} that are stored as {stored.name}"

    def need_plane(self) -> str:
        """Return why kernels over one or two spatial axes do not apply; empty if they do."""
        return f"{self.x.rank - 2} spatial axes, not 1 or 2" if self.x.rank not in (3, 4) else ""

    def need_constants(self) -> str:
        """Return why weights cannot be packed; empty if they can."""
        if self.w.data is None:
            return "computed weights, which cannot be packed"
        return self.need_weights()

    def need_weights(self) -> str:
        """Return why weights can be neither packed nor computed; empty if they can."""
        return "" if self.w.size else "weights without elements"

    def need_shared(self) -> str:
        """Return why images cannot have filters of their own; empty if they do not."""
        return "filters of each image" if self.own else ""

    def need_depthwise(self) -> str:
        """Return why it is not depthwise; empty if it is.

        So is one group of one channel and one filter, as in channel attention (ECA), of few taps.
        """
        is_single = self.x.dims[1] == self.y.dims[1] == 1 and self.taps <= FEW_TAPS
        if self.is_depthwise or is_single:
            return ""
        if self.group == 1:
            return "one group"
        return f"groups of {self.channels} channels and {self.filters} filters, not 1 and 1"

    def need_one_group(self) -> str:
        """Return why several groups are not supported; empty if there is only one."""
        return f"{self.group} groups, not 1" if self.group != 1 else ""


def times(dims: Ints) -> str:
    """Return sizes as ``1x64x56``."""
    return "x".join(map(str, dims))


def problem_of(context: RecipeContext) -> ConvProblem | str:
    """Return the problem of a Conv or ConvTranspose, or why no kernel takes it."""
    op, y, (x, w, b) = context.op, context.y, (*context.inputs, None)[:3]
    if not isinstance(op, Conv | ConvTranspose) or y is None or x is None or w is None:
        return "not a convolution"
    refused = need_dtypes(FLOATS, y, x, w, b)
    if refused:
        return refused
    if x.rank > 5:
        return f"{x.rank - 2} spatial axes"
    if y.size and 0 in x.dims[2:]:
        return "an image without pixels"
    transposed = isinstance(op, ConvTranspose)
    find = transposed_window if transposed else window
    view = find(op, x.dims[2:], w.dims[2:])
    return ConvProblem(
        op, y, x, w, b, view, context.epilogue or no_epilogue(x.dtype), context.setting
    )


def image_formats(conv: ConvProblem, minimum: int) -> Formats:
    """Return channels-last formats, but C order for inputs of fewer than `minimum` channels."""
    first = Format.CONTIGUOUS if conv.x.dims[1] < minimum else Format.CHANNELS_LAST
    return first, Format.CHANNELS_LAST
