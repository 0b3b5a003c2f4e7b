"""Common rules of elementwise operators: shapes, and arithmetic on symbolic sizes."""

from __future__ import annotations

from typing import Any, ClassVar

from ..errors import ShapeError
from ..ir.dtypes import (
    DType,
    bool_,
    name_of,
)
from ..ir.grown import combined, divided, multiplied, order, span
from ..ir.op import Op
from ..ir.types import Array, TensorType
from .propagate import ArrayFunction, SymbolRule, compute, unknown
from .shapes import broadcast, same_dtype

# ── bases ────────────────────────────────────────────────────────────────────────────────────────


class Unary(Op):
    """One tensor in, one of the same type out."""

    def infer(self, x: TensorType) -> TensorType:
        return x.without_value()


class KnownUnary(Op):
    """Like `Unary`, for operators that also occur in shape arithmetic.

    Attributes:
        function: computes known elements.
        symbols: computes a symbolic element.
    """

    function: ClassVar[ArrayFunction]
    symbols: ClassVar[SymbolRule] = unknown

    def infer(self, x: TensorType) -> TensorType:
        kind = type(self)
        return compute(x.without_value(), kind.function, x, symbols=kind.symbols)


class Predicate(Op):
    """One tensor in, booleans of the same shape out.

    Attributes:
        function: computes known elements, unless that takes attributes.
    """

    function: ClassVar[ArrayFunction | None] = None

    def infer(self, x: TensorType) -> TensorType:
        result, function = x.with_dtype(bool_), type(self).function
        return result if function is None else compute(result, function, x)


class Binary(Op):
    """Two tensors of one dtype, broadcast to each other.

    Attributes:
        gives: dtype of the result, if it differs from the inputs'.
        function: computes known elements; None for operators that do not occur in shape arithmetic.
        symbols: computes an element with a symbolic operand; None if unknown.
    """

    gives: ClassVar[DType | None] = None
    function: ClassVar[ArrayFunction | None] = None
    symbols: ClassVar[SymbolRule] = unknown

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        kind = type(self)
        dtype = same_dtype(a, b)
        result = TensorType(kind.gives or dtype, broadcast(a.shape, b.shape))
        if kind.function is None or a.value is None or b.value is None:
            return result
        return compute(result, kind.function, a, b, symbols=kind.symbols)


class Logical(Binary):
    """Two boolean tensors, broadcast to each other."""

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if same_dtype(a, b) != bool_:
            raise ShapeError(f"inputs are {name_of(a.dtype)}; expected bool")
        return super().infer(a, b)


class Variadic(Op):
    """One or more tensors of one dtype, broadcast to each other."""

    function: ClassVar[ArrayFunction | None] = None
    symbols: ClassVar[SymbolRule] = unknown

    def infer(self, data: TensorType, *rest: TensorType) -> TensorType:
        kind, dtype, total = type(self), same_dtype(data, *rest), data
        for other in rest:
            result = TensorType(dtype, broadcast(total.shape, other.shape))
            if kind.function is not None and total.value is not None and other.value is not None:
                result = compute(result, kind.function, total, other, symbols=kind.symbols)
            total = result
        return total


# ── elements ─────────────────────────────────────────────────────────────────────────────────────


def divide(a: Array, b: Array) -> Array | None:
    """Divide; integers truncate toward zero, and division by zero is undefined."""
    if a.dtype.kind not in "iu":
        return a / b
    if not b.all():
        return None
    floor = a // b
    return floor + ((a - floor * b != 0) & ((a < 0) != (b < 0)))


def keep(a: Any) -> Any:
    """Return a size unchanged, as floor, ceil, round and abs do."""
    return a if isinstance(a, str) else None


def add_symbol(a: Any, b: Any) -> Any:
    """Add sizes: 0 is neutral, and growing sizes have known sums."""
    if b == 0:
        return a
    return b if a == 0 else combined(a, b, 1)


def subtract_symbol(a: Any, b: Any) -> Any:
    """Subtract sizes: 0 is neutral, a - a is 0, and growing sizes have known differences."""
    if b == 0:
        return a
    return 0 if a is not None and a == b else combined(a, b, -1)


def multiply_symbol(a: Any, b: Any) -> Any:
    """Multiply sizes: 1 is neutral, and 0 gives 0."""
    if a == 1 or b == 1:
        return b if a == 1 else a
    named = isinstance(a, str) or isinstance(b, str)
    return 0 if named and (a == 0 or b == 0) else multiplied(a, b)


def divide_symbol(a: Any, b: Any) -> Any:
    """Divide sizes by 1, or by a number that always divides them."""
    return a if b == 1 else divided(a, b)


def max_symbol(a: Any, b: Any) -> Any:
    """Return the larger of two sizes if their order is known."""
    if a is not None and a == b:
        return a
    found = span(a, b)
    if found is None:
        return None
    return a if found[0] >= 0 else b if found[1] <= 0 else None


def min_symbol(a: Any, b: Any) -> Any:
    """Return the smaller of two sizes if their order is known."""
    greater = max_symbol(a, b)
    return None if greater is None else b if greater is a else a


def equal_symbol(a: Any, b: Any) -> bool | None:
    """Whether two sizes are equal; a size is not negative."""
    if a is not None and a == b:
        return True
    if order(a, b):
        return False
    if isinstance(a, str):
        return False if _is_negative(b) else None
    return False if isinstance(b, str) and _is_negative(a) else None


def less_symbol(a: Any, b: Any) -> bool | None:
    """Whether one size is less than another; a size is not negative."""
    sign = order(a, b)
    if sign is not None:
        return sign < 0
    if isinstance(a, str):
        return False if a == b or b == 0 or _is_negative(b) else None
    return True if isinstance(b, str) and _is_negative(a) else None


def greater_symbol(a: Any, b: Any) -> bool | None:
    """See `less_symbol`."""
    return less_symbol(b, a)


def less_or_equal_symbol(a: Any, b: Any) -> bool | None:
    """See `less_symbol`."""
    greater = less_symbol(b, a)
    return None if greater is None else not greater


def greater_or_equal_symbol(a: Any, b: Any) -> bool | None:
    """See `less_symbol`."""
    return less_or_equal_symbol(b, a)


def _is_negative(element: Any) -> bool:
    return isinstance(element, int | float) and element < 0
