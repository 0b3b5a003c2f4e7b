"""The reference backend: numpy, on the host."""

from __future__ import annotations

from ...runtime.backend import Backend
from ...runtime.options import Options
from . import (
    attention,
    conv,
    gather,
    matmul,
    norm,
    pool,
    quantize,
    recurrent,
    reduce,
    resize,
    search,
    shape,
)
from .backend import NumpyBackend, evaluate

#: Importing them is what registers their implementations.
FAMILIES = (
    attention,
    conv,
    gather,
    matmul,
    norm,
    pool,
    quantize,
    recurrent,
    reduce,
    resize,
    search,
    shape,
)

__all__ = ["NumpyBackend", "evaluate", "open_backends"]


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return the backend; it needs nothing and is always there."""
    return (NumpyBackend(),)
