"""KV caches as arrays that `Model.run` returns in one step and takes in the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ir.types import Array
from ..plan.exchange import exchange_of
from .cache_store import first_positions
from .decoding import on_host
from .model import Model
from .sampling import Following
from .step_inputs import StepInputs, Tokens
from .token_scores import Greedy, scores_at, scores_of


class PassedCaches:
    """A `CacheStore` of arrays, which stay on the model's device.

    Args:
        model: remains the caller's. A model without caches reads all tokens again in every step.
        inputs: of the model.
    """

    def __init__(self, model: Model, inputs: StepInputs) -> None:
        self._model, self._inputs, self._layout = model, inputs, inputs.layout
        self._results = (self._layout.logits.name, *(c.present for c in self._layout.caches))
        self._caches: dict[str, Any] = {}
        self._given: dict[str, Any] = {}
        self.truncate(0)

    def give(self, values: Mapping[str, Array]) -> None:
        """Set inputs that are the same in every step, by name, such as an encoder's outputs."""
        self._given = self._placed(values)

    def _placed(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """Return the same arrays in the memory of the model's device."""
        device = self._model.backends[0].device
        exchange = exchange_of(device)
        if exchange is None:
            return dict(values)
        stream = exchange.stream(None)
        return {name: exchange.handle(device.upload(x), stream) for name, x in values.items()}

    def run(self, read: Tokens, new: Tokens) -> Array:
        feeds = {**self._inputs.feeds(read, new), **self._given, **self._caches}
        results = self._model.run(feeds, self._results, to="device")
        self._caches = {each.past: results[each.present] for each in self._layout.caches}
        return scores_of(on_host(results[self._layout.logits.name]), new.length)

    def run_rows(self, read: Tokens, new: Tokens, rows: Array) -> Array:
        return scores_at(self.run(read, new), rows, new.length)

    def run_greedy(self, read: Tokens, new: Tokens, rows: Array) -> Greedy:
        return Greedy.of(self.run_rows(read, new, rows))

    def chained(self, read: Tokens, first: Array, how: Following, depth: int) -> None:
        return None

    def truncate(self, length: int) -> None:
        if length == 0:
            self._caches = {each.past: self._inputs.empty(each) for each in self._layout.caches}
            return
        for each in self._layout.caches:
            if each.grows:
                whole = on_host(self._caches[each.past])
                self._caches[each.past] = first_positions(whole, each.axis, length)

    def contents(self, length: int) -> dict[str, Array]:
        """Return host copies of the caches, and of the inputs set by `give`."""
        return {n: on_host(x).copy() for n, x in {**self._given, **self._caches}.items()}

    def load(self, caches: Mapping[str, Array], length: int) -> None:
        self._caches = self._placed(caches)

    def close(self) -> None:
        self._caches, self._given = {}, {}
