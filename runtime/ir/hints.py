"""Types that a file declares for computed values: hints that nothing relies on.

`Value.type` follows from the inputs and operators. A declaration is what the exporter believed; it
is often outdated and may be wrong. So it never sizes memory and never enables a rewrite. It is
shown to users where nothing better is known, it identifies data-dependent shapes worth planning
for, and if it turns out wrong, the user is warned once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from threading import Lock

from ..base.warned import warn
from ..errors import ModelWarning
from .dtypes import FLOAT8S, FLOATS, INTEGERS, int32, int64, uint32, uint64
from .graph import Graph, Value
from .types import MapType, OptionalType, SequenceType, TensorType, ValueType

#: What floats are quantized to.
_QUANTIZED = FLOAT8S | INTEGERS - {int32, int64, uint32, uint64}
#: Number of values that a warning names; the others are only counted.
SHOWN = 3


def without_shapes(type_: ValueType | None) -> ValueType | None:
    """Return a declared type reduced to what sizes no memory, for values of unknown type."""
    match type_:
        case TensorType():
            return type_.with_shape(None)
        case SequenceType(element) | OptionalType(element) | MapType(_, element):
            return replace(type_, element=without_shapes(element))
        case None:
            return None


def shown(value: Value) -> ValueType | None:
    """Return the type of a value, completed by its declaration, for display only."""
    found, declared = value.type, value.declared
    if not isinstance(found, TensorType) or not isinstance(declared, TensorType):
        return declared if found is None else found
    if found.dtype != declared.dtype or declared.shape is None:
        return found
    if found.shape is None:
        return declared
    if len(found.shape) != len(declared.shape):
        return found
    pairs = zip(found.shape, declared.shape, strict=True)
    return TensorType(found.dtype, tuple(b if a is None else a for a, b in pairs), found.value)


def is_promised(value: Value) -> bool:
    """Whether the file declares all sizes of a tensor with data-dependent shape."""
    found, declared = value.type, value.declared
    if not isinstance(declared, TensorType) or not declared.is_static:
        return False
    return isinstance(found, TensorType) and not found.is_static


def contradicts(found: ValueType | None, declared: ValueType | None) -> bool:
    """Whether a tensor's dtype, rank or sizes differ from the declaration."""
    if not isinstance(found, TensorType) or not isinstance(declared, TensorType):
        return False
    if found.dtype != declared.dtype:
        return True
    if found.shape is None or declared.shape is None:
        return False
    if len(found.shape) != len(declared.shape):
        return True
    pairs = zip(found.shape, declared.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _is_quantized(found: ValueType | None, declared: ValueType | None) -> bool:
    """Whether integers are declared as the floats that they stand for.

    Quantizers that move a QuantizeLinear in front of a Transpose or Reshape leave what was declared
    for its result.
    """
    if not isinstance(found, TensorType) or not isinstance(declared, TensorType):
        return False
    is_float = found.dtype in _QUANTIZED and declared.dtype in FLOATS
    return is_float and not contradicts(found, replace(declared, dtype=found.dtype))


def _matters(value: Value) -> bool:
    """Whether anybody reads a value; what a body is given, such as a condition, it may not need."""
    return value.producer is not None or bool(value.consumers)


@dataclass(slots=True)
class Doubts:
    """Wrong declarations of a model's file, of which its user is warned once.

    Attributes:
        file: the model's path, or None.
        is_told: whether nothing is left to say.
    """

    file: str | None = None
    is_told: bool = False
    _lock: Lock = field(default_factory=Lock, repr=False)

    def look(self, graph: Graph) -> None:
        """Warn of values whose types contradict their declarations, unless already done."""
        if self.is_told:
            return
        given = {value for each in graph.graphs() for value in each.outputs.values()}
        values = (v for each in graph.graphs() for v in each.values.values())
        wrong = (v for v in values if _matters(v) and contradicts(v.type, v.declared))
        self._tell(
            (v, v.type) for v in wrong if v in given or not _is_quantized(v.type, v.declared)
        )

    def meet(self, value: Value, found: ValueType | None) -> None:
        """Warn of a value whose actual type contradicts its declaration."""
        if not self.is_told and _matters(value) and contradicts(found, value.declared):
            self._tell([(value, found)])

    def _tell(self, wrong: Iterable[tuple[Value, ValueType | None]]) -> None:
        texts = [f"'{v.name}' is {found}, declared as {v.declared}" for v, found in wrong]
        with self._lock:
            if not texts or self.is_told:
                return
            self.is_told = True
        more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        model = f"{self.file}: " if self.file else ""
        warn(
            f"{model}the file declares types that its nodes contradict: "
            f"{'; '.join(texts[:SHOWN])}{more}. Results have the types that the nodes give",
            ModelWarning,
        )
