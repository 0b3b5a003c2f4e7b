"""What programs are made with, and the keys by which they are cached."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from threading import RLock
from typing import TypeGuard

import numpy as np

from ..base import forks
from ..base.budget import Budget
from ..base.record import record
from ..errors import NodeRefusal, UnsupportedError
from ..ir.dtypes import string
from ..ir.graph import Node
from ..ir.hints import Doubts
from ..ir.types import HostValue, TensorType, ValueType
from ..options import Options
from ..passes import Evaluate
from ..plan.backend import Backend, Device, Interpreter
from ..plan.host import HOST
from ..plan.partition import obstacle
from ..plan.weights import WeightStore

Types = tuple[ValueType | None, ...]

#: Maximum number of elements of an input that may determine shapes.
DECIDING = 64


@record
class Resources:
    """What programs are made with.

    Attributes:
        backends: the requested backend, then fallbacks.
        options: see `Options`.
        stores: constants by device.
        evaluate: evaluates one operator on arrays, for constant folding.
        budget: the host memory budget.
        doubts: reports wrongly declared types.
        late: options of the passes that run between steps, on bodies and on what waits for sizes;
            `options` if None.
        lock: held while a program is made.
    """

    backends: Sequence[Backend]
    options: Options
    stores: Mapping[Device, WeightStore]
    evaluate: Evaluate
    budget: Budget
    doubts: Doubts = field(default_factory=Doubts)
    late: Options | None = None
    lock: RLock = field(default_factory=forks.rlock)

    @property
    def late_options(self) -> Options:
        """What passes between steps are told."""
        return self.late or self.options

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """That of the host, and those of devices."""
        found = (store.budget for store in self.stores.values())
        return tuple(dict.fromkeys((self.budget, *(each for each in found if each is not None))))

    @property
    def on_host(self) -> bool:
        """Whether only host memory is in use."""
        return all(backend.device is HOST for backend in self.backends)

    def interpreter(self, nodes: Iterable[Node]) -> Interpreter | None:
        """Return the interpreter that runs nodes outside plans.

        Raises:
            UnsupportedError: there are such nodes, but no backend runs them.
        """
        return interpreter_of(self.backends, nodes)


def interpreter_of(backends: Sequence[Backend], nodes: Iterable[Node]) -> Interpreter | None:
    """Return the first backend that runs nodes outside plans; see `Resources.interpreter`."""
    for backend in backends:
        if isinstance(backend, Interpreter):
            return backend
    lonely = [node for node in nodes if not node.op.graphs()]
    if not lonely:
        return None
    refusals = [
        NodeRefusal(node.name, node.kind, node.signature(), backend.name, obstacle(node))
        for node in lonely
        for backend in backends
    ]
    names = " + ".join(backend.name for backend in backends)
    plural = "s" if len(lonely) > 1 else ""
    raise UnsupportedError(
        f"{len(lonely)} node{plural} cannot run on {names}:",
        refusals,
        "fallback='numpy' (on the command line --fallback numpy) runs them on the host",
    )


class Keys:
    """Cache keys of programs: input types, and elements of small inputs if needed.

    Only an `Interpreter` can run nodes whose output sizes become known during a run. But sizes are
    often inputs, such as the shape of a Reshape; then each of them gets its own program.
    """

    def __init__(self) -> None:
        self._needed: set[Types] = set()

    def find(self, types: Types, values: Sequence[HostValue]) -> tuple[Hashable, Types]:
        """Return the key, and the types for which to make a program."""
        if types not in self._needed:
            return types, types
        found = tuple(map(_with_elements, types, values))
        elements = (t.value for t in found if isinstance(t, TensorType) and t.value is not None)
        return (types, *(data.tobytes() for data in elements)), found

    def learn(self, types: Types, values: Sequence[HostValue]) -> bool:
        """Include elements in keys from now on; False if there is nothing more to include."""
        found = map(_with_elements, types, values)
        if types in self._needed or all(a is b for a, b in zip(found, types, strict=True)):
            return False
        self._needed.add(types)
        return True


def is_deciding(type_: ValueType | None) -> TypeGuard[TensorType]:
    """Whether a type is that of a small vector or scalar, whose elements may determine shapes."""
    if not isinstance(type_, TensorType) or not type_.is_static or type_.dtype == string:
        return False
    return len(type_.dims) <= 1 and type_.size <= DECIDING


def _with_elements(type_: ValueType | None, value: HostValue) -> ValueType | None:
    """Return the type with its elements where they may determine shapes."""
    if not is_deciding(type_) or not isinstance(value, np.ndarray):
        return type_
    return replace(type_, value=value.copy())
