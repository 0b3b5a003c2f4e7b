"""Plans run for callers with arrays on the device, or with their own streams."""

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
    """Runs a plan in the order of the caller's streams.

    If inputs and results are all on the device, the host enqueues the work on the stream and does
    not wait. Runs on different streams are serialized: each waits, on the device, for the previous
    one.

    Args:
        plan: the plan.
        exchange: the device's exchange of arrays with callers.
    """

    def __init__(self, plan: Plan, exchange: Exchange) -> None:
        self.plan = plan
        self._exchange = exchange
        self._turns = StreamSerializer(exchange)
        self._constants: dict[str, View] = {}

    def run(self, feeds: Mapping[str, Feed], stream: Stream) -> dict[str, Any]:
        """Run once.

        Args:
            feeds: for every input an array on the host, or one on the device if the plan's `ends`
                say so.
            stream: whose order the work follows.

        Returns:
            New arrays by output name: numpy arrays, or device arrays if `ends` say so.
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
        """Keep alive what a stream may still read after a run that was enqueued only in part."""
        try:
            self.finish(feeds, stream)
        except DeviceError:  # no event available: keep the caller's arrays until everything is done
            with suppress(DeviceError):
                stream.synchronize()

    def start(self, feeds: Mapping[str, Feed], stream: Stream) -> None:
        """Enqueue a run on `stream`, without copying results; omitted inputs are unchanged.

        With results on the device, `finish` must follow.
        """
        self._turns.begin(stream)
        for name, feed in feeds.items():
            if isinstance(feed, Lent):
                self._exchange.copy(self.plan.inputs[name], feed.view, stream)
            elif isinstance(feed, np.ndarray):
                self._turns.wait()  # the previous run may still read host memory
                self.plan.feed(name, feed)
        self.plan.execute(stream)

    def finish(self, feeds: Mapping[str, Feed], stream: Stream) -> None:
        """Record that all of a run, and the reads of its results, are enqueued on `stream`."""
        kept = [feed.owner for feed in feeds.values() if isinstance(feed, Lent)]
        self._turns.end(stream, kept)

    def _empty(self, stream: Stream) -> dict[str, Handle]:
        """Return new arrays for the results, allocated before the run."""
        outputs = self.plan.graph.outputs
        return {n: self._exchange.empty(v.tensor, stream) for n, v in outputs.items()}

    def _source(self, name: str) -> View:
        """Return the view of a result after a run."""
        if name in self.plan.outputs:
            return self.plan.outputs[name]
        if name not in self._constants:
            device = self.plan.device
            self._constants[name] = device.upload(self.plan.constants[name])
        return self._constants[name]

    def sources(self) -> dict[str, View]:
        """Return the views of the results after a run, by output name."""
        return {name: self._source(name) for name in self.plan.graph.outputs}

    def wait(self) -> None:
        """Wait until all runs are complete on the device."""
        self._turns.wait()

    def close(self) -> None:
        """Wait, and release everything but the plan."""
        with suppress(DeviceError):  # readers of results get the error of a failed device
            self.wait()
        for view in self._constants.values():
            view.buffer.close()
        self._constants.clear()
