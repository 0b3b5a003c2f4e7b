"""Fused cuDNN graphs, with the kernels of `cuda` for everything else."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...runtime.backend import Backend
from ...runtime.errors import BackendUnavailable
from ...runtime.options import Options
from ..cuda import open_backends as open_cuda
from .library import load

if TYPE_CHECKING:
    from .session import Session


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return cuDNN, and the cuda kernels on the same device memory for what it leaves.

    Raises:
        BackendUnavailable: there is no GPU that the cuda kernels can use, no frontend or no cuDNN.
    """
    try:
        (cuda,) = open_cuda(options)
    except BackendUnavailable as error:
        raise BackendUnavailable("cudnn", error.missing, error.remedy) from error
    session = _session(cuda.device.ordinal)
    from .backend import CudnnBackend
    from .choice import Chooser

    return CudnnBackend(cuda.device, Chooser(session, options.cache / "cudnn")), cuda


@cache
def _session(ordinal: int) -> Session:
    """Return cuDNN on a GPU: one handle each for the whole process."""
    from .session import Session

    return Session.here(load(), ordinal)
