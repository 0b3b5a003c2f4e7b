"""Every error that tercet raises on purpose.

Each class carries the exit code that the command line returns for it:
0 ok, 1 mismatch, 2 usage, 3 unsupported, 4 bad model, 5 backend unavailable, 6 device fault,
7 out of time, 8 inconclusive, 9 internal error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar

from .text import message


class TercetError(Exception):
    """Base class of all errors that tercet raises on purpose.

    What it prints is safe for a terminal: names that a file brings are escaped there, see
    `message`. `args` and the attributes have them as they are.
    """

    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        return message(super().__str__())

    def add_note(self, note: str, /) -> None:
        """Add a line to the message; see `BaseException.add_note`."""
        super().add_note(message(note))


class UsageError(TercetError):
    """A call or an option that makes no sense, whatever the model."""


class FileError(UsageError, OSError):
    """A file that is not there, or that cannot be read or written; an OSError as well.

    Args:
        errno: the system's number of the error.
        strerror: its words.
        filename: the file.
    """

    def __str__(self) -> str:
        if self.filename is None or self.strerror is None:
            return super().__str__()
        return message(f"{os.fsdecode(self.filename)}: {self.strerror}")


class InputError(TercetError):
    """An input or output that does not fit the model: name, dtype, rank or shape."""


class ModelError(TercetError):
    """A model that cannot be read, or that contradicts the ONNX specification.

    Args:
        reason: what was found, what was expected and what to do.
        file: path of the model, or None for one that was given in memory.
        where: node, tensor or attribute, such as ``node 'conv1' (Conv)``.
    """

    exit_code = 4

    def __init__(self, reason: str, *, file: str | None = None, where: str | None = None) -> None:
        self.reason, self.file, self.where = reason, file, where
        super().__init__(": ".join(part for part in (file, where, reason) if part))


class ModelFileError(ModelError):
    """A model's path that leads to no file, or to one that cannot be opened."""

    exit_code = 2


class ShapeError(TercetError):
    """Types that an operator does not accept; `infer` adds the node that has them."""

    exit_code = 4


class LimitError(TercetError):
    """A budget (bytes, nodes, depth) that a model would exceed."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Refusal:
    """What one backend said about one node that it does not run."""

    node: str
    operator: str
    types: str
    backend: str
    reason: str


class UnsupportedError(TercetError):
    """Something valid that tercet cannot do: an unknown operator, or nodes no backend runs.

    Args:
        message: what was asked.
        refusals: one entry per node and backend, all of them.
        remedy: what the user can do.
    """

    exit_code = 3

    def __init__(self, message: str, refusals: Iterable[Refusal] = (), remedy: str = "") -> None:
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
        missing: what was looked for and not found.
        remedy: the command, or the step, that fixes it.
    """

    exit_code = 5

    def __init__(self, backend: str, missing: str, remedy: str) -> None:
        self.backend, self.missing, self.remedy = backend, missing, remedy
        super().__init__(f"backend '{backend}' cannot run here: {missing}\n  {remedy}")


class DeviceError(TercetError):
    """A call to a device that failed; names the call, the status and, where known, the node."""

    exit_code = 6


class OperatorError(DeviceError):
    """A user's own operator that raised (see `__cause__`), or gave something that is no result."""


class DeviceOutOfMemory(DeviceError):
    """An allocation that a device refused; says how much was asked for and how much is free."""


def out_of_memory(where: str, error: MemoryError) -> DeviceOutOfMemory:
    """Return the error for memory of the host that numpy or Python asked for and did not get."""
    wanted = str(error) or "an allocation failed"
    return DeviceOutOfMemory(
        f"{where}: the host has too little memory: {wanted}; max_bytes refuses a model earlier"
    )


class DeviceFault(DeviceError):
    """A fault in a kernel, after which the driver refuses the process everything else."""


class KernelError(TercetError):
    """A kernel that does not compile.

    Args:
        message: file, line and the compiler's words.
        file: the source file, if the compiler named one.
        line: the line in it.
    """

    exit_code = 6

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        self.file, self.line = file, line
        super().__init__(message)


class TimeLimitError(TercetError):
    """Work that was not done when the time that its caller gave it was up."""

    exit_code = 7


#: What Python and numpy raise for data that an operator cannot work on. Types and sizes are checked
#: before, so this is the net under those checks.
FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class TercetWarning(UserWarning):
    """Base class of everything that tercet warns of through Python's `warnings`.

    As with errors, names are escaped in what it prints.
    """

    def __str__(self) -> str:
        return message(super().__str__())


class ModelWarning(TercetWarning):
    """Something in a model's file that is odd, and that was read the way other runtimes read it."""


class PerformanceWarning(TercetWarning):
    """A slow path that the user can leave; says how. Given once per model."""


class PrecisionWarning(TercetWarning):
    """A reduced precision that changed results in a way that float32 would not."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known word nearest to `word`, or an empty string."""
    by_case = {name.casefold(): name for name in known}
    if len(word) > 100:  # the comparison takes time with the square of the length
        return ""
    near = get_close_matches(word.casefold(), by_case, n=1, cutoff=0.5)
    return f"; did you mean '{by_case[near[0]]}'?" if near else ""
