"""Fused cuDNN graphs, with the kernels of `cuda` for everything else."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...runtime.errors import BackendUnavailable
from ...runtime.options import Options
from ...runtime.plan.backend import Backend
from .. import cuda
from . import names

if TYPE_CHECKING:
    from .session import Session

#: Its own, and those of the kernels behind it.
USES = cuda.USES
ALGORITHMS = {**dict.fromkeys(names.ALGORITHMS), **cuda.ALGORITHMS}
PACKS = cuda.PACKS


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return the cuDNN backend, followed by the cuda backend on the same device memory.

    Raises:
        BackendUnavailable: there is no GPU that the cuda kernels can use, no frontend or no cuDNN.
    """
    try:
        behind = cuda.open_backends(options)
    except BackendUnavailable as error:
        raise BackendUnavailable("cudnn", error.missing, error.remedy) from None
    from ..cuda.backend import CudaBackend
    from ..cuda.device import open_device
    from .arbitration import CudaTimer
    from .backend import CudnnBackend
    from .choice import Chooser

    device, folder = open_device(options.cache, "cudnn", options.device), options.cache / "cudnn"
    device.enter()
    chooser = Chooser(_session(device.ordinal), folder)
    return CudnnBackend(device, chooser, CudaTimer(CudaBackend(device), folder)), *behind


@cache
def _session(ordinal: int) -> Session:
    """Return the process-wide cuDNN session of a GPU."""
    from .library import load
    from .session import Session

    return Session.here(load(), ordinal)
