"""A plan owned by one caller, who accesses its tensors in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from ..base.arguments import refused
from ..base.closable import CheckedClosable
from ..errors import InputError, UsageError
from ..ir.types import HostValue
from ..plan.backend import Stream, View
from ..plan.device_io import Resident
from ..plan.exchange import Exchange, Lent
from ..plan.format import Format
from ..plan.host import HOST, array
from ..plan.plan import Plan

Check = Callable[[Mapping[str, Any], Stream | None], dict[str, HostValue | Lent]]


class BoundModel(CheckedClosable):
    """A model with fixed shapes whose inputs and results have fixed addresses: no copies.

    It has its own plan, so several of them can work concurrently, each on its stream. Use it as a
    context manager, or call `close`.

    Attributes:
        inputs: arrays in the plan's memory, on the model's device; they keep their contents between
            runs.
        outputs: the results there, valid until the next run.
    """

    def __init__(
        self,
        plan: Plan,
        resident: Resident | None,
        exchange: Exchange | None,
        check: Check,
        release: Callable[[], None],
    ) -> None:
        self._plan, self._resident, self._exchange = plan, resident, exchange
        self._check, self._release = check, release
        self._is_open = True
        stream = exchange.stream(None) if exchange else None
        sources = resident.sources() if resident else plan.outputs
        self.inputs = {name: self._array(view, stream) for name, view in plan.inputs.items()}
        self.outputs = {name: self._array(view, stream) for name, view in sources.items()}
        self.outputs |= {n: plan.constants[n] for n in plan.constants if n not in self.outputs}
        self.outputs = {name: self.outputs[name] for name in plan.graph.outputs}

    @property
    def plan(self) -> Plan:
        """The plan, to look at its rows and its memory."""
        return self._plan

    def _array(self, view: View, stream: Stream | None) -> Any:
        if view.device is HOST or self._exchange is None or stream is None:
            return array(view)
        return self._exchange.handle(view, stream)

    def __repr__(self) -> str:
        closed = "" if self._is_open else ", closed"
        return f"<tercet.BoundModel {self._plan.graph.name} on {self._plan.device.name}{closed}>"

    def check_open(self) -> None:
        """Raise UsageError if it is closed."""
        if not self._is_open:
            raise UsageError("the bound model is closed")

    def run(
        self, inputs: Mapping[str, Any] | None = None, *, stream: Any = None
    ) -> Mapping[str, Any]:
        """Run on the current contents of `inputs`.

        Args:
            inputs: arrays to copy into any of the inputs first, in stream order; those on which no
                output depends are ignored.
            stream: see `Model.run`.

        Returns:
            `outputs`; their elements are complete in stream order.

        Raises:
            InputError: an array does not fit its input.
            UsageError: it is closed, or a stream is given where there are none.
        """
        self.check_open()
        if self._exchange is None or self._resident is None:
            if stream is not None:
                raise UsageError(f"{self!r} has no streams; omit stream=")
            for name, feed in self._feeds(inputs, None).items():
                self._plan.feed(name, array(feed.view))
            self._plan.execute()
            return self.outputs
        work = self._exchange.stream(stream)
        feeds = self._feeds(inputs, work)
        self._resident.start(feeds, work)
        self._resident.finish(feeds, work)
        for result in self.outputs.values():
            result.stream = work
        return self.outputs

    def _feeds(self, inputs: Mapping[str, Any] | None, work: Stream | None) -> dict[str, Lent]:
        """Return views of the arrays to copy into the inputs."""
        feeds: dict[str, Lent] = {}
        given = cast("object", inputs)
        if given is not None and not isinstance(given, Mapping):
            raise refused("inputs", given, "a dict of arrays by name")
        for name, feed in self._check(inputs or {}, work).items():
            lent = feed if isinstance(feed, Lent) else _of_host(feed)
            wanted = self._plan.inputs.get(name)
            if wanted is None:  # no output depends on it
                continue
            if lent.type != wanted.type or lent.view.format is not Format.CONTIGUOUS:
                raise InputError(
                    f"input '{name}' is {lent.type}, {lent.view.format.value}; "
                    f"{self!r} takes {wanted.type}, contiguous"
                )
            feeds[name] = lent
        return feeds

    def close(self) -> None:
        """Return the plan to the model; `inputs` and `outputs` become invalid."""
        if self._is_open:
            self._is_open = False
            if self._resident is not None:
                self._resident.wait()
            self._release()


def _of_host(data: HostValue) -> Lent:
    if not isinstance(data, np.ndarray):
        raise InputError("only tensors can be bound")
    return Lent(HOST.upload(data), data)
