"""Nodes that run by themselves: the types of results, inferred once for each set of inputs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ....runtime.base.guard import need
from ....runtime.ir.dtypes import string
from ....runtime.ir.graph import Node
from ....runtime.ir.infer import check_types
from ....runtime.ir.types import HostValue, TensorType, ValueType, type_of

#: Elements of a tensor that may decide on the shape of a result.
KNOWN = 1 << 16
#: Elements of one that results are looked up by, and sets of inputs that are remembered.
FEW, MAX_SETS = 64, 16

Types = tuple[ValueType | None, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """Types of results, and what is to be said of their bytes before these are allocated."""

    types: Types
    nbytes: int
    what: str

    @classmethod
    def of(cls, types: Types) -> _Found:
        """Return what is to be known of results of these types."""
        sized = [t for t in types if isinstance(t, TensorType) and t.is_static]
        what = f"the result {', '.join(map(str, sized[:4]))}"
        return cls(types, sum(result.nbytes for result in sized), what)

    @property
    def is_static(self) -> bool:
        """Whether all results are tensors of known shapes."""
        return all(isinstance(t, TensorType) and t.is_static for t in self.types)


#: A set of inputs that was seen once.
_ONCE = _Found((), 0, "")


class NodeAlone:
    """A node, and what its results were for the inputs that it had so far.

    Shapes mostly follow from those of the inputs, and else from few elements, such as those that a
    Reshape reads. Where neither is so, types are inferred anew in each run.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        # None where elements decide.
        self._by_shapes: dict[Hashable, _Found | None] = {}
        self._by_elements: dict[Hashable, _Found | None] = {}

    def types(self, values: Sequence[HostValue]) -> Types:
        """Return the types of the results, nothing where those of the inputs are not known.

        Raises:
            LimitError: they would be too large; nothing is allocated before.
        """
        found = self._looked_up(values) or self._inferred(values, KNOWN)
        need(found.nbytes, found.what)
        return found.types

    def check(self, values: Sequence[HostValue]) -> None:
        """Infer types from all elements; raises ShapeError for what makes no sense."""
        self._inferred(values, KNOWN)

    def _looked_up(self, values: Sequence[HostValue]) -> _Found | None:
        shapes: list[Hashable] = []
        for data in values:
            if isinstance(data, np.ndarray) and data.dtype != string:
                shapes.append((data.dtype, data.shape))
            elif data is None:
                shapes.append(None)
            else:
                return None
        key = tuple(shapes)
        found = self._remembered(self._by_shapes, key, values, -1)
        if found is not None:
            return found
        few = [d.tobytes() for d in values if isinstance(d, np.ndarray) and d.size <= FEW]
        return self._remembered(self._by_elements, (key, *few), values, FEW)

    def _remembered(
        self,
        known: dict[Hashable, _Found | None],
        key: Hashable,
        values: Sequence[HostValue],
        maximum: int,
    ) -> _Found | None:
        """Return what is known for a key, or is inferred from so many elements; None if neither.

        Shapes that grow from run to run are never seen again: the first time counts for nothing.
        """
        if key not in known:
            if len(known) >= MAX_SETS:
                known.clear()
            known[key] = _ONCE
            return None
        if known[key] is _ONCE:
            found = self._inferred(values, maximum)
            known[key] = found if found.is_static else None
        return known[key]

    def _inferred(self, values: Sequence[HostValue], maximum: int) -> _Found:
        """Infer the types from those of the inputs, of which so many elements are known."""
        node = self.node
        pairs = zip(node.inputs, values, strict=True)
        types = [None if source is None else _known_type(data, maximum) for source, data in pairs]
        if any(source and type_ is None for source, type_ in zip(node.inputs, types, strict=True)):
            return _Found((), 0, "")
        check_types(node.op, types)
        found = node.op.infer(*types)
        results = found if isinstance(found, tuple) else (found,)
        return _Found.of(results[: len(node.outputs)])


def _known_type(value: HostValue, maximum: int) -> ValueType | None:
    """Return the type of a value, with the elements that decide on shapes."""
    if isinstance(value, np.ndarray) and value.size <= maximum:
        return TensorType(value.dtype, value.shape, value)
    return type_of(value)
