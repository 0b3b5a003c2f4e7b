"""TensorRT engines for the regions that it accepts, with the kernels of `cuda` in between.

The library is TensorRT or TensorRT-RTX (`products.py` has their differences). Engines have been
built with the latter's parser and builder; none has been run yet: see docs/tensorrt.md.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...runtime.base.cache import Cache
from ...runtime.errors import BackendUnavailable
from ...runtime.options import Options
from ...runtime.plan.backend import Backend
from .. import cuda
from .options import MIN_NODES_VARIABLE, TensorrtOptions

if TYPE_CHECKING:
    from pathlib import Path

    from ..cuda.device import CudaDevice
    from .engines import Engines

OPTIONS = TensorrtOptions
#: Its own, and those of the kernels behind it.
USES, ALGORITHMS = (*cuda.USES, "ranges"), cuda.ALGORITHMS


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return the TensorRT backend, followed by cuda on the same device memory for declined nodes.

    Raises:
        BackendUnavailable: there is no TensorRT, no GPU that the cuda kernels can use, or none that
            TensorRT runs engines on.
    """
    from .library import load

    load()
    try:
        behind = cuda.open_backends(options)
    except BackendUnavailable as error:
        raise BackendUnavailable("tensorrt", error.missing, error.remedy) from None
    from ..cuda.device import open_device
    from ..regions.regions import min_nodes
    from .backend import TensorrtBackend

    device = open_device(options.cache, "tensorrt", options.device)
    device.enter()
    engines, obstacle = _engines(device, options.cache / "tensorrt")
    if obstacle:
        missing = f"{engines.vendor} runs no engines on {device.description}: {obstacle}"
        raise BackendUnavailable("tensorrt", missing, "use another GPU, or the backend cudnn")
    own = options.of_backend("tensorrt", OPTIONS)
    minimum = own.min_nodes or min_nodes(MIN_NODES_VARIABLE)
    return TensorrtBackend(device, engines, minimum=minimum), *behind


@cache
def _engines(device: CudaDevice, folder: Path) -> tuple[Engines, str]:
    """Return this process's engines for a GPU, and why it cannot run any; all models share them."""
    from .build import name_for
    from .engines import Engines
    from .library import load
    from .worker import worker_for

    vendor, store = load(), Cache(folder)
    timings = folder / name_for(vendor, device.description, "timings")
    worker = worker_for(device=device.ordinal, timings=str(timings))
    engines = Engines(vendor, device.description, store, worker)
    return engines, engines.obstacle()
