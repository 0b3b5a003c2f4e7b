"""im2col: a matrix with one column per window of an image, block by block."""

from __future__ import annotations

from functools import partial
from math import prod

from numpy.lib.stride_tricks import as_strided

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array, TensorType
from ....runtime.ops.window import Window
from ..engine.blocking import Block, lengths
from ..engine.step import Bound, Piece, ScratchLayout, Tape
from ..numerics.halves import copying


@record
class Region:
    """The part of the padded input covered by the windows of a box of outputs.

    Attributes:
        inside: the part inside the input.
        at: the position of that part in the region.
        shape: its size, padding included.
    """

    inside: Block
    at: Block
    shape: tuple[int, ...]

    @property
    def is_padded(self) -> bool:
        """Whether some of it is padding."""
        return lengths(self.inside) != self.shape


def region(window: Window, spatial: tuple[int, ...], box: Block) -> Region:
    """Return the region of the outputs in `box`."""
    inside: list[slice] = []
    at: list[slice] = []
    shape: list[int] = []
    axes = zip(box, spatial, window.strides, window.extent, window.pads_begin, strict=True)
    for part, size, stride, extent, pad in axes:
        first = part.start * stride - pad
        end = (part.stop - 1) * stride - pad + extent
        low, high = min(max(first, 0), size), max(min(end, size), 0)
        high = max(low, high)
        inside.append(slice(low, high))
        at.append(slice(low - first, high - first))
        shape.append(end - first)
    return Region(tuple(inside), tuple(at), tuple(shape))


def outside(data: Array, axis: int, filled: slice) -> list[Array]:
    """Return the padding before and after a range of an axis, unless it is empty."""
    lead = (slice(None),) * axis
    ends = data[(*lead, slice(0, filled.start))], data[(*lead, slice(filled.stop, None))]
    return [end for end in ends if end.size]


def margins(data: Array, filled: Block) -> list[Array]:
    """Return the padding around a box of all axes but the first, as disjoint parts."""
    found: list[Array] = []
    for axis, part in enumerate(filled, 1):
        found += outside(data, axis, part)
        data = data[(*(slice(None),) * axis, part)]
    return found


def windows(image: Array, window: Window, counts: tuple[int, ...]) -> Array:
    """Return a view [channels, *kernel, *counts] of the windows over `image` [channels, *spatial].

    The first window starts at the image's first element.
    """
    channels, *steps = image.strides
    taps = [step * d for step, d in zip(steps, window.dilations, strict=True)]
    moves = [step * s for step, s in zip(steps, window.strides, strict=True)]
    shape = (image.shape[0], *window.kernel, *counts)
    return as_strided(image, shape, (channels, *taps, *moves), writeable=False)


@record
class Unfolding:
    """Writes matrices [groups, channels * kernel, positions] of images, for boxes of outputs.

    Attributes:
        window: the windows.
        spatial: the input's spatial sizes.
        channels: channels per group.
        padded: workspace for a padded region; None if there is no padding.
        matrix: workspace for a matrix; None if images are matrices already.
        has_ones: whether a row of ones ends each matrix, for a bias among the weights.
    """

    window: Window
    spatial: tuple[int, ...]
    channels: int
    padded: Piece | None
    matrix: Piece | None
    has_ones: bool

    @classmethod
    def of(
        cls,
        window: Window,
        source: TensorType,
        group: int,
        dtype: DType,
        blocks: tuple[int, list[Block]],
        scratch: ScratchLayout,
        *,
        ones: bool = False,
    ) -> Unfolding:
        """Reserve the workspace of the largest block.

        Args:
            window: the windows.
            source: type of the input [n, channels, *spatial].
            group: number of groups.
            dtype: dtype of the matrices.
            blocks: maximum groups per block, and all boxes of outputs.
            scratch: the workspace.
            ones: whether each matrix ends with a row of ones.
        """
        groups, boxes = blocks
        spatial, channels = source.dims[2:], source.dims[1] // group
        regions = [region(window, spatial, box) for box in boxes]
        needs = [prod(r.shape) for r in regions if r.is_padded]
        plain = all(k == 1 and s == 1 for k, s in zip(window.kernel, window.strides, strict=True))
        padded = matrix = None
        if needs:
            padded = scratch.take(groups * channels * max(needs), dtype)
        if needs or not plain or ones or dtype != source.dtype:
            maximum = max((prod(lengths(box)) for box in boxes), default=0)
            rows = channels * prod(window.kernel) + ones
            matrix = scratch.take(groups * rows * maximum, dtype)
        return cls(window, spatial, channels, padded, matrix, ones)

    def fill(self, tape: Tape, bound: Bound, image: Array, groups: int, box: Block) -> Array:
        """Record the calls that fill a matrix, and return the matrix.

        Args:
            tape: the calls.
            bound: the step's arrays.
            image: channels [groups * channels, *spatial] of whole groups of one image.
            groups: how many.
            box: which outputs.
        """
        counts = lengths(box)
        rows = self.channels * prod(self.window.kernel)
        if self.matrix is None:
            shape = groups, rows, prod(counts)
            return image[(slice(None), *box)].reshape(shape, copy=False)
        covered = region(self.window, self.spatial, box)
        part = image[(slice(None), *covered.inside)]
        if covered.is_padded and self.padded is not None:
            padded = bound.scratch(self.padded, (len(part), *covered.shape))
            tape.extend(partial(gap.fill, 0) for gap in margins(padded, covered.at))
            tape.append(copying(padded[(slice(None), *covered.at)], part))
            part = padded
        matrix = bound.scratch(self.matrix, (groups, rows + self.has_ones, prod(counts)))
        shape = groups, self.channels, *self.window.kernel, *counts
        source = windows(part, self.window, counts).reshape(shape)
        tape.append(copying(matrix[:, :rows].reshape(shape, copy=False), source))
        if self.has_ones:
            tape.append(partial(matrix[:, rows].fill, 1))
        return matrix
