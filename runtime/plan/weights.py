"""A model's constants on one device: uploaded once, packed once, shared by all its plans."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Set
from contextlib import contextmanager
from itertools import chain
from typing import TypeGuard

import numpy as np

from ..base import forks
from ..base.budget import Budget
from ..base.parallel import in_parallel
from ..errors import FAILURES, DeviceError, LimitError, TercetError
from ..ir.graph import Graph, Value
from ..ir.types import Array, TensorType
from .arena import aligned
from .backend import Device, PackedConstant, Packing, View
from .host import HOST

#: The ids of the source arrays, and the packing.
_Key = tuple[tuple[int, ...], Hashable]
#: A constant, the arrays of its sources, and what packs them.
_Wanted = tuple[_Key, list[Array], Callable[..., Array]]
#: What was made of a constant, and where it has been copied to.
_Placed = tuple[View | Array, View | None]
#: What `next` returns behind the last constant.
_END = object()
#: Bytes of constants that are packed one after the other.
_LARGE = 32 << 20
#: Bytes from which a constant gets a separate allocation on a device.
_SLIGHT = 1 << 20


class WeightStore:
    """Implements `backend.Weights` for one device.

    Args:
        device: where they are stored.
        budget: the budget of the device's memory; None for no limit.

    Constants are identified by their arrays, which clones of a graph share, so a constant that
    every plan reads is stored once.
    """

    def __init__(self, device: Device, budget: Budget | None = None) -> None:
        self.device = device
        self._packing = device if isinstance(device, Packing) else None
        self.budget = budget
        self._taken: dict[_Key, int] = {}
        self._views: dict[_Key, View] = {}
        self._sources: dict[int, Array] = {}
        self._coming: list[tuple[frozenset[_Key], Generator[None]]] = []
        self._lock = forks.rlock()

    @property
    def nbytes(self) -> int:
        """Bytes stored on the device."""
        return sum(view.nbytes for view in list(self._views.values()))

    def view(self, value: Value) -> View:
        """Return a constant, contiguous in C order."""
        return self.packed(*as_it_is(value))

    def packed(
        self, sources: tuple[Value, ...], layout: Hashable, pack: Callable[..., Array]
    ) -> View:
        """Return ``pack(*arrays of sources)``, computed once per (sources, layout)."""
        key, arrays = _key(sources, layout)
        with self._lock:
            for keys, coming in self._coming:
                while key in keys and key not in self._views and next(coming, _END) is not _END:
                    pass
            if key not in self._views:
                with _copies() as copies:
                    self._store(key, arrays, self._made(arrays, pack, copies))
            return self._views[key]

    def prepare(self, constants: Iterable[PackedConstant]) -> None:
        """Pack small constants on several threads, so that `packed` finds them.

        Raises:
            DeviceError: the device refuses to store them.
        """
        with self.preparing(constants):
            pass

    @contextmanager
    def preparing(self, constants: Iterable[PackedConstant]) -> Generator[None]:
        """Pack small constants on several threads within the block; `packed` waits for its own.

        Packing a large one may occupy several threads. What cannot be packed is left to
        `packed`, which raises the error for the step that needs it.

        Raises:
            DeviceError: the device refuses to store them.
        """
        with self._lock:
            wanted: dict[_Key, tuple[list[Array], Callable[..., Array]]] = {}
            for sources, layout, pack in constants:
                key, arrays = _key(sources, layout)
                if key not in self._views:
                    wanted.setdefault(key, (arrays, pack))
            found = [(key, arrays, pack) for key, (arrays, pack) in wanted.items()]
            sizes = [sum(data.nbytes for data in arrays) for _, arrays, _ in found]
            slight = [each for each, n in zip(found, sizes, strict=True) if n < _SLIGHT]
            others = [each for each, n in zip(found, sizes, strict=True) if _SLIGHT <= n < _LARGE]
            coming = self._storing(slight, others)
            next(coming, None)
            entry = frozenset(key for key, _, _ in others), coming
            self._coming.append(entry)
        try:
            yield
            with self._lock:
                for _ in coming:
                    pass
        finally:
            with self._lock:
                self._coming.remove(entry)
                coming.close()

    def _storing(self, slight: list[_Wanted], others: list[_Wanted]) -> Generator[None]:
        """Store constants in this order, and yield after those of a source that are not slight."""

        def place(group: list[_Wanted]) -> list[tuple[_Wanted, _Placed]]:
            with _copies() as copies:
                tried = ((each, self._tried(*each[1:], copies)) for each in group)
                return [(each, placed) for each, placed in tried if placed is not None]

        try:
            self._store_all(chain.from_iterable(in_parallel(place, _by_source(slight))))
            for group in in_parallel(place, _by_source(others)):
                for (key, arrays, _), (made, view) in group:
                    self._store(key, arrays, made, view)
                yield
        except (LimitError, MemoryError):  # there is no room for others, either
            return

    def _tried(
        self, arrays: list[Array], pack: Callable[..., Array], copies: dict[int, View]
    ) -> _Placed | None:
        """Return `_placed`, or None for a constant that cannot be packed."""
        try:
            return self._placed(arrays, pack, copies)
        except DeviceError:
            raise
        except (*FAILURES, MemoryError, TercetError):
            return None

    def _store_all(self, constants: Iterable[tuple[_Wanted, _Placed]]) -> None:
        """Store constants as they come, small ones together."""
        together, nbytes = dict[_Key, tuple[list[Array], Array]](), 0
        for (key, arrays, _), (made, view) in constants:
            if view is not None or not self._is_slight(made):
                self._store(key, arrays, made, view)
                continue
            together[key], nbytes = (arrays, made), nbytes + made.nbytes
            if nbytes >= _LARGE:
                self._store_together(together)
                together, nbytes = {}, 0
        self._store_together(together)

    def _placed(
        self, arrays: list[Array], pack: Callable[..., Array], copies: dict[int, View]
    ) -> _Placed:
        """Pack a constant and copy it to the device: copies of several threads go side by side."""
        made = self._made(arrays, pack, copies)
        if isinstance(made, View) or self.device is HOST or self._is_slight(made):
            return made, None
        return made, self.device.upload(made)

    def _made(
        self, arrays: list[Array], pack: Callable[..., Array], copies: dict[int, View]
    ) -> View | Array:
        """Pack on the device if it can, else on the host."""
        found = self._packing.packed(pack, arrays, copies) if self._packing else None
        return pack(*arrays) if found is None else found

    def _is_slight(self, made: View | Array) -> TypeGuard[Array]:
        """Whether it takes longer to allocate memory for an array than to fill it."""
        is_there = isinstance(made, View) or self.device is HOST
        return not is_there and made.nbytes < _SLIGHT

    def _store_together(self, constants: Mapping[_Key, tuple[list[Array], Array]]) -> None:
        """Store constants in one allocation."""
        if not constants:
            return
        places, end = dict[_Key, int](), 0
        for key, (_, packed) in constants.items():
            places[key], end = end, end + aligned(packed.nbytes)
        with self._taking(constants):
            block = np.zeros(end, np.uint8)
            for key, (_, packed) in constants.items():
                block[places[key] :][: packed.nbytes] = np.frombuffer(packed.tobytes(), np.uint8)
            buffer = self.device.upload(block).buffer
        for key, (arrays, packed) in constants.items():
            there = TensorType(packed.dtype, packed.shape)
            self._keep(key, arrays, View(self.device, buffer, places[key], there))

    def _store(
        self, key: _Key, arrays: list[Array], made: View | Array, view: View | None = None
    ) -> None:
        """Store a constant, which may be on the device already."""
        with self._taking({key: (arrays, made)}):
            if view is None:
                view = made if isinstance(made, View) else self.device.upload(made)
        self._keep(key, arrays, view)

    def _keep(self, key: _Key, arrays: list[Array], view: View) -> None:
        self._sources.update((id(data), data) for data in arrays)
        self._views[key] = view

    @contextmanager
    def _taking(
        self, constants: Mapping[_Key, tuple[list[Array], View | Array]]
    ) -> Generator[None]:
        """Take what the block stores, but for the model's arrays on the host, from the budget.

        It is given back if the block fails.
        """
        try:
            for key, (arrays, made) in constants.items():
                shared = self.device is HOST and _is_own(made, arrays)
                if self.budget is not None and not shared:
                    self.budget.take(made.nbytes, "packed constants")
                    self._taken[key] = made.nbytes
            yield
        except BaseException:
            for key in constants:
                self._give(key)
            raise

    def _give(self, key: _Key) -> None:
        if self.budget is not None:
            self.budget.give(self._taken.pop(key, 0))

    def forget(self, arrays: Set[int]) -> None:
        """Drop what derives from arrays with these ids; plans that use it keep it alive."""
        with self._lock:
            for key in [key for key in self._views if not arrays.isdisjoint(key[0])]:
                self._give(key)
                del self._views[key]
            for number in arrays & self._sources.keys():
                del self._sources[number]

    def close(self) -> None:
        """Release the memory."""
        with self._lock:
            for key in list(self._taken):
                self._give(key)
            for view in self._views.values():
                view.buffer.close()
            self._views.clear()
            self._sources.clear()


@contextmanager
def _copies() -> Generator[dict[int, View]]:
    """Provide a place for copies on a device of what constants are packed from; see `Packing`."""
    copies = dict[int, View]()
    try:
        yield copies
    finally:
        for view in copies.values():
            view.buffer.close()


def _by_source(constants: Iterable[_Wanted]) -> Iterable[list[_Wanted]]:
    """Return what is packed from the same large array together, in order of the first."""
    found = dict[int, list[_Wanted]]()
    for each in constants:
        largest = max(each[1], key=lambda data: data.nbytes, default=each)  # a table has no source
        found.setdefault(id(largest), []).append(each)
    return found.values()


def _is_own(made: View | Array, arrays: list[Array]) -> bool:
    """Whether a constant is in the memory of one of the model's own arrays."""
    if isinstance(made, View) or not made.flags.c_contiguous:
        return False
    return any(np.may_share_memory(made, data) for data in arrays)


def as_it_is(value: Value) -> PackedConstant:
    """Return a constant in C order, as steps read one that they do not pack."""
    return (value,), "contiguous", _contiguous


def _contiguous(data: Array) -> Array:
    return data if data.flags.c_contiguous else np.ascontiguousarray(data)


def _key(sources: tuple[Value, ...], layout: Hashable) -> tuple[_Key, list[Array]]:
    """Return the key of a packed constant, and the arrays of its sources."""
    arrays = [_data(value) for value in sources]
    return (tuple(id(data) for data in arrays), layout), arrays


def _data(value: Value) -> Array:
    if value.data is None:
        raise TypeError(f"'{value.name}' is not a constant")
    return value.data


def arrays_of(graph: Graph) -> set[int]:
    """Return the ids of the arrays of a graph's constants, including those of bodies."""
    values = (value for each in graph.graphs() for value in each.values.values())
    return {id(value.data) for value in values if value.data is not None}
