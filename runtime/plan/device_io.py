"""Runs of a plan for callers who hold arrays on its device, or have their own stream."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import DeviceError
from .backend import Stream, View
from .exchange import Exchange, Feed, Handle, Lent, StreamSerializer
from .plan import Plan


class Resident:
    """Runs a plan in the order of streams that callers give.

    Where inputs and results all lie on the device, the host gives the work to the stream and does
    not wait. Several streams take turns: each run waits, on the device, for the one before.

    Args:
        plan: what runs.
        exchange: of the plan's device.
    """

    def __init__(self, plan: Plan, exchange: Exchange) -> None:
        self.plan = plan
        self._exchange = exchange
        self._turns = StreamSerializer(exchange)
        self._constants: dict[str, View] = {}

    def run(self, feeds: Mapping[str, Feed], stream: Stream) -> dict[str, Any]:
        """Run once.

        Args:
            feeds: for every input an array of the host, or one on the device where the plan's
                `ends` say so.
            stream: in whose order.

        Returns:
            New arrays by output name: numpy's, or the device's where the plan's `ends` say so.
        """
        if not self.plan.ends.on_device:
            self.start(feeds, stream)
            return {**self.plan.results()}
        results = self._empty(stream)
        try:
            self.start(feeds, stream)
            for name, result in results.items():
                self._exchange.copy(result.elements, self._source(name), stream)
        except BaseException:
            self._give_up(feeds, stream)
            raise
        self.finish(feeds, stream)
        return {**results}

    def _give_up(self, feeds: Mapping[str, Feed], stream: Stream) -> None:
        """Keep what a stream may still read after a run of which it has only been given a part."""
        try:
            self.finish(feeds, stream)
        except DeviceError:  # no event can be had: the caller's arrays are free when all is done
            with suppress(DeviceError):
                stream.synchronize()

    def start(self, feeds: Mapping[str, Feed], stream: Stream) -> None:
        """Give a run to `stream`, without copies of its results; inputs left out stay as they are.

        With results on the device, `finish` must follow.
        """
        self._turns.begin(stream)
        for name, feed in feeds.items():
            if isinstance(feed, Lent):
                self._exchange.copy(self.plan.inputs[name], feed.view, stream)
            elif isinstance(feed, np.ndarray):
                self._turns.wait()  # the run before may still read what lies on the host
                self.plan.feed(name, feed)
        self.plan.execute(stream)

    def finish(self, feeds: Mapping[str, Feed], stream: Stream) -> None:
        """Note that `stream` has been given all of a run, and what reads its results."""
        kept = [feed.owner for feed in feeds.values() if isinstance(feed, Lent)]
        self._turns.end(stream, kept)

    def _empty(self, stream: Stream) -> dict[str, Handle]:
        """Return new arrays for the results: before the run, which then need not be undone."""
        outputs = self.plan.graph.outputs
        return {n: self._exchange.empty(v.tensor, stream) for n, v in outputs.items()}

    def _source(self, name: str) -> View:
        """Return where a result is after a run."""
        if name in self.plan.outputs:
            return self.plan.outputs[name]
        if name not in self._constants:
            device = self.plan.device
            self._constants[name] = device.upload(self.plan.constants[name])
        return self._constants[name]

    def sources(self) -> dict[str, View]:
        """Return where the results are after a run, by output name."""
        return {name: self._source(name) for name in self.plan.graph.outputs}

    def wait(self) -> None:
        """Wait until the device has done every run."""
        self._turns.wait()

    def close(self) -> None:
        """Wait, and give back what is not the plan's."""
        with suppress(DeviceError):  # a device that failed says so to whoever reads results
            self.wait()
        for view in self._constants.values():
            view.buffer.close()
        self._constants.clear()
