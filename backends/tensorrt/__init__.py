"""TensorRT engines for the regions that it takes, with the kernels of `cuda` in between.

This backend has not been run: TensorRT's libraries could not be had where it was written. It is
checked against the signatures of TensorRT 11 (`typings/tensorrt.pyi`) and tested on a double made
of them; ``python -m tercet.tools.tensorrt_check`` runs all of it where TensorRT is.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...runtime.backend import Backend
from ...runtime.cache import Cache
from ...runtime.errors import BackendUnavailable
from ...runtime.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from ..cuda.device import CudaDevice
    from .engine import Engines


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return TensorRT, and the cuda kernels on the same device memory for what it leaves.

    Raises:
        BackendUnavailable: there is no TensorRT, or no GPU that the cuda kernels can use.
    """
    from .vendor import load

    load()
    from ..cuda import open_backends as open_cuda

    try:
        cuda = open_cuda(options)
    except BackendUnavailable as error:
        raise BackendUnavailable("tensorrt", error.missing, error.remedy) from None
    from ..cuda.device import open_device
    from .backend import TensorrtBackend

    device = open_device(options.cache, "tensorrt", options.device)
    engines = _engines(device, options.cache / "tensorrt")
    return TensorrtBackend(device, engines), *cuda


@cache
def _engines(device: CudaDevice, folder: Path) -> Engines:
    """Return the engines of this process on a GPU, which all models share."""
    from .engine import Engines
    from .vendor import load

    return Engines(load(), device.description, Cache(folder))
