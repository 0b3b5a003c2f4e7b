"""What programs are made with, and what they are looked up by."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import TypeGuard

import numpy as np

from ..base import forks
from ..base.budget import Budget
from ..errors import Refusal, UnsupportedError
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

#: Most elements of an input that decide on shapes.
DECIDING = 64


@dataclass(frozen=True, slots=True)
class Resources:
    """What programs are made with.

    Attributes:
        backends: the requested one, then fallbacks.
        options: see `Options`.
        stores: constants by device.
        evaluate: runs one operator on arrays, for constant folding.
        budget: the bytes of the host that all of it may take.
        doubts: hears of types that the file declares wrongly.
        lock: held while a program is made.
    """

    backends: Sequence[Backend]
    options: Options
    stores: Mapping[Device, WeightStore]
    evaluate: Evaluate
    budget: Budget
    doubts: Doubts = field(default_factory=Doubts)
    lock: RLock = field(default_factory=forks.rlock)

    @property
    def on_host(self) -> bool:
        """Whether no other memory than the host's is in use."""
        return all(backend.device is HOST for backend in self.backends)

    def interpreter(self, nodes: Iterable[Node]) -> Interpreter | None:
        """Return the interpreter of nodes that are in no plan.

        Raises:
            UnsupportedError: there are such nodes, and none of the backends runs them.
        """
        for backend in self.backends:
            if isinstance(backend, Interpreter):
                return backend
        lonely = [node for node in nodes if not node.op.graphs()]
        if not lonely:
            return None
        refusals = [
            Refusal(node.name, node.kind, node.signature(), backend.name, obstacle(node))
            for node in lonely
            for backend in self.backends
        ]
        names = " + ".join(backend.name for backend in self.backends)
        plural = "s" if len(lonely) > 1 else ""
        raise UnsupportedError(
            f"{len(lonely)} node{plural} cannot run on {names}:",
            refusals,
            "fallback='numpy' (on the command line --fallback numpy) runs them on the host",
        )


class Keys:
    """By what programs are looked up: input types, with elements of small inputs if need be.

    Nobody but an `Interpreter` runs nodes whose sizes are found out while they run. But sizes often
    come in as inputs, such as the shape of a Reshape; then each one gets its own program.
    """

    def __init__(self) -> None:
        self._needed: set[Types] = set()

    def find(self, types: Types, values: Sequence[HostValue]) -> tuple[Hashable, Types]:
        """Return a key, and the types that a program is to be made for."""
        if types not in self._needed:
            return types, types
        found = tuple(map(_with_elements, types, values))
        elements = (t.value for t in found if isinstance(t, TensorType) and t.value is not None)
        return (types, *(data.tobytes() for data in elements)), found

    def learn(self, types: Types, values: Sequence[HostValue]) -> bool:
        """Look at elements from now on; False if that is done already, or there are none."""
        found = map(_with_elements, types, values)
        if types in self._needed or all(a is b for a, b in zip(found, types, strict=True)):
            return False
        self._needed.add(types)
        return True


def is_deciding(type_: ValueType | None) -> TypeGuard[TensorType]:
    """Whether it is the type of a small vector or scalar, whose elements may decide on shapes."""
    if not isinstance(type_, TensorType) or not type_.is_static or type_.dtype == string:
        return False
    return len(type_.dims) <= 1 and type_.size <= DECIDING


def _with_elements(type_: ValueType | None, value: HostValue) -> ValueType | None:
    """Return the type with its elements where they may decide on shapes."""
    if not is_deciding(type_) or not isinstance(value, np.ndarray):
        return type_
    return replace(type_, value=value.copy())
