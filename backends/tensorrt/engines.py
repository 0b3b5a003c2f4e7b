"""Engines, built once per section, settings, library and GPU, cached on disk and in memory."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ...runtime.base import forks
from ...runtime.base.cache import Cache
from ...runtime.base.worker import Worker
from ...runtime.plan.backend import Device
from ..regions.section import Section
from .build import EngineBuilder, EngineSettings, SectionRefused, name_for
from .engine import TensorrtEngine
from .library import TensorrtLibrary
from .step import Pointer, TensorrtStep
from .worker import Remote

if TYPE_CHECKING:
    import tensorrt as trt


class Engines:
    """All engines of this process.

    Args:
        vendor: the library.
        gpu: the GPU that it builds for; engines do not run on others.
        store: the cache of engines and timings.
        worker: the process that builds; this one if None.
    """

    def __init__(
        self, vendor: TensorrtLibrary, gpu: str, store: Cache, worker: Worker | None = None
    ) -> None:
        self.vendor = vendor
        self._gpu = gpu
        self._store = store
        self._known: dict[str, TensorrtEngine] = {}
        self._lock = forks.lock()
        self._builder = EngineBuilder(vendor, timings=(store, name_for(vendor, gpu, "timings")))
        self._builds = self._builder if worker is None else Remote(self._builder, worker)
        self._runtime = vendor.trt.Runtime(vendor.logger)

    def takes(self, operator: str) -> bool:
        """Whether the parser supports an operator of ai.onnx."""
        with self._lock:
            return self._builder.takes(operator)

    def obstacle(self) -> str:
        """Return the library's reason why this GPU cannot run engines; empty if it can."""
        with self._lock:
            try:
                core = self._deserialized(self._builder.probe())
            except SectionRefused as error:
                return error.reason
            return "" if core is not None else self.vendor.take_message()

    def step(
        self, device: Device, pointer: Pointer, found: Section, settings: EngineSettings, size: int
    ) -> TensorrtStep:
        """Return the step of a section of `size` nodes.

        Raises:
            SectionRefused: the library does not accept the section.
        """
        return TensorrtStep(device, pointer, found, self.get(found, settings), size)

    def get(self, section: Section, settings: EngineSettings) -> TensorrtEngine:
        """Return the engine of a section, from memory, from disk, or newly built.

        Raises:
            SectionRefused: the library does not accept the section.
        """
        key = key_of(self.vendor, self._gpu, settings, section)
        with self._lock:
            if key not in self._known:
                self._known[key] = self._open(key, section, settings)
            return self._known[key]

    def _open(self, key: str, section: Section, settings: EngineSettings) -> TensorrtEngine:
        stored = self._store.read(f"{key}.engine")
        core = None if stored is None else self._complete(stored, section, settings)
        if core is None:
            core = self._built(key, section, settings)
        scratch = int(core.device_memory_size_v2)
        return TensorrtEngine(self.vendor, core, key, int(core.num_layers), scratch, self._store)

    def _built(self, key: str, section: Section, settings: EngineSettings) -> trt.ICudaEngine:
        """Return a new engine, and cache it."""
        built = self._builds.build(section, settings)
        core = self._complete(built, section, settings)
        if core is None:
            raise SectionRefused("", f"opening the engine: {self.vendor.take_message()}")
        self._store.write(f"{key}.engine", built)
        return core

    def _complete(
        self, data: bytes, section: Section, settings: EngineSettings
    ) -> trt.ICudaEngine | None:
        """Return an engine with its weights; None if the library rejects it."""
        core = self._deserialized(data)
        if core is None or not settings.strip:
            return core
        trt = self.vendor.trt
        refitter = trt.Refitter(core, self.vendor.logger)
        with TemporaryDirectory(prefix="tercet-") as folder:
            reader = trt.OnnxParserRefitter(refitter, self.vendor.logger)
            if not reader.refit_from_file(str(section.write(Path(folder)))):
                return None
            # The reader owns the data until they are in the engine.
            is_whole = not refitter.get_missing_weights() and refitter.refit_cuda_engine()
        return core if is_whole else None

    def _deserialized(self, data: bytes) -> trt.ICudaEngine | None:
        """Return an engine; None if the library rejects it, such as one of another version."""
        return self._runtime.deserialize_cuda_engine(data)


def key_of(vendor: TensorrtLibrary, gpu: str, settings: EngineSettings, section: Section) -> str:
    """Return the cache key of a section's engine."""
    parts = (str(vendor), gpu, settings, section.digest)
    return sha256(repr(parts).encode()).hexdigest()
