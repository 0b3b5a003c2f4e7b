"""Copies of large inputs and results between a device and callers' memory.

A plan copies each input to pinned memory of its own, which the device reads, and each result from
such memory to the caller. Large tensors bypass it: inputs are read where the caller has them, and
results written to pinned memory that is given to the caller. Their addresses differ from run to
run, so recorded graphs do not contain these copies: they run before and after them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..base.copying import copied, is_shared, pieces
from ..ir.types import Array, TensorType
from .backend import Run, Stream, View
from .exchange import Exchange, IOPlacement
from .format import Format
from .host import HOST, HostBuffer, array
from .result_memory import ResultMemory

if TYPE_CHECKING:
    from .rows import Layout, Row

#: Minimum sizes in bytes of inputs and of results: copies on the host then take longer than the
#: additional calls, as does its look for infinities and NaN in a result.
MIN_UPLOAD, MIN_DOWNLOAD = 1 << 19, 1 << 16


class Upload:
    """Copies an input to the device, from the caller's memory unless its layout is another one.

    Several threads copy a large one that is not pinned to pinned memory; each piece is sent from
    there while they copy others. What one thread would copy, the driver does while it is sent.

    Args:
        target: where it is on the device.
        staging: the plan's pinned memory for it.
        exchange: of the device.
    """

    def __init__(self, target: View, staging: View, exchange: Exchange) -> None:
        self._target, self._staging, self._exchange = target, staging, exchange
        self._source, self._staged = staging, array(staging)
        self._unstaged: Array | None = None

    def feed(self, data: Array) -> None:
        """Set the elements for the next run, which reads them only then unless it copies them."""
        if data.dtype != self._staged.dtype or not data.flags.c_contiguous:
            np.copyto(self._staged, data)
        elif is_shared(self._staged, data) and not self._exchange.is_pinned(data):
            self._unstaged = data
        else:
            self._source = View(HOST, HostBuffer.around(data), 0, self._staging.type)

    def release(self) -> None:
        """Drop the caller's memory, which the device must not be reading any more."""
        self._source, self._unstaged = self._staging, None

    def __call__(self, stream: Stream) -> None:
        data, self._unstaged = self._unstaged, None
        if data is None:
            self._exchange.copy(self._target, self._source, stream)
            return
        staged, sends = self._pieces
        with closing(copied(staged, pieces(data))) as indices:
            for index in indices:
                sends[index](stream)

    @cached_property
    def _pieces(self) -> tuple[list[Array], list[Run]]:
        """Return the pieces of the pinned memory, and what sends each to the device."""
        staged, sends, offset = pieces(self._staged), list[Run](), 0
        for piece in staged:
            type_ = TensorType(piece.dtype, piece.shape)
            to, source = (
                View(view.device, view.buffer, view.offset + offset, type_)
                for view in (self._target, self._staging)
            )
            sends.append(self._target.device.copier(to, source))
            offset += piece.nbytes
        return staged, sends


class Screen(NamedTuple):
    """A run that looks for infinities and NaN, and where it writes that it has found some."""

    run: Run
    found: Array


class Download:
    """Copies a result from the device to memory that is given to the caller.

    Args:
        name: of the result.
        source: where it is on the device.
        memory: provides the memory.
        exchange: of the device.
        screen: looks for infinities and NaN; None to do without.
    """

    def __init__(
        self,
        name: str,
        source: View,
        memory: ResultMemory,
        exchange: Exchange,
        screen: Screen | None = None,
    ) -> None:
        self._name, self._source = name, source
        self._memory, self._exchange, self._screen = memory, exchange, screen
        self._result: Array | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the device has seen that the last run's result has no infinity or NaN."""
        return self._screen is not None and not self._screen.found.any()

    def __call__(self, stream: Stream) -> None:
        if self._screen is not None:
            self._screen.found[...] = 0
            self._screen.run(stream)
        if self._result is None:
            self._result = self._memory.pinned(self._name, self._source.type)
        target = View(HOST, HostBuffer.around(self._result), 0, self._source.type)
        self._exchange.copy(target, self._source, stream)

    def take(self) -> Array:
        """Return the result of the last run, which has ended; the caller owns it."""
        result, self._result = self._result, None
        if result is None:
            raise RuntimeError(f"'{self._name}' has been taken since the last run")
        return result


def set_apart(layout: Layout, ends: IOPlacement) -> tuple[dict[str, Row], dict[str, Row]]:
    """Find the copies of large inputs and results, and mark their rows as `Row.apart`.

    Inputs on the device then exist from the start of a run, and results until its end.

    Returns:
        The rows of inputs and of results, by name.
    """
    uploads: dict[str, Row] = {}
    downloads: dict[str, Row] = {}
    if ends.on_device:  # the host does not wait until its memory has been read
        return uploads, downloads
    reads = Counter(slot.root for row in layout.rows for slot in row.inputs)
    gives = Counter(slot.root for slot in layout.outputs.values())
    inputs = {slot: name for name, slot in layout.inputs.items()}
    outputs = {slot: name for name, slot in layout.outputs.items() if name not in ends.kept}
    for row in layout.rows:
        if row.kind != "copy":
            continue
        (source,), (target,) = row.inputs, row.outputs
        if source.pitch or target.pitch or {source.format, target.format} != {Format.CONTIGUOUS}:
            continue
        is_input = source in inputs and source.device is HOST and reads[source.root] == 1
        is_result = target in outputs and gives[target.root] == 1 and not reads[target.root]
        if is_input and source.nbytes >= MIN_UPLOAD:
            uploads[inputs[source]] = row
            target.first = -1
            row.apart = True
        elif is_result and source.nbytes >= MIN_DOWNLOAD:
            downloads[outputs[target]] = row
            source.root.last = source.last = len(layout.rows)
            row.apart = True
    return uploads, downloads
