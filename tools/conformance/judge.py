"""One test case on one backend, compared as ONNX does."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

from onnx.backend.test.runner import Runner

from ...onnx_backend import TercetBackend
from ...runtime.errors import DeviceError, TercetError, UnsupportedError
from .suite import ConformanceCase

Status = Literal["passed", "unsupported", "failed"]

_LONGEST_REASON = 500

# Exceptions that count as failures; any other ends the process.
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The outcome of a case.

    Attributes:
        status: ``unsupported`` if tercet reports that it cannot run the model.
        reason: why it did not pass, on one line; empty if it passed.
        broken: whether the device is unusable for later cases in this process.
    """

    status: Status
    reason: str = ""
    broken: bool = False


def judge(
    case: ConformanceCase, backend: type[TercetBackend], fallback: str | None = None
) -> CaseOutcome:
    """Run a case on a backend and compare as ONNX's runner does, with the case's tolerances."""
    options = {} if fallback is None else {"fallback": fallback}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model, data_sets = case.content.read()
            prepared = backend.prepare(model, **options)
            try:
                for inputs, expected in data_sets:
                    outputs = prepared.run(inputs)
                    Runner.assert_similar_outputs(expected, outputs, case.rtol, case.atol)
            finally:
                prepared.close()
        except UnsupportedError as error:
            return CaseOutcome("unsupported", _declined(error))
        except (TercetError, *_FAULTS) as error:
            return CaseOutcome("failed", _reason(error), isinstance(error, DeviceError))
    return CaseOutcome("passed")


def _declined(error: UnsupportedError) -> str:
    """Return the backends' reasons without names and shapes, which differ between cases."""
    said = dict.fromkeys(f"{r.operator}: {r.backend}: {r.reason}" for r in error.refusals)
    return one_line("\n".join(said) or str(error))


def _reason(error: Exception) -> str:
    said = one_line(str(error).partition("\n ACTUAL:")[0])  # numpy goes on to print both
    if isinstance(error, TercetError | AssertionError) and said:
        return said
    return f"{type(error).__name__}: {said}".rstrip(": ")


def one_line(text: str) -> str:
    """Return a text on one line, truncated if very long."""
    line = "; ".join(part.strip(" ;") for part in text.splitlines() if part.strip(" ;"))
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 4]} ..."
