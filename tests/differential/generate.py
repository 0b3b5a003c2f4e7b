"""Random choices that make valid models: dtypes of the schema, shapes, axes, elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from onnx import defs

from tercet.runtime.ir.dtypes import (
    BY_ONNX,
    FLOATS,
    INTEGERS,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    string,
)
from tercet.runtime.ir.dtypes import name_of as dtype_name

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
T = TypeVar("T")

_TYPES = {f"tensor({dtype_name(dtype)})": dtype for dtype in BY_ONNX.values()}
_TYPES |= {"tensor(float)": float32, "tensor(double)": float64}

#: What every float type has at its edges.
EDGES = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-7, -65504.0, 0.5, -0.5, 2.5)


@cache
def versions(op: str) -> tuple[int, ...]:
    """Return the opsets in which the definition of an operator changed."""
    every = defs.get_all_schemas_with_history()
    mine = (s for s in every if (s.domain, s.name) == ("", op) and not s.deprecated)
    return tuple(sorted(s.since_version for s in mine))


@cache
def allowed(op: str, opset: int, parameter: str) -> tuple[DType, ...]:
    """Return the dtypes that a type parameter of an operator may be, numbers and booleans."""
    schema = defs.get_schema(op, opset)
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    found = [_TYPES[text] for text in constraints[parameter] if text in _TYPES]
    return tuple(dtype for dtype in found if dtype != string)


class Dice(Random):
    """A seeded source of choices; the same words give the same choices everywhere."""

    def __init__(self, *words: object) -> None:
        super().__init__("/".join(map(str, words)))
        self.numbers = np.random.default_rng(self.getrandbits(64))

    def some(self, *options: T) -> T:
        """Return one of the options."""
        return self.choice(options)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def maybe(self, make: Callable[[], T], probability: float = 0.5) -> T | None:
        """Return something, or None with one minus this probability."""
        return make() if self.chance(probability) else None

    def given(self, **options: Callable[[], Any] | Sequence[Any]) -> dict[str, Any]:
        """Return attributes: each left out half of the time, else one of the options or called."""
        return {
            name: self.choice(how) if isinstance(how, Sequence) else how()
            for name, how in options.items()
            if self.chance(0.5)
        }

    # ── types and opsets ──

    def opset(self, op: str, minimum: int = 1) -> int:
        """Return an opset in which the operator changed, half of the time the newest."""
        known = [v for v in versions(op) if v >= minimum]
        return known[-1] if self.chance(0.5) else self.choice(known)

    def dtype(self, op: str, opset: int, parameter: str = "T", among: Sequence[DType] = ()) -> Any:
        """Return a dtype that the schema allows, float32 more often than others."""
        found = [d for d in allowed(op, opset, parameter) if not among or d in among]
        if float32 in found and self.chance(0.4):
            return float32
        return self.choice(found)

    def floating(self, op: str, opset: int, parameter: str = "T") -> Any:
        """Return a float dtype of 16 bits or more that the schema allows."""
        return self.dtype(op, opset, parameter, among=tuple(FLOATS))

    # ── shapes and axes ──

    def size(self, empty: bool = True) -> int:
        """Return a small size of an axis; 1 often and, if `empty`, 0 at times."""
        return self.choices((0, 1, 2, 3, 4, 5, 7), (0.3 if empty else 0, 3, 3, 3, 2, 1, 1))[0]

    def shape(self, minimum: int = 0, maximum: int = 4, *, empty: bool = True) -> Shape:
        """Return a shape of a rank between `minimum` and `maximum`."""
        return tuple(self.size(empty) for _ in range(self.randint(minimum, maximum)))

    def broadcast(self, count: int, maximum: int = 4) -> list[Shape]:
        """Return shapes that broadcast to one another."""
        full = self.shape(0, maximum)
        shapes = [full] * count
        for i in range(count):
            if self.chance(0.6):
                shapes[i] = self.narrowed(full)
        return shapes

    def narrowed(self, shape: Shape) -> Shape:
        """Return a shape that broadcasts to `shape`: axes missing in front, ones inside."""
        kept = shape[self.randint(0, len(shape)) :] if self.chance(0.5) else shape
        return tuple(1 if self.chance(0.4) else d for d in kept)

    def axis(self, rank: int, minimum: int = 0) -> int:
        """Return an axis, counted from either end."""
        axis = self.randrange(minimum, rank)
        return axis - rank if self.chance(0.4) else axis

    def axes(self, rank: int, minimum: int = 0, *, ordered: bool = False) -> list[int]:
        """Return different axes, each counted from either end, in any order."""
        found = self.sample(range(rank), self.randint(min(minimum, rank), rank))
        found = sorted(found) if ordered else found
        return [a - rank if self.chance(0.3) else a for a in found]

    # ── elements ──

    def array(self, dtype: Any, shape: Shape = (), low: Any = None, high: Any = None) -> Array:
        """Return elements in [low, high]; without them integers of the whole range, normal floats.

        `high` is included for integers.
        """
        kind = np.dtype(dtype)
        if kind == bool_:
            return self.numbers.integers(0, 2, shape).astype(bool)
        if kind.kind == "c":
            return (self.array(float64, shape) + 1j * self.array(float64, shape)).astype(kind)
        if kind in INTEGERS:
            limits = ml_dtypes.iinfo(kind)
            minimum, maximum = (
                limits.min if low is None else low,
                limits.max if high is None else high,
            )
            wide = kind if kind.isbuiltin == 1 else np.int64
            return np.asarray(self.numbers.integers(minimum, maximum, shape, wide, True)).astype(
                kind
            )
        found = self.numbers.standard_normal(shape)
        if low is not None:
            found = self.numbers.uniform(low, high, shape)
        return np.asarray(found).astype(kind)

    def edged(self, dtype: Any, shape: Shape = (), edges: Sequence[float] = EDGES) -> Array:
        """Return `array`, in which at times a quarter of the elements are at the edges."""
        found = self.array(dtype, shape)
        kind = np.dtype(dtype)
        if self.chance(0.6) or kind not in INTEGERS | FLOATS or not found.size:
            return found
        if kind in INTEGERS:
            limits = ml_dtypes.iinfo(kind)
            edges = (0, 1, limits.min, limits.max, limits.max - 1)
        chosen = self.numbers.random(shape) < 0.25
        with np.errstate(over="ignore"):
            picked = np.array([kind.type(edge) for edge in self.choices(edges, k=found.size)])
        picked = picked.reshape(shape)
        return np.where(chosen, picked, found)

    def distinct(self, dtype: Any, shape: Shape) -> Array:
        """Return elements that all differ, in any order, with differences of any size."""
        count = int(np.prod(shape))
        found = self.numbers.permutation(count) - count // 2
        return found.reshape(shape).astype(dtype)


class LargeDice(Dice):
    """Choices that make tensors of so many elements that they are computed in several blocks."""

    def size(self, empty: bool = True) -> int:
        """Return a size of an axis; 1 often."""
        return self.choices((1, 3, 12, 33), (1, 1, 2, 2))[0]


INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)
HALVES = (float16, bfloat16)


def ints(values: Sequence[int] | int, dtype: Any = INT64) -> Array:
    """Return a tensor of integers."""
    return np.array(values, dtype)


def only(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are not None."""
    return {name: value for name, value in attributes.items() if value is not None}
