"""Steps on the host: a tape of numpy calls on fixed arrays, recorded once, played every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...runtime.backend import Run, Site, View
from ...runtime.dtypes import DType
from ...runtime.errors import DeviceError
from ...runtime.host import array, logical
from ...runtime.ir import Value
from ...runtime.types import Array

#: Calls without arguments, made one after the other.
Tape = list[Callable[[], object]]

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements in the workspace, from the byte `offset` on."""

    offset: int
    size: int
    dtype: DType


class Scratch:
    """The workspace that a step wants: how much of it, and what lies where."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, size: int, dtype: DType) -> Piece:
        """Reserve `size` elements."""
        piece = Piece(self.nbytes, size, dtype)
        self.nbytes += -(-size * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return piece


class Bound:
    """The arrays that one step works on: inputs, outputs and constants by value, and scratch."""

    def __init__(
        self, site: Site, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> None:
        self._weights = site.weights
        self._arrays = dict(zip(site.inputs, map(logical, inputs), strict=True))
        self._arrays |= dict(zip(site.outputs, map(logical, outputs), strict=True))
        self._scratch = None if scratch is None else array(scratch)

    def __getitem__(self, value: Value) -> Array:
        return array(self._weights.view(value)) if value.is_constant else self._arrays[value]

    def get(self, value: Value | None) -> Array | None:
        """Return the array of a value; None for inputs left out and outputs that nobody reads."""
        if value is None or not (value.is_constant or value in self._arrays):
            return None
        return self[value]

    def as_dtype(self, value: Value, dtype: DType) -> Array:
        """Return a constant in another dtype, converted once a model."""
        if value.tensor.dtype == dtype:
            return self[value]
        layout = ("dtype", dtype)
        return array(self._weights.packed((value,), layout, lambda data: data.astype(dtype)))

    def packed(self, sources: tuple[Value, ...], layout: Any, pack: Callable[..., Array]) -> Array:
        """Return what `pack` makes of constants, made once a model; see `Weights.packed`."""
        return array(self._weights.packed(sources, layout, pack))

    def scratch(self, piece: Piece, shape: tuple[int, ...]) -> Array:
        """Return the first elements of a piece of the workspace as an array of `shape`."""
        size = prod(shape)
        if self._scratch is None or size > piece.size:
            raise ValueError(f"{size} elements of scratch were not reserved")
        end = piece.offset + size * piece.dtype.itemsize
        return self._scratch[piece.offset : end].view(piece.dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step that plays a tape.

    Attributes:
        kernel: for the placement report.
        site: where it runs.
        record: makes the tape for arrays.
        scratch: bytes of workspace.
        capturable: never; the host has nothing to capture.
    """

    kernel: str
    site: Site
    record: Callable[[Bound], Tape]
    scratch: int = 0
    capturable: bool = False

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Record the tape on these addresses and return what plays it.

        Raises:
            DeviceError: when it is played, for data that an operator cannot work on.
        """
        tape = tuple(self.record(Bound(self.site, inputs, outputs, scratch)))
        nodes = self.site.nodes

        def play(stream: object) -> None:
            try:
                with np.errstate(all="ignore"):
                    for call in tape:
                        call()
            except (ArithmeticError, IndexError, ValueError) as error:
                names = " + ".join(f"'{node.name}' ({node.kind})" for node in nodes)
                raise DeviceError(f"{names} on numpy: {error}") from error

        return play
