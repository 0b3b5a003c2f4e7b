"""Nodes that run one by one: their result types, inferred once per set of inputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ....runtime.base.guard import need
from ....runtime.base.record import record
from ....runtime.ir.graph import Node
from ....runtime.ir.infer import check_types
from ....runtime.ir.types import (
    HostValue,
    MapType,
    SequenceType,
    TensorType,
    ValueType,
    type_of,
)

#: Maximum elements of a tensor that may determine a result's shape.
KNOWN = 1 << 16
#: Maximum elements in a lookup key, and number of cached sets of inputs.
FEW, MAX_SETS = 64, 16

Types = tuple[ValueType | None, ...]
#: Runs an operator on values and returns results of these types.
Call = Callable[[Sequence[HostValue], Types], tuple[HostValue, ...]]


@record
class _Results:
    """Types of results, and their size for the budget; the text says what they are."""

    types: Types
    nbytes: int

    @classmethod
    def of(cls, types: Types) -> _Results:
        """Return the entry for results of these types."""
        return cls(types, sum(result.nbytes for result in _sized(types)))

    def __str__(self) -> str:
        return f"the result {', '.join(map(str, _sized(self.types)[:4]))}"

    @property
    def is_static(self) -> bool:
        """Whether all results are tensors of known shape, or lists of maps."""
        return all(map(_is_static, self.types))


def _sized(types: Types) -> list[TensorType]:
    return [type_ for type_ in types if isinstance(type_, TensorType) and type_.is_static]


def _is_static(result: ValueType | None) -> bool:
    if isinstance(result, SequenceType):
        return isinstance(result.element, MapType) and _is_static(result.element.element)
    return isinstance(result, TensorType) and result.is_static


#: Mark sets of inputs seen never and once.
_NEVER, _ONCE = _Results((), 0), _Results((), 0)


class NodeAlone:
    """The result types of a node for inputs seen so far; it does not keep the node alive.

    Args:
        call: runs its operator on any inputs and returns results of these types, if known; None if
            there is no such function.

    Shapes usually follow from those of the inputs, else from a few numbers, such as those that a
    Reshape reads. Otherwise types are inferred in each run.
    """

    def __init__(self, call: Call | None) -> None:
        self.call = call
        # None if elements matter.
        self._by_shapes: dict[Hashable, _Results | None] = {}
        self._by_elements: dict[Hashable, _Results | None] = {}

    def types(self, node: Node, values: Sequence[HostValue]) -> Types:
        """Return the types of the results, empty if input types are unknown.

        Raises:
            LimitError: they would be too large; nothing has been allocated.
        """
        found = self._looked_up(node, values) or _inferred(node, values, KNOWN)
        if found.nbytes:
            need(found.nbytes, found)
        return found.types

    def _looked_up(self, node: Node, values: Sequence[HostValue]) -> _Results | None:
        shapes: list[Hashable] = []
        for data in values:
            if isinstance(data, np.ndarray):
                shapes += (data.dtype, data.shape)
            elif data is None:
                shapes.append(None)
            else:
                return None
        key = tuple(shapes)
        found = self._remembered(node, self._by_shapes, key, values, -1)
        if found is not None:
            return found
        arrays = [d for d in values if isinstance(d, np.ndarray) and not d.dtype.hasobject]
        few = [data.tobytes() for data in arrays if data.size <= FEW]
        return self._remembered(node, self._by_elements, (key, *few), values, FEW)

    def _remembered(
        self,
        node: Node,
        known: dict[Hashable, _Results | None],
        key: Hashable,
        values: Sequence[HostValue],
        maximum: int,
    ) -> _Results | None:
        """Return the cached or inferred entry for a key with this many elements, or None.

        Growing shapes never recur, so a first occurrence is not cached.
        """
        found = known.get(key, _NEVER)
        if found is _NEVER:
            if len(known) >= MAX_SETS:
                known.clear()
            known[key] = _ONCE
            return None
        if found is _ONCE:
            found = _inferred(node, values, maximum)
            known[key] = found = found if found.is_static else None
        return found


def check(node: Node, values: Sequence[HostValue]) -> None:
    """Infer types from all elements; raises ShapeError for invalid inputs."""
    _inferred(node, values, KNOWN)


def _inferred(node: Node, values: Sequence[HostValue], maximum: int) -> _Results:
    """Infer result types from input types with this many known elements."""
    pairs = zip(node.inputs, values, strict=True)
    types = [None if source is None else _known_type(data, maximum) for source, data in pairs]
    if any(source and type_ is None for source, type_ in zip(node.inputs, types, strict=True)):
        return _Results((), 0)
    check_types(node.op, types)
    found = node.op.infer(*types)
    results = found if isinstance(found, tuple) else (found,)
    return _Results.of(results[: len(node.outputs)])


def _known_type(value: HostValue, maximum: int) -> ValueType | None:
    """Return the type of a value with the elements that may determine shapes."""
    has_texts = isinstance(value, np.ndarray) and value.dtype.hasobject and maximum < KNOWN
    if isinstance(value, np.ndarray) and value.size <= maximum and not has_texts:
        return TensorType(value.dtype, value.shape, value)
    return type_of(value)
