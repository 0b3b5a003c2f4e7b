"""Grouped convolutions of 16-bit floats whose groups are joined, so that channels fill words."""

from __future__ import annotations

from ....runtime.base.record import record
from ..recipe.operands import Ints, Packed, ceil_div
from .convolution import ConvProblem
from .pack import EIGHTS
from .problem import Batch, GemmArguments, Image, packed_filters

#: Numbers of groups that are joined.
JOINED = (1, 2, 4, 8, 16, 32)
#: Maximum channels of joined groups.
MAX_JOINED = 64


def joinable(conv: ConvProblem) -> Ints:
    """Return how many groups of 16-bit channels may be joined to one, so that they fill words."""
    maximum = max(1, MAX_JOINED // conv.channels)
    counts = (n for n in JOINED if n <= maximum and conv.group % n == 0)
    return tuple(n for n in counts if n * conv.channels % 2 == 0)


def batch_of(conv: ConvProblem, groups: int, image: Image, of_group: tuple[int, int]) -> Batch:
    """Return the products of a convolution: of its groups, or of images with their own filters.

    Args:
        conv: the convolution; of one group, if images have their own filters.
        groups: number of groups.
        image: its windows.
        of_group: filters of a group, and their elements as they are packed.
    """
    filters, elements = of_group
    if not conv.own:
        return Batch(groups, image.channels, elements, filters)
    return Batch(conv.apart, image.strides[0], elements, conv.stored.strides[0])


@record
class JoinedGroups:
    """A convolution of tensors in the formats of `formats_of`, in fewer groups.

    Attributes:
        conv: the convolution.
        joined: how many groups are computed as one: all channels are multiplied by all filters,
            with zero weights between different groups. As in Winograd's algorithm, an infinity
            spreads among them.
    """

    conv: ConvProblem
    joined: int = 1

    @property
    def groups(self) -> int:
        """Number of groups of the product."""
        return self.conv.group // self.joined

    def filters(self, channels: int) -> Packed:
        """Return the weights in words, for an image with this many channels in memory."""
        groups = self.groups * self.conv.apart
        return packed_filters(self.conv.w, groups, channels, "in eights", EIGHTS, self.joined)

    def gemm(self, image: Image, weights: Packed) -> GemmArguments:
        """Return the product of the windows of an image and the filters."""
        conv, filters, terms = self.conv, self.conv.filters * self.joined, image.terms
        ldb = ceil_div(terms, 8) * 8
        return GemmArguments(
            a=image,
            b=weights,
            c=conv.y,
            shape=(conv.pixels // conv.apart, filters, terms),
            ldb=ldb,
            ldc=conv.y.row,
            batch=batch_of(conv, self.groups, image, (filters, filters * ldb)),
            bias=conv.b,
            dtype=conv.x.dtype,
            concurrent=conv.setting.concurrent,
        )
