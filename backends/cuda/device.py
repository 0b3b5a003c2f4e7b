"""The CUDA device that backends and callers use, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import cached_property
from pathlib import Path

from cuda.bindings import driver, nvrtc

from ...runtime.base import forks
from ...runtime.errors import BackendUnavailable, DeviceOutOfMemory
from ...runtime.ir.types import Array
from ...runtime.plan.backend import View
from ...runtime.plan.host import HostBuffer
from .codegen.copies import reformat
from .codegen.screens import find_not_finite
from .control.conditional_nodes import CudaDecisions
from .driver.device import DriverDevice, capability, driver_version, name_of
from .driver.memory import address, pointer
from .driver.status import check
from .driver.step import bind_launch
from .driver.streams import CudaStream
from .interop.exchange import CudaExchange
from .recipe.packing import KernelPacking

MIN_CAPABILITY = (8, 0)
#: First driver version with if/else conditional graph nodes.
DECIDING = 12080


class CudaDevice(DriverDevice):
    """One GPU; see `open_device`."""

    @cached_property
    def exchange(self) -> CudaExchange:
        """Its exchange of arrays with callers."""
        return CudaExchange(self)

    @cached_property
    def decisions(self) -> CudaDecisions | None:
        """Its conditional graph nodes; None if the driver is too old."""
        version = check("cuDriverGetVersion", driver.cuDriverGetVersion())
        return CudaDecisions(self) if version >= DECIDING else None

    def reclaim(self) -> None:
        """Release memory cached for future arrays."""
        self.exchange.trim()

    def packed(
        self,
        pack: Callable[..., Array],
        sources: Sequence[Array],
        copies: MutableMapping[int, View],
    ) -> View | None:
        """Pack a constant by a kernel; see `runtime.backend.Packing`.

        Where there is no room for its sources beside it, the host packs it.
        """
        found = pack.launch(*sources) if isinstance(pack, KernelPacking) else None
        if found is None:
            return None
        code = self.compiler.submit(found.launch.source, here=True)
        stream = self.own_stream()
        try:
            for source in found.sources.values():
                if id(source) not in copies:
                    copies[id(source)] = self.upload_in(stream, source, passing=True)
            buffer = self.allocate_in(stream, found.result.nbytes)
        except DeviceOutOfMemory:
            while copies:
                copies.popitem()[1].buffer.close()
            return None
        read = {name: pointer(copies[id(source)]) for name, source in found.sources.items()}
        bind_launch(self, found.launch, code, {**read, "y": buffer.pointer})(stream)
        stream.synchronize()
        return View(self, buffer, 0, found.result)

    def copier(self, dst: View, src: View) -> Callable[[CudaStream], None]:
        """Return a run that copies `src` to `dst`; see `runtime.backend.Device`.

        Format changes are done by a kernel, which also accesses pinned host memory.
        """
        if dst.format is src.format or dst.nbytes == 0:
            return super().copier(dst, src)
        launch = reformat(dst, src)
        code = self.compiler.submit(launch.source)
        return bind_launch(self, launch, code, {"y": address(dst), "x": address(src)})

    def screen(self, view: View, found: HostBuffer) -> Callable[[CudaStream], None] | None:
        """Return a run that looks for infinities and NaN; see `runtime.backend.Screening`."""
        launch = find_not_finite(view)
        if launch is None:
            return None
        code = self.compiler.submit(launch.source)
        addresses = {"found": found.memory.ctypes.data, "x": pointer(view)}
        return bind_launch(self, launch, code, addresses)


_opened: dict[int, CudaDevice] = {}
_opening = forks.lock()


def open_device(cache: Path | None, backend: str = "cuda", ordinal: int = 0) -> CudaDevice:
    """Return the device with this index; always the same object.

    Args:
        cache: folder for compiled kernels, see `CudaDevice.use_cache`.
        backend: name of the requesting backend, for errors.
        ordinal: index among the GPUs visible to CUDA.

    Raises:
        BackendUnavailable: no driver, no NVRTC, or no GPU that supports the kernels.
    """
    with _opening:
        if ordinal not in _opened:
            _check_driver(backend)
            _check_nvrtc(backend)
            _check_gpu(backend, ordinal)
            _opened[ordinal] = CudaDevice(ordinal, cache)
        device = _opened[ordinal]
        device.check_process()
        device.use_cache(cache)
        return device


def _check_driver(backend: str) -> None:
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise BackendUnavailable(
            backend,
            f"the NVIDIA driver cannot be loaded ({error})",
            "install an NVIDIA GPU and its driver (https://www.nvidia.com/drivers); "
            "`nvidia-smi` shows whether they work",
        ) from None
    if status != driver.CUresult.CUDA_SUCCESS:
        raise BackendUnavailable(
            backend,
            f"the NVIDIA driver answers {status.name}",
            "`nvidia-smi` shows whether a GPU is visible; CUDA_VISIBLE_DEVICES may hide it",
        )
    have, want = driver_version(), driver.CUDA_VERSION
    if int(have.split(".")[0]) < want // 1000:
        raise BackendUnavailable(
            backend,
            f"the NVIDIA driver is for CUDA {have}, the installed packages are for "
            f"CUDA {want // 1000}",
            f"pip install 'tercet[cuda{have.split('.')[0]}]', or update the driver",
        )


def _check_nvrtc(backend: str) -> None:
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        major = driver.CUDA_VERSION // 1000
        raise BackendUnavailable(
            backend,
            f"NVRTC, the CUDA run-time compiler, cannot be loaded ({str(error).splitlines()[0]})",
            f"pip install 'tercet[cuda{major}]'",
        ) from None


def _check_gpu(backend: str, ordinal: int) -> None:
    count = check("cuDeviceGetCount", driver.cuDeviceGetCount())
    if ordinal >= count:
        raise BackendUnavailable(
            backend,
            f"there is no GPU {ordinal}; CUDA shows {count}",
            "`nvidia-smi` lists them; CUDA_VISIBLE_DEVICES may hide some",
        )
    major, minor = capability(ordinal)
    if (major, minor) < MIN_CAPABILITY:
        raise BackendUnavailable(
            backend,
            f"{name_of(ordinal)} has compute capability {major}.{minor}; the kernels need 8.0 "
            "(Ampere) or newer",
            "use backend='numpy', or another GPU",
        )
