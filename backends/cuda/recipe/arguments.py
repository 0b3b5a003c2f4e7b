"""Arguments by name: conversion to the parameters that the kernel source declares.

And the limits of launches: CUDA's grid sizes, and kernels that count in 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from types import MappingProxyType
from typing import ParamSpec, Protocol, TypeVar

import numpy as np

from ....runtime.base.record import record
from ....runtime.errors import KernelError, UnsupportedError, did_you_mean
from ....runtime.ir.dtypes import (
    FLOATS,
    DType,
    int32,
    int64,
    name_of,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .operands import (
    Argument,
    Arguments,
    Given,
    Operand,
    Packed,
    Scratch,
    Struct,
    Tensor,
    TensorMap,
)
from .source import DTYPES, TENSOR_MAP, KernelSignature, Member, Parameter, signature_of

P = ParamSpec("P")
R = TypeVar("R")

#: Maximum number of blocks along x, y and z.
MAX_BLOCKS = (2**31 - 1, 2**16 - 1, 2**16 - 1)
#: Maximum number of elements along an axis for tables made on the host.
MAX_TABLE = 1 << 26
_LOWEST, _GREATEST = -(2**31), 2**31 - 1
#: Word types, as which kernels move elements of any dtype.
WORDS = (uint8, uint16, uint32, uint64)
#: Integer types of struct members by size; multipliers of divisors are signed as well.
_SIGNED: Mapping[int, DType] = MappingProxyType({4: int32, 8: int64})
_INTEGERS = frozenset({int, bool})
#: Operands of any dtype.
_UNTYPED = (Packed, Scratch)


# ── what does not fit ────────────────────────────────────────────────────────────────────────────


class TooLarge(UnsupportedError):
    """A size that no launch supports; the message is the reason to decline."""


def check_grid(entry: str, grid: tuple[int, int, int]) -> None:
    """Raise TooLarge for a grid that CUDA cannot launch."""
    if any(blocks > maximum for blocks, maximum in zip(grid, MAX_BLOCKS, strict=True)):
        shown = " x ".join(map(str, grid))
        raise TooLarge(f"{entry} would need a grid of {shown} blocks, more than CUDA launches")


def check_ints(values: Iterable[float]) -> None:
    """Raise TooLarge for values beyond 32 bits, which C would truncate silently."""
    for value in values:
        if not _LOWEST <= value <= _GREATEST:
            raise TooLarge(f"a size of {value}; the kernel counts in 32 bits")


def as_reason(make: Callable[P, R]) -> Callable[P, R | str]:
    """Wrap a function to return the message as the reason instead of raising TooLarge."""

    @wraps(make)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R | str:
        try:
            return make(*args, **kwargs)
        except TooLarge as error:
            return str(error)
        except OverflowError as error:  # numpy's exception for an argument that does not fit
            return f"a size is too large for the kernel: {error}"

    return wrapped


# ── kernel arguments ──────────────────────────────────────────────────────────────────────────────


class ArgumentError(KernelError):
    """Arguments that do not match a kernel's parameters; names file, entry and parameter."""


class ArrangedArguments(dict[str, Argument]):
    """Arguments in the order and types of a kernel's parameters; they are never changed.

    Attributes:
        slots: these parameters.
    """

    __slots__ = ("slots",)

    def __init__(self, slots: Mapping[str, _Slot], given: Arguments) -> None:
        super().__init__((name, slot.take(given[name])) for name, slot in slots.items())
        self.slots = slots


def arranged(
    file: str,
    entry: str,
    given: Arguments,
    types: tuple[tuple[str, DType], ...],
    constants: Sequence[tuple[str, int | bool | float]],
    code: str,
) -> ArrangedArguments:
    """Return arguments in the order and types of a kernel's parameters.

    Those of a launch with the same parameters are in it already, and are returned as they are.

    Args:
        file: the file in `kernels/`.
        entry: the entry point.
        given: the arguments by name.
        types: element type by C++ alias, in pairs.
        constants: compile-time constants by name, in pairs.
        code: generated code.

    Raises:
        ArgumentError: one is missing, unknown, or of the wrong kind.
        TooLarge: a number of a struct exceeds 32 bits.
        OverflowError: a number does not fit its parameter.
    """
    signature = signature_of(file, entry, code)
    lengths = tuple(pair for pair in constants if pair[0] in signature.lengths)
    slots = _slots(signature, types, lengths)
    if isinstance(given, ArrangedArguments) and given.slots is slots:
        return given
    if given.keys() != slots.keys():
        problem = _misnamed(slots, given, "argument")
        raise ArgumentError(f"{signature.title} {problem}", file=file)
    try:
        return ArrangedArguments(slots, given)
    except _ArgumentMismatch as error:
        raise ArgumentError(f"{signature.title}: {error}", file=file) from None


class _ArgumentMismatch(Exception):
    """An argument that does not match its parameter; the message gives the reason."""


class _Slot(Protocol):
    """A parameter with resolved element types and lengths, which converts its argument."""

    def take(self, given: Given) -> Argument: ...


@cache
def _slots(
    signature: KernelSignature,
    types: tuple[tuple[str, DType], ...],
    lengths: tuple[tuple[str, int], ...],
) -> Mapping[str, _Slot]:
    """Return the parameters of a kernel compiled with these types and constants."""
    kernel = _Kernel(signature, dict(types), dict(lengths))
    try:
        return {name: kernel.slot(one) for name, one in signature.parameters.items()}
    except _ArgumentMismatch as error:
        raise ArgumentError(f"{signature.title}: {error}", file=signature.file) from None


@record
class _Kernel:
    """A kernel with its element types and compile-time constants."""

    signature: KernelSignature
    types: Mapping[str, DType]
    lengths: Mapping[str, int]

    def slot(self, parameter: Parameter) -> _Slot:
        """Return the slot of a parameter."""
        name, type_ = parameter.name, parameter.type
        dtype = self.types.get(type_) or DTYPES.get(type_)
        alias = f" = {name_of(self.types[type_])}" if type_ in self.types else ""
        if parameter.is_pointer:
            return _Pointer(name, f"{type_}*{alias}{'*' if alias else ''}", dtype)
        if type_ == TENSOR_MAP:
            return _Map(name)
        members = self.signature.structs.get(type_)
        if members is not None:
            lengths = {member.name: self._length(member) for member in members}
            return _Struct(name, type_, self._dtype(members, name), lengths)
        if dtype is None:
            raise _ArgumentMismatch(f"the type {type_} of parameter {name!r} is not known")
        return _Number(name, f"{type_}{alias}", dtype)

    def _length(self, member: Member) -> int:
        """Return the number of elements of a member."""
        inner = self.signature.structs.get(member.type)
        count = 1 if inner is None else sum(map(self._length, inner))
        if not member.length:
            return count
        known = self.lengths.get(member.length)
        if known is None and not member.length.isdigit():
            raise _ArgumentMismatch(
                f"the length {member.length} of member {member.name!r} is not known"
            )
        return count * int(member.length if known is None else known)

    def _dtype(self, members: Sequence[Member], name: str) -> DType:
        """Return the common dtype of a struct's numbers; unsigned ones count as signed."""
        found: set[DType] = set()
        for member in members:
            inner = self.signature.structs.get(member.type)
            dtype = self.types.get(member.type) or DTYPES.get(member.type)
            if inner is not None:
                found.add(self._dtype(inner, name))
            elif dtype is not None:
                found.add(dtype if dtype in FLOATS else _SIGNED.get(dtype.itemsize, dtype))
            else:
                raise _ArgumentMismatch(f"the type {member.type} in struct {name!r} is not known")
        if len(found) != 1:
            raise _ArgumentMismatch(f"struct {name!r} has numbers of several types")
        return found.pop()


@record
class _Pointer:
    """An address; its dtype is None if only the source knows it."""

    name: str
    type: str
    dtype: DType | None

    def take(self, given: Given) -> Operand | None:
        if isinstance(given, Tensor):
            dtype = given.dtype
            if self.dtype is None or self.dtype == dtype or _moves(self.dtype, dtype):
                return given
        elif given is None or isinstance(given, _UNTYPED):
            return given
        raise _unfit(self.name, self.type, given)


def _moves(word: DType, dtype: DType) -> bool:
    """Whether a kernel moves words, which may be elements of another dtype."""
    return word in WORDS and word.itemsize % dtype.itemsize == 0


@record
class _Map:
    """A tensor map."""

    name: str

    def take(self, given: Given) -> TensorMap:
        if isinstance(given, TensorMap):
            return given
        raise _unfit(self.name, TENSOR_MAP, given)


@record
class _Number:
    """A number with a dtype."""

    name: str
    type: str
    dtype: DType

    def take(self, given: Given) -> Argument:
        kind, number = type(given), self.dtype.type
        if kind is not number and kind is not int and not _are_numbers({kind}, self.dtype):
            raise _unfit(self.name, self.type, given)
        return number(given)


@record
class _Struct:
    """A struct of numbers of one dtype, some of which may be arrays."""

    name: str
    type: str
    dtype: DType
    lengths: Mapping[str, int]

    def take(self, given: Given) -> Struct:
        if isinstance(given, Struct):
            given = dict(given.members)
        elif given is None:
            given = {name: (0,) * length for name, length in self.lengths.items()}
        elif isinstance(given, tuple) and len(self.lengths) == 1:
            given = dict.fromkeys(self.lengths, given)
        if not isinstance(given, Mapping):
            raise self._refusal(given)
        if given.keys() != self.lengths.keys():
            problem = _misnamed(self.lengths, given, "member")
            raise _ArgumentMismatch(f"struct {self.name!r} {problem}")
        members: list[tuple[str, tuple[int | float, ...]]] = []
        values: list[int | float] = []
        for name, length in self.lengths.items():
            number = given[name]
            numbers = number if isinstance(number, tuple) else (number,)
            if len(numbers) != length:
                raise self._refusal(given)
            members.append((name, numbers))
            values += numbers
        if not _are_numbers(set(map(type, values)), self.dtype):
            raise self._refusal(given)
        if self.dtype == int32:
            check_ints(values)
        return Struct(tuple(members), self.dtype)

    def _refusal(self, given: Given) -> _ArgumentMismatch:
        lengths = self.lengths.items()
        shown = (name if length == 1 else f"{name}[{length}]" for name, length in lengths)
        return _unfit(self.name, f"{self.type} {{{', '.join(shown)}}}", given)


def _are_numbers(kinds: set[type], dtype: DType) -> bool:
    """Whether objects of these types are valid numbers for a parameter with this dtype."""
    if kinds <= _INTEGERS:
        return True
    wanted = (int, float, np.number) if dtype in FLOATS else (int, np.integer)
    return all(issubclass(kind, wanted) for kind in kinds)


def _misnamed(names: Collection[str], given: Collection[str], what: str) -> str:
    """Return a message about missing or unknown names."""
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    problems = [f"has no {what} {name!r}{did_you_mean(name, missing)}" for name in unknown]
    problems += [f"needs the {what} {name!r}" for name in missing]
    return f"{'; '.join(problems)}; it has {', '.join(names)}"


def _unfit(name: str, type_: str, given: Given) -> _ArgumentMismatch:
    shown = repr(given)
    if isinstance(given, Tensor):
        shown = f"a tensor {given.value.tensor}"
    elif isinstance(given, Mapping):
        shown = f"members {', '.join(f'{member}={number}' for member, number in given.items())}"
    return _ArgumentMismatch(f"parameter {name!r} is {type_}, not {shown}")
