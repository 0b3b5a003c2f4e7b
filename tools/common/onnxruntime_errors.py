"""onnxruntime's exceptions, which only its bindings define."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes; raises ImportError if it is not installed."""
    state: Any = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    return (
        state.Fail,
        state.EPFail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NotImplemented,
        state.RuntimeException,
        RuntimeError,
    )
