"""All errors that tercet raises deliberately.

Each class carries the exit code that the command line returns for it:
0 ok, 1 mismatch, 2 usage, 3 unsupported, 4 bad model, 5 backend unavailable, 6 device fault,
7 out of time, 8 inconclusive, 9 internal error, 10 another runtime crashed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from errno import EISDIR, ENOENT
from typing import ClassVar

from .spelling import nearest
from .text import message


@dataclass(frozen=True, slots=True)
class Argument:
    """The argument that an error is about; the command line calls it by its option.

    Attributes:
        name: in Python.
        given: what was given, () or (value,); () where the reason says it.
        reason: what is wrong with it, and what to do.
    """

    name: str
    given: tuple[object, ...]
    reason: str


class TercetError(Exception):
    """Base class of all errors that tercet raises deliberately.

    Its message is safe for a terminal: names from files are escaped, see `message`. `args` and
    attributes hold them unescaped.

    Attributes:
        argument: what it is about, if that is an argument; see `arguments.unfit`.
    """

    exit_code: ClassVar[int] = 2
    argument: Argument | None = None

    def __str__(self) -> str:
        return message(super().__str__())

    def add_note(self, note: str, /) -> None:
        """Add a line to the message; see `BaseException.add_note`."""
        super().add_note(message(note))


class UsageError(TercetError):
    """An invalid call or option, whatever the model."""


#: What the system says only in its own words, and what users can do.
_REASONS = {ENOENT: "there is no such file or folder", EISDIR: "is a folder; give a file"}


class FileError(UsageError, OSError):
    """A file that does not exist, or cannot be read or written; also an OSError.

    Args:
        errno: the system's error number.
        strerror: the system's error message.
        filename: the file.
    """

    def __str__(self) -> str:
        if self.filename is None or self.strerror is None:
            return super().__str__()
        reason = self.strerror
        if self.errno in _REASONS and reason == os.strerror(self.errno):
            reason = _REASONS[self.errno]
        return message(f"{os.fsdecode(self.filename)}: {reason}")


class InputError(TercetError):
    """An input or output that does not fit the model in name, dtype, rank or shape."""


class ModelError(TercetError):
    """A model that cannot be read, or violates the ONNX specification.

    Args:
        reason: what was found, what was expected, and a remedy.
        file: path of the model, or None for a model in memory.
        where: node, tensor or attribute, such as ``node 'conv1' (Conv)``.
    """

    exit_code = 4

    def __init__(self, reason: str, *, file: str | None = None, where: str | None = None) -> None:
        self.reason, self.file, self.where = reason, file, where
        super().__init__(": ".join(part for part in (file, where, reason) if part))


class ModelFileError(ModelError):
    """The path of a model that does not exist or cannot be opened."""

    exit_code = 2


class NotADecoderError(ModelError):
    """A model that does not generate tokens step by step, where one that does is needed."""

    exit_code = 2


class InputSizeError(InputError, ModelError):
    """Sizes of inputs that the model leaves open, and with which one of its nodes cannot run."""

    exit_code = 2


class ShapeError(TercetError):
    """Types that an operator does not accept; `infer` adds the node."""

    exit_code = 4


class ShapeRuleError(ShapeError):
    """The shape rule of a custom operator that raised, or gave what is no type."""

    exit_code = 2


class OperatorRuleError(ModelError):
    """The same with the node: the user's operator is wrong, whatever the model."""

    exit_code = 2


class LimitError(TercetError):
    """A budget (bytes, nodes, depth) that a model would exceed."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """The reason why one backend declined one node."""

    node: str
    operator: str
    types: str
    backend: str
    reason: str


class UnsupportedError(TercetError):
    """Something valid that tercet cannot do: an unknown operator, or nodes no backend runs.

    Args:
        message: what was requested.
        refusals: one entry per node and backend.
        remedy: a remedy for the user.
    """

    exit_code = 3

    def __init__(
        self, message: str, refusals: Iterable[NodeRefusal] = (), remedy: str = ""
    ) -> None:
        self.refusals = tuple(refusals)
        lines = [message]
        for r in self.refusals:
            lines.append(f"  {r.operator} '{r.node}' {r.types}: {r.backend}: {r.reason}")
        if remedy:
            lines.append(remedy)
        super().__init__("\n".join(lines))


class BackendUnavailable(TercetError):
    """A backend that cannot run on this machine.

    Args:
        backend: its name.
        missing: what is missing.
        remedy: the command or step that makes it available.
    """

    exit_code = 5

    def __init__(self, backend: str, missing: str, remedy: str) -> None:
        self.backend, self.missing, self.remedy = backend, missing, remedy
        super().__init__(f"backend '{backend}' cannot run here: {missing}\n  {remedy}")


class DeviceError(TercetError):
    """A failed device call; names the call, the status and, if known, the node."""

    exit_code = 6


class OperatorError(DeviceError):
    """A custom operator that raised (see `__cause__`), or returned an invalid result."""


class DeviceOutOfMemory(DeviceError):
    """A failed allocation on a device; states the requested and the free bytes."""


def out_of_memory(where: str, error: MemoryError) -> DeviceOutOfMemory:
    """Return the error for a host allocation by numpy or Python that failed."""
    wanted = str(error) or "an allocation failed"
    return DeviceOutOfMemory(
        f"{where}: the host has too little memory: {wanted}; max_bytes refuses a model earlier"
    )


class DeviceFault(DeviceError):
    """A fault in a kernel, after which the driver fails all further calls of the process."""


class KernelError(TercetError):
    """A kernel that does not compile.

    Args:
        message: file, line and the compiler's message.
        file: the source file, if the compiler named one.
        line: the line in it.
    """

    exit_code = 6

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        self.file, self.line = file, line
        super().__init__(message)


class CustomKernelError(KernelError):
    """A custom operator's kernel that does not compile, or a launch that does not fit it."""

    exit_code = 2

    @classmethod
    def of(cls, error: KernelError) -> CustomKernelError:
        """Return the same error, as one of the user's source."""
        return cls(*error.args, file=error.file, line=error.line)


class UncompiledError(KernelError):
    """Kernels that the cache lacks, where ``TERCET_COMPILE=never`` forbids to compile them.

    Args:
        message: names the kernels, and the cache.
        kernels: their source files.
    """

    def __init__(self, message: str, kernels: tuple[str, ...]) -> None:
        super().__init__(message, file=kernels[0])
        self.kernels = kernels


class TimeLimitError(TercetError):
    """The time limit passed before the work was done."""

    exit_code = 7


#: What Python and numpy raise for data that an operator cannot process. Types and sizes are checked
#: before; this is the safety net.
FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class TercetWarning(UserWarning):
    """Base class of all warnings that tercet issues through Python's `warnings`.

    As with errors, names are escaped when it is printed.
    """

    def __str__(self) -> str:
        return message(super().__str__())


class ModelWarning(TercetWarning):
    """An irregularity in a model file, which is interpreted as other runtimes do."""


class PerformanceWarning(TercetWarning):
    """A slow path that the user can avoid, with a remedy. Issued once per model."""


class PrecisionWarning(TercetWarning):
    """Results that are infinite or NaN in reduced precision, but not in float32."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known word that `nearest` finds, or an empty string.

    Args:
        word: what was given.
        known: what there is.
    """
    near = nearest(word, known)
    return "" if near is None else f"; did you mean '{near}'?"
