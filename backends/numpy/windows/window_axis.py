"""Windows along one axis, tap by tap: the input elements of each tap."""

from __future__ import annotations

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window


@record
class WindowAxis:
    """Windows along one axis; see `Window`."""

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    output: int

    @property
    def is_trivial(self) -> bool:
        """Whether every window is the element at its own position."""
        return self.kernel == self.stride == 1 and not self.begin and not self.end

    def tap(self, k: int) -> tuple[slice, slice]:
        """Return the outputs whose `k`-th element is inside the input, and these elements."""
        shift = k * self.dilation - self.begin
        low = min(max(-(shift // self.stride), 0), self.output)
        high = min(max((self.size - 1 - shift) // self.stride + 1, low), self.output)
        start = max(0, low * self.stride + shift)
        stop = start + (high - low - 1) * self.stride + 1 if high > low else start
        return slice(low, high), slice(start, stop, self.stride)

    def counts(self, padding: bool) -> Array:
        """Return the number of elements in each window, optionally with padding."""
        first = np.arange(self.output) * self.stride - self.begin
        at = first[:, None] + np.arange(self.kernel) * self.dilation
        low, high = (-self.begin, self.size + self.end) if padding else (0, self.size)
        return ((at >= low) & (at < high)).sum(1)


def axes_of_window(window: Window, spatial: tuple[int, ...]) -> tuple[WindowAxis, ...]:
    """Return sliding windows axis by axis.

    Args:
        window: the windows.
        spatial: the input's spatial sizes.
    """
    return _zipped(spatial, window, window.output)


def transposed_axes(window: Window, spatial: tuple[int, ...]) -> tuple[WindowAxis, ...]:
    """Return the windows of a transposed convolution as windows over its result.

    Args:
        window: the transposed windows.
        spatial: the input's spatial sizes: the numbers of windows.
    """
    return _zipped(window.output, window, spatial)


def _zipped(
    sizes: tuple[int, ...], window: Window, counts: tuple[int, ...]
) -> tuple[WindowAxis, ...]:
    w = window
    fields = (sizes, w.kernel, w.strides, w.dilations, w.pads_begin, w.pads_end, counts)
    return tuple(WindowAxis(*values) for values in zip(*fields, strict=True))
