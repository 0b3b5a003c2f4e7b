"""CUDA kernels of this project, compiled by NVRTC and launched through cuda.core."""

from __future__ import annotations

from ...runtime.errors import BackendUnavailable
from ...runtime.options import Options
from ...runtime.plan.backend import Backend


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return the backend, alone.

    Raises:
        BackendUnavailable: no driver, no GPU that can run the kernels, or no cuda.core or NVRTC.
    """
    try:
        from .backend import CudaBackend
        from .device import open_device
    except ImportError as error:
        raise BackendUnavailable(
            "cuda", f"the CUDA packages for Python are missing ({error})", REMEDY
        ) from None
    return (CudaBackend(open_device(options.cache, ordinal=options.device)),)


REMEDY = "pip install 'tercet[cuda13]' (or 'tercet[cuda12]' for a driver of CUDA 12)"
