"""Constants that a kernel packs instead of the host, which has them in memory as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from ....runtime.base.record import record
from ....runtime.ir.types import Array, TensorType
from .launch import Launch


@record
class PackingLaunch:
    """A launch that packs a constant.

    Attributes:
        launch: its argument ``y`` is the result.
        sources: what is uploaded for its other arguments, by name: sources of the constant, in C
            order.
        result: the type of the result.
    """

    launch: Launch
    sources: Mapping[str, Array]
    result: TensorType


@runtime_checkable
class KernelPacking(Protocol):
    """What `Packed.pack` may be: a function on the host that a kernel can replace."""

    def __call__(self, *sources: Array) -> Array:
        """Pack on the host."""
        ...

    def launch(self, *sources: Array) -> PackingLaunch | None:
        """Return the launch that gives the same numbers; None if the host has to pack."""
        ...
