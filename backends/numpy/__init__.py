"""The reference backend: numpy, on the host."""

from __future__ import annotations

from ...runtime.options import Options
from ...runtime.plan.backend import Backend
from .backend import NumpyBackend, evaluate

#: Both exclude Winograd, whose rounding error is a few times larger.
ALGORITHMS = {"direct": ("Conv",), "naive": ("Conv",)}
#: numpy has no arithmetic in 16 bits, and no vector instructions to convert them.
WIDENS = True
#: Products of few rows read packed weights in less time than floats.
PACKS = True

__all__ = ["NumpyBackend", "evaluate", "open_backends"]


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return the backend, which is always available."""
    return (NumpyBackend(),)
