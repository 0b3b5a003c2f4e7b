"""A GPU that is not present, for which kernels are compiled.

Plans are made for it as for one that is: memory has addresses but no bytes, kernels are compiled
but not loaded, and nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.ir.dtypes import uint8
from ...runtime.ir.types import Array, TensorType
from ...runtime.plan.backend import Run, Stream, View
from ...runtime.plan.host import HostBuffer
from .codegen.copies import reformat
from .codegen.screens import find_not_finite
from .control.conditional_nodes import CudaDecisions
from .driver.compile import Compiler
from .driver.memory import CudaBuffer
from .recipe.launch import Launch
from .recipe.packing import KernelPacking
from .recipe.targets import Target

#: Addresses are multiples of this, as those of real allocations.
ALIGNMENT = 512


class PaperStream:
    """A stream that nothing is given to; implements `runtime.backend.Forking`."""

    def synchronize(self) -> None:
        """Do nothing."""

    def mark(self) -> object:
        """Return no event."""
        return None

    def wait(self, event: Any) -> None:
        """Do nothing."""


class PaperExchange:
    """The exchange with callers, who have no arrays on such a device."""

    def trim(self) -> None:
        """Do nothing."""

    def event(self) -> object:
        """Return no event: nothing runs that could be waited for."""
        return None

    def stream(self, given: Any) -> Stream:
        """Return a stream that does nothing."""
        return PaperStream()

    def copy(self, dst: View, src: View, stream: Stream) -> None:
        """Do nothing."""

    def fetch(self, view: View, stream: Stream) -> Array:
        """Return zeros."""
        return np.zeros(view.type.dims, view.type.dtype)


class PaperDevice:
    """Implements `runtime.backend.Device` as `CudaDevice` does, without a GPU and its driver.

    Args:
        target: the GPU.
        cache: folder of the code.
        packs: whether constants have their sizes on a GPU, for which the host packs those that no
            kernel does; else those of their sources, for plans whose code alone counts.

    Attributes:
        name: that of the first GPU.
        compiler: compiles the kernels of everything that is planned.
        exchange: with it, plans copy large results as on a GPU.
    """

    name = "cuda:0"

    def __init__(self, target: Target, cache: Path | None, *, packs: bool = False) -> None:
        self.exchange = PaperExchange()
        self.compiler = Compiler(target, cache)
        self._addresses, self._packs = count(1), packs

    @cached_property
    def decisions(self) -> CudaDecisions:
        """Conditional graph nodes, which need a driver of CUDA 12.8 where the plans run."""
        device: Any = self
        return CudaDecisions(device)

    def enter(self) -> None:
        """Do nothing."""

    def allocate(self, nbytes: int) -> CudaBuffer:
        """Return an address that nothing else has."""
        return CudaBuffer(ALIGNMENT * next(self._addresses), nbytes)

    def staging(self, nbytes: int) -> HostBuffer:
        """Return host memory, which the system provides only when it is written."""
        return HostBuffer(nbytes)

    def stream(self) -> Stream:
        """Return a stream that does nothing."""
        return PaperStream()

    def upload(self, data: Array) -> View:
        """Return an address for an array of this type."""
        return View(self, self.allocate(data.nbytes), 0, TensorType(data.dtype, data.shape))

    def packed(
        self,
        pack: Callable[..., Array],
        sources: Sequence[Array],
        copies: MutableMapping[int, View],
    ) -> View | None:
        """Compile the kernel that packs a constant, if there is one; it does not run."""
        found = pack.launch(*sources) if isinstance(pack, KernelPacking) else None
        if found is not None:
            self.compiler.submit(found.launch.source)
            return View(self, self.allocate(found.result.nbytes), 0, found.result)
        if self._packs:
            return None
        nbytes = sum(data.nbytes for data in sources)
        return View(self, self.allocate(nbytes), 0, TensorType(uint8, (nbytes,)))

    def copier(self, dst: View, src: View) -> Run:
        """Compile the kernel that changes the format, if it differs; see `CudaDevice.copier`."""
        if dst.format is not src.format and dst.nbytes:
            self.compiler.submit(reformat(dst, src).source)
        return _do_nothing

    def screen(self, view: View, found: HostBuffer) -> Run | None:
        """Compile the kernel that looks for infinities; see `CudaDevice.screen`."""
        launch = find_not_finite(view)
        if launch is not None:
            self.compiler.submit(launch.source)
        return None

    def launcher(self, launch: Launch, code: bytes, pointers: Mapping[str, int]) -> Run:
        """Return a run that does nothing."""
        return _do_nothing

    def record(self, run: Run) -> Run | None:
        """Return None: nothing is recorded."""
        return None


def _do_nothing(stream: Stream) -> None:
    pass
