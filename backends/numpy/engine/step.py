"""Steps on the host: a tape of numpy calls on fixed arrays, recorded once, played every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ....runtime.errors import FAILURES, DeviceError, out_of_memory
from ....runtime.ir.dtypes import DType
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.plan.backend import BuildContext, Run, View
from ....runtime.plan.host import array, logical
from .cost import blocks_worth
from .thread_pool import CREW

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
        self,
        site: BuildContext,
        inputs: tuple[View, ...],
        outputs: tuple[View, ...],
        scratch: View | None,
    ) -> None:
        self._weights = site.weights
        self._arrays = dict(zip(site.inputs, map(logical, inputs), strict=True))
        self._arrays |= dict(zip(site.outputs, map(logical, outputs), strict=True))
        self._scratch = None if scratch is None else array(scratch)

    def part(self, first: int, nbytes: int) -> Bound:
        """Return the same arrays with some bytes of the workspace alone."""
        made = copy(self)
        if self._scratch is not None:
            made._scratch = self._scratch[first : first + nbytes]
        return made

    def __getitem__(self, value: Value) -> Array:
        return array(self._weights.view(value)) if value.is_constant else self._arrays[value]

    def get(self, value: Value | None) -> Array | None:
        """Return the array of a value; None for inputs left out and outputs that nobody reads."""
        if value is None or not (value.is_constant or value in self._arrays):
            return None
        return self[value]

    def as_dtype(self, value: Value, dtype: DType) -> Array:
        """Return a constant in another dtype, converted once a model; other values as they are."""
        if value.tensor.dtype == dtype or not value.is_constant:
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


def portions(tapes: Sequence[Tape], nanoseconds: float, workers: int) -> list[Tape]:
    """Join neighbouring tapes to blocks that are worth handing to another thread.

    Args:
        tapes: calls on small blocks, in order.
        nanoseconds: what all of them take on one core.
        workers: how many threads there are.
    """
    count = max(1, min(len(tapes), blocks_worth(nanoseconds, workers)))
    bounds = [len(tapes) * i // count for i in range(count + 1)]
    return [[call for tape in tapes[a:b] for call in tape] for a, b in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class HostStep:
    """A step that plays tapes.

    Attributes:
        kernel: for the placement report.
        site: where it runs.
        record: makes the tapes for arrays: one for each block, which may run in any order.
        workers: threads that it makes tapes for; each has its own workspace.
        own: bytes of workspace for each of them.
        capturable: never; the host has nothing to capture.
    """

    kernel: str
    site: BuildContext
    record: Callable[[Bound], list[Tape]]
    workers: int = 1
    own: int = 0
    capturable: bool = False

    @property
    def scratch(self) -> int:
        """Bytes of workspace."""
        return self.own * self.workers

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Record the tapes on these addresses and return what plays them.

        Raises:
            DeviceError: when they are played, for data that an operator cannot work on.
        """
        bound = Bound(self.site, inputs, outputs, scratch)
        jobs = [self.record(bound.part(i * self.own, self.own)) for i in range(self.workers)]
        nodes = self.site.nodes
        # One small block is done before the crew has been asked, unless BLAS would share it out.
        alone = [call for tape in jobs[0] for call in tape]
        is_light = len(jobs[0]) <= 1 and not any(node.op.dense for node in nodes)

        def play(stream: object) -> None:
            try:
                with np.errstate(all="ignore"):
                    if not is_light:
                        CREW.play(jobs)
                        return
                    for call in alone:
                        call()
            except MemoryError as error:
                raise out_of_memory(_names(nodes), error) from error
            except FAILURES as error:
                raise DeviceError(f"{_names(nodes)} on numpy: {error}") from error

        return play


def _names(nodes: Sequence[Node]) -> str:
    return " + ".join(f"'{node.name}' ({node.kind})" for node in nodes)
