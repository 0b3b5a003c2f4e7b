"""The boundary between callers and a model: names, checks, and copies between memories."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np

from ..base.arguments import anything, mapping, shape, shown
from ..errors import InputError, UsageError
from ..ir.dtypes import string
from ..ir.graph import Graph
from ..ir.types import HostValue, MapType, OptionalType
from ..plan.backend import Device, Stream
from ..plan.exchange import Feed, Lent, exchange_of
from .dlpack import place_name, place_of
from .indexed_axes import indexed_sizes
from .io_types import TensorInfo, by_name, check_lent, check_value, missing, refuse_unknown

#: Where results go: numpy arrays, or arrays in the memory of the model's device.
Place = Literal["host", "device"]


class IOBoundary:
    """Checks the inputs of callers, and moves values to where they are needed.

    Args:
        graph: as imported.
        device: the model's device.

    Attributes:
        inputs: as callers see them.
        exchange: the device's exchange with callers; None for the host.
        wanted_here: names of inputs that the host must read, even if they are on a device.
    """

    def __init__(self, graph: Graph, device: Device) -> None:
        self.inputs = tuple(
            replace(TensorInfo.of(v), needs=graph.needs, indexes=indexed_sizes(v))
            for v in graph.inputs
        )
        self.exchange = exchange_of(device)
        self.wanted_here: set[str] = set()
        self._device, self._values = device, graph.values

    # ── in ───────────────────────────────────────────────────────────────────────────────────

    def named(self, batch: Any) -> Mapping[str, Any]:
        """Return a batch, which may be positional, by input name."""
        return by_name(self.inputs, batch)

    def called(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return inputs by name; leading ones may be positional, or all in one dict."""
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            given = cast("Mapping[Any, Any]", arrays[0])
            if not self._takes_map(given):
                arrays, named = (), {**given, **named}
        if not named:
            return self.named(arrays)
        names = [info.name for info in self.inputs[: len(arrays)]]
        twice = [name for name in names if name in named]
        if twice or len(arrays) > len(names):
            raise InputError(
                f"input '{twice[0]}' is given by position and by name"
                if twice
                else f"{len(arrays)} arrays by position; the model takes {len(names)}"
            )
        return {**dict(zip(names, arrays, strict=True)), **named}

    def _takes_map(self, given: Mapping[Any, Any]) -> bool:
        """Whether a dict is the value of the only input, rather than inputs by name."""
        only = self.inputs[0] if len(self.inputs) == 1 else None
        is_map = only is not None and isinstance(only.type, MapType | OptionalType)
        return is_map and only is not None and only.name not in given

    def arranged(self, inputs: Any, outputs: Any) -> tuple[Mapping[str, Any], Any]:
        """Return inputs by name and the requested outputs, in either order of arguments.

        onnxruntime's ``run(names, inputs)`` has the names first.
        """
        if isinstance(outputs, Mapping):
            if isinstance(inputs, Mapping):
                raise UsageError("outputs: expected names of tensors, not a second dict")
            return cast("Mapping[str, Any]", outputs), inputs
        return self.named(inputs), outputs

    def order(self, values: Iterable[Any], to: Place, stream: Any) -> Stream | None:
        """Return the stream of a run; None if it uses only host memory."""
        if type(to) is not str or to not in ("host", "device"):
            raise UsageError(f"to={shown(to)} is neither 'host' nor 'device'")
        if self.exchange is None:
            if stream is None:
                return None
            raise UsageError(f"a model on {self._device.name} has no streams; omit stream=")
        is_there = to == "device" or any(place_of(value) is not None for value in values)
        return self.exchange.stream(stream) if is_there or stream is not None else None

    def check(
        self,
        inputs: Mapping[str, Any],
        work: Stream | None = None,
        *,
        needed: Container[str] | None = None,
    ) -> dict[str, Feed]:
        """Validate and convert the callers' inputs.

        Args:
            inputs: values by name.
            work: the stream that reads inputs on the device.
            needed: names of the inputs that must not be missing; all if None.

        Raises:
            InputError: a name, dtype, rank, shape or device does not fit.
        """
        feeds: dict[str, Feed] = {}
        for info in self.inputs:
            if info.name in inputs:
                feeds[info.name] = self._feed(info, inputs[info.name], work)
            elif needed is None or info.name in needed:
                self._refuse_unknown(inputs)
                raise missing(self.inputs, inputs, needed)
        if len(feeds) < len(inputs):
            self._refuse_unknown(inputs)
        return feeds

    def _feed(
        self,
        info: TensorInfo,
        value: Any,
        work: Stream | None,
    ) -> Feed:
        place = place_of(value)
        if place is None:
            return check_value(info, value)
        if work is None or self.exchange is None:
            raise InputError(
                f"input '{info.name}' is on {place_name(place)}; this model runs on the host: "
                "give it as a numpy array, or load the model with backend='cuda'"
            )
        lent = check_lent(info, value, self.exchange, work)
        return self.exchange.fetch(lent.view, work) if info.name in self.wanted_here else lent

    def _refuse_unknown(self, names: Iterable[Any]) -> None:
        for name in names:
            value = self._values.get(name) if isinstance(name, str) else None
            if value is not None and value.data is not None:
                raise InputError(
                    f"'{name}' is not an input: an initializer of the file gives its value, even "
                    "if the file lists it among the inputs; remove the initializer to feed another"
                )
        refuse_unknown(self.inputs, names)

    def samples(
        self, shapes: Mapping[str, Sequence[int]], needed: Container[str]
    ) -> dict[str, Feed]:
        """Return zeros of these shapes for the needed inputs, by name, that take no memory.

        Dimensions that are neither given nor fixed by the model are 1.
        """
        expected = "shapes by input, such as {'image': (1, 3, 224, 224)}"
        shapes = mapping(expected, key=anything, value=shape)("shapes", shapes)
        self._refuse_unknown(shapes)
        feeds: dict[str, HostValue] = {}
        for info in (each for each in self.inputs if each.name in needed):
            if info.dtype is None and info.type is not None:
                feeds[info.name] = None if isinstance(info.type, OptionalType) else []
                continue
            if info.dtype is None or (info.shape is None and info.name not in shapes):
                raise InputError(f"the shape of input '{info.name}' is not known; give one")
            default = tuple(d if isinstance(d, int) else 1 for d in info.shape or ())
            sizes = tuple(shapes.get(info.name, default))
            zero = np.array("" if info.dtype == string else 0, info.dtype)
            try:
                feeds[info.name] = np.broadcast_to(zero, sizes)
            except ValueError as error:  # more axes or elements than an array can have
                raise InputError(f"shapes: '{info.name}' of {list(sizes)}: {error}") from error
        return self.check(feeds, needed=needed)

    # ── across ───────────────────────────────────────────────────────────────────────────────

    def here(self, feeds: Mapping[str, Feed], work: Stream | None) -> dict[str, HostValue]:
        """Return the feeds, with those on the device copied to the host."""
        found: dict[str, HostValue] = {}
        for name, feed in feeds.items():
            if not isinstance(feed, Lent):
                found[name] = feed
            elif self.exchange is not None and work is not None:
                found[name] = self.exchange.fetch(feed.view, work)
        return found

    def there(self, results: Mapping[str, HostValue], work: Stream | None) -> dict[str, Any]:
        """Return results, copied to the model's device unless that is the host."""
        if self.exchange is None or work is None:
            return {**results}
        return {name: self._there(value, work) for name, value in results.items()}

    def _there(self, value: HostValue, work: Stream) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype == string or self.exchange is None:
            return value
        return self.exchange.handle(self._device.upload(value), work)
