"""What onnxruntime raises: classes that its bindings alone have, and RuntimeError."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return the classes of its errors; raises ImportError where it is not installed."""
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
