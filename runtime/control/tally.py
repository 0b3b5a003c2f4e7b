"""The values that a run holds, in bytes of the model's budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from ..base.budget import Budget
from ..errors import LimitError
from ..ir.graph import Graph, Value
from ..ir.types import ENTRY, Array, HostValue, TensorType, bytes_of


class Tally:
    """The values that one run holds; shared memory counts once.

    Args:
        budget: what the bytes are taken from.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._owners: dict[int, tuple[int, int]] = {}
        self._taken = 0

    def add(self, value: HostValue, what: str) -> None:
        """Hold a value; raises LimitError as `Budget.take` does."""
        new = self._add_maps(value)
        for owner, data in _owners(value) if new is None else ():
            count, nbytes = self._owners.get(owner, (0, -1))
            if nbytes < 0:
                nbytes = bytes_of(data)
                new = (new or 0) + nbytes
            self._owners[owner] = count + 1, nbytes
        if new:
            self._budget.take(new, what)
            self._taken += new

    def _add_maps(self, value: HostValue) -> int | None:
        """Hold the maps of a list, such as one for each row, and return their bytes.

        Returns:
            None, and nothing is held, of another value or if some of them are held already.
        """
        if not isinstance(value, list) or {*map(type, value)} != {dict}:
            return None
        owners = [*map(id, value)]
        if len({*owners}) < len(owners) or not self._owners.keys().isdisjoint(owners):
            return None
        sizes = [ENTRY * count for count in map(len, value)]
        self._owners.update(zip(owners, zip(repeat(1), sizes), strict=False))
        return sum(sizes)

    def lend(self, values: Iterable[HostValue]) -> None:
        """Register values whose memory belongs to the caller."""
        for value in values:
            for owner, _ in _owners(value):
                count, _ = self._owners.get(owner, (0, 0))
                self._owners[owner] = count + 1, 0

    def replace(self, old: HostValue, new: HostValue, what: str) -> None:
        """Hold a value instead of another; raises LimitError as `Budget.take` does."""
        if not self._takes_over(old, new):
            self.add(new, what)
            self.drop(old)

    def _takes_over(self, old: HostValue, new: HostValue) -> bool:
        """Hand the bytes of an array over to another one of as many, as states of loops mostly are.

        Returns:
            Whether that was possible: nobody else holds the first one, and nobody the second.
        """
        if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):
            return False
        count, nbytes = self._owners.get(id(old), (0, -1))
        if count != 1 or nbytes != new.nbytes or new.dtype.hasobject or new.base is not None:
            return False
        if id(new) in self._owners:
            return False
        self._owners[id(new)] = self._owners.pop(id(old))
        return True

    def drop(self, value: HostValue) -> None:
        """Release a value."""
        gone = 0
        for owner, _ in _owners(value):
            count, nbytes = self._owners.pop(owner)
            if count > 1:
                self._owners[owner] = count - 1, nbytes
            else:
                gone += nbytes
        if gone:
            self._budget.give(gone)
            self._taken -= gone

    def close(self) -> None:
        """Release all values."""
        self._budget.give(self._taken)
        self._owners.clear()
        self._taken = 0


def _owners(value: HostValue) -> Sequence[tuple[int, Array | dict[object, object]]]:
    """Return the owners of a value's memory, by identity."""
    if isinstance(value, np.ndarray):
        while isinstance(base := value.base, np.ndarray):
            value = base
        return ((id(value), value),)
    if isinstance(value, dict):
        return ((id(value), value),)
    return [owner for each in value for owner in _owners(each)] if isinstance(value, list) else ()


def check_sizes(graph: Graph, budget: Budget, on_host: bool) -> None:
    """Check total sizes against the budget before anything is planned.

    A broadcast constant takes few bytes so far, but most operators visit all its elements, and some
    materialise them.

    Args:
        graph: with integer shapes, as far as known.
        budget: of the host.
        on_host: whether computed results are on the host as well.
    """
    for node in graph.nodes:
        where = f"node '{node.name}' ({node.kind})"
        for value in node.distinct_reads:
            if value.data is not None:
                _check_size(f"{where} reads", value, budget.limit)
        for value in node.outputs if on_host else ():
            _check_size(f"{where} gives", value, budget.limit)
    for name, value in graph.outputs.items():
        if value.data is not None:
            _check_size(f"output '{name}' is", value, budget.limit)


def _check_size(where: str, value: Value, limit: int) -> None:
    type_ = value.type
    if isinstance(type_, TensorType) and type_.is_static and type_.nbytes > limit:
        raise LimitError(
            f"{where} '{value.name}' {type_}, which takes {type_.nbytes:,} bytes, "
            f"over the limit of {limit:,} (max_bytes, --max-bytes)"
        )
