"""Computed filters, which a kernel packs in each run, in the orders in which constants are packed.

Algorithms describe a packed constant by its sources and a function. Where the filters of a
convolution are computed, the same recipe reads them from the workspace, after a launch that packs
them there; see `conv/computed_filters.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ..recipe.launch import Launch, each
from ..recipe.operands import Scratch, Tensor, ceil_div, words_of

#: Throughput of `pack_filters.cu` in bytes per microsecond, and microseconds of its launch with the
#: wait for its end.
PACKED, BEGIN = 1e6, 2.5


@runtime_checkable
class FilterOrder(Protocol):
    """What `Packed.pack` may be: a function on the host that a kernel can replace in each run."""

    def __call__(self, source: Array) -> Array:
        """Pack on the host."""
        ...

    def computed(self, w: Tensor) -> Launch | None:
        """Return the launch that packs computed weights; None if there is none.

        Its argument ``y`` is the start of the workspace, whose size is that of the result.
        """
        ...


@record
class Rows:
    """A view of computed weights as rows of terms.

    Attributes:
        rows: number of rows: outer ones, and inner ones.
        of_row: distances between these.
        terms: number of terms of a row: outer ones, and inner ones.
        of_term: distances between these.
        pitch: elements per row of the result, which are zero beyond its terms.
        filled: how many of the inner terms exist; the others are zero.
        own: the inner rows of a group, if several are joined: the terms that exist are those of the
            row's own group.
    """

    rows: tuple[int, int]
    of_row: tuple[int, int]
    terms: tuple[int, int]
    of_term: tuple[int, int]
    pitch: int
    filled: int
    own: int

    def launch(self, w: Tensor) -> Launch | None:
        """Return the launch that packs contiguous weights at the start of the workspace."""
        count = prod(self.rows) * self.pitch
        if max(count, w.size) >= 2**31 - 256:
            return None
        names = "of_outer_row", "of_row", "of_outer", "of_inner"
        launch = each(
            "gemm/pack_filters.cu",
            "pack_filters",
            count,
            args={
                **{"x": w, "y": Scratch(0), "count": count},
                "p": {
                    **{"pitch": self.pitch, "rows_in": self.rows[1], "terms": prod(self.terms)},
                    **{"inner": self.terms[1], "filled": self.filled, "own": self.own},
                    **dict(zip(names, (*self.of_row, *self.of_term), strict=True)),
                },
            },
            types=(("T", words_of(w.dtype)),),
            note="x".join(map(str, w.dims)),
        )
        return replace(launch, scratch=count * w.dtype.itemsize)


def pack_depthwise(w: Array) -> Array:
    """Return weights [c, 1, *kernel] as [kernel, c]."""
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T)


@record
class DepthwiseOrder:
    """Packs the filters of depthwise convolutions as [image, kernel, channel].

    Attributes:
        images: how many have filters of their own; 1 if they share them.
    """

    images: int = 1

    def __call__(self, source: Array) -> Array:
        """Pack on the host; of one image."""
        return pack_depthwise(source)

    def computed(self, w: Tensor) -> Launch | None:
        """Return the launch that packs computed weights; see `FilterOrder`."""
        channels, taps = w.dims[0] // self.images, prod(w.dims[1:])
        found = Rows(
            rows=(self.images, taps),
            of_row=(channels * taps, 1),
            terms=(1, channels),
            of_term=(0, taps),
            pitch=channels,
            filled=channels,
            own=taps,
        )
        return found.launch(w)


@record
class TransposedOrder:
    """Packs weights [c, m, *kernel] of transposed convolutions for the product with pixels.

    Attributes:
        pack: packs on the host.
        across: whether rows are channels, of taps and filters, padded to fours; they are taps and
            filters, of channels, padded to eights, otherwise.
    """

    pack: Callable[[Array], Array]
    across: bool

    def __call__(self, source: Array) -> Array:
        """Pack on the host."""
        return self.pack(source)

    def computed(self, w: Tensor) -> Launch | None:
        """Return the launch that packs computed weights; see `FilterOrder`."""
        (channels, filters), taps = w.dims[:2], prod(w.dims[2:])
        if self.across:
            found = Rows(
                rows=(1, channels),
                of_row=(0, filters * taps),
                terms=(taps, filters),
                of_term=(1, taps),
                pitch=ceil_div(taps * filters, 4) * 4,
                filled=filters,
                own=channels,
            )
        else:
            found = Rows(
                rows=(taps, filters),
                of_row=(1, taps),
                terms=(1, channels),
                of_term=(0, filters * taps),
                pitch=ceil_div(channels, 8) * 8,
                filled=channels,
                own=filters,
            )
        return found.launch(w)


def packing_time(w: Tensor) -> float:
    """Return the estimate in microseconds for packing weights in a run; 0 for constants."""
    return 0.0 if w.data is not None else BEGIN + 2 * w.size * w.dtype.itemsize / PACKED
