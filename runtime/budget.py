"""The bytes of the host that a model holds, all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from sys import getsizeof

import numpy as np

from . import forks
from .dtypes import string
from .errors import LimitError
from .host import allowance
from .ir import Graph, Value
from .options import Options
from .types import Array, HostValue, TensorType

#: About what an entry of a dictionary takes beside its elements.
_ENTRY = 100


class Budget:
    """Bytes that the plans of a model and its runs take, up to a limit.

    Args:
        limit: how many there may be.

    Attributes:
        limit: the same.
        relieve: gives memory back that nobody needs now; returns whether there was any.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.relieve: Callable[[], bool] = _nothing_to_give
        self._held = 0
        self._lock = forks.lock()

    @property
    def left(self) -> int:
        """The bytes that may still be taken."""
        return max(0, self.limit - self._held)

    def take(self, nbytes: int, what: str) -> None:
        """Take bytes before they are allocated; idle plans go where there are not enough left.

        Args:
            nbytes: how many.
            what: they are for, such as ``the plan``.

        Raises:
            LimitError: there are not so many.
        """
        while True:
            with self._lock:
                held = self._held
                if held + nbytes <= self.limit:
                    self._held = held + nbytes
                    return
            if nbytes > self.limit or not self.relieve():
                others = f" and the {held} that the model holds already" if held else ""
                raise LimitError(
                    f"{nbytes} bytes for {what}{others} are over the limit of {self.limit} "
                    f"(max_bytes)"
                )

    def give(self, nbytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._held -= nbytes


def budget_of(options: Options) -> Budget:
    """Return the budget that a user has chosen, or most of the memory that there is."""
    return Budget(allowance() if options.max_bytes is None else options.max_bytes)


def _nothing_to_give() -> bool:
    return False


class Tally:
    """The values that one run holds; memory that several of them share counts once.

    Args:
        budget: that it takes the bytes from.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._owners: dict[int, tuple[int, int]] = {}
        self._taken = 0

    def add(self, value: HostValue, what: str) -> None:
        """Hold a value; raises LimitError as `Budget.take` does."""
        new = 0
        for owner, data in _pieces(value):
            count, nbytes = self._owners.get(owner, (0, -1))
            if nbytes < 0:
                nbytes = bytes_of(data)
                new += nbytes
            self._owners[owner] = count + 1, nbytes
        if new:
            self._budget.take(new, what)
            self._taken += new

    def lend(self, values: Iterable[HostValue]) -> None:
        """Note values whose memory belongs to somebody else."""
        for value in values:
            for owner, _ in _pieces(value):
                count, _ = self._owners.get(owner, (0, 0))
                self._owners[owner] = count + 1, 0

    def drop(self, value: HostValue) -> None:
        """Hold a value no more."""
        gone = 0
        for owner, _ in _pieces(value):
            count, nbytes = self._owners.pop(owner)
            if count > 1:
                self._owners[owner] = count - 1, nbytes
            else:
                gone += nbytes
        self._budget.give(gone)
        self._taken -= gone

    def close(self) -> None:
        """Hold nothing any more."""
        self._budget.give(self._taken)
        self._owners.clear()
        self._taken = 0


def _pieces(value: HostValue) -> Iterator[tuple[int, Array | dict[object, object]]]:
    """Yield what owns the memory of a value, by identity."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        yield id(value), value
    elif isinstance(value, dict):
        yield id(value), value
    elif isinstance(value, list):
        for each in value:
            yield from _pieces(each)


def bytes_of(data: Array | dict[object, object]) -> int:
    """Return the bytes that an array or a map takes, the characters of strings with them.

    Elements that are one object, and axes along which an array repeats, count once.
    """
    if isinstance(data, dict):
        return _ENTRY * len(data)
    repeated = (n for n, stride in zip(data.shape, data.strides, strict=True) if stride == 0)
    nbytes = data.nbytes // max(1, prod(repeated))
    if data.dtype == string and data.size:
        stored = data[..., *(slice(None if stride else 1) for stride in data.strides)]
        nbytes += sum(map(getsizeof, {id(text): text for text in stored.flat}.values()))
    return nbytes


def check_sizes(graph: Graph, budget: Budget, on_host: bool) -> None:
    """Refuse what would fill the memory before anything is planned for it.

    A constant of one element repeated takes few bytes so far, but most operators go over all its
    elements, and some write them out.

    Args:
        graph: with integer shapes, as far as they are known.
        budget: of the host.
        on_host: whether results that are computed lie there, too.
    """
    for node in graph.nodes:
        where = f"node '{node.name}' ({node.kind})"
        for value in node.reads:
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
            f"{where} '{value.name}' {type_}, which takes {type_.nbytes} bytes, "
            f"over the limit of {limit} (max_bytes)"
        )
