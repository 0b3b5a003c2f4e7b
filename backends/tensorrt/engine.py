"""Engines: built once per section, settings, TensorRT and GPU, kept on disk and in the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...runtime import forks
from ...runtime.cache import Cache
from ...runtime.errors import DeviceError
from ..regions.section import Ints, Section
from .vendor import Library

if TYPE_CHECKING:
    import tensorrt as trt


class Refused(Exception):
    """TensorRT's own "no" to a section.

    Attributes:
        node: the name of the node that it is about, empty where it names none.
        reason: its words.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine depends on besides its section.

    Attributes:
        tf32: whether float32 products may be rounded to TF32.
        workspace: greatest scratch memory in bytes; None for no limit.
        level: how long the builder looks for faster kernels, 0 to 5.
    """

    tf32: bool = False
    workspace: int | None = None
    level: int = 3


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that is ready to run.

    Attributes:
        vendor: TensorRT.
        core: the `ICudaEngine`.
        key: what it is known by.
        layers: how many it has.
        scratch: bytes of device memory that a run needs.
    """

    vendor: Library
    core: trt.ICudaEngine
    key: str
    layers: int
    scratch: int

    def context(
        self, shapes: Mapping[str, Ints], addresses: Mapping[str, int]
    ) -> trt.IExecutionContext:
        """Return a context for these inputs, whose memory the caller provides.

        Args:
            shapes: by input.
            addresses: by input and output.

        Raises:
            DeviceError: TensorRT does not take one of them.
        """
        import tensorrt as trt

        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context: trt.IExecutionContext | None = self.core.create_execution_context(strategy)
        if context is None:
            raise self._failed("create_execution_context")
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise self._failed(f"set_input_shape('{name}', {shape})")
        self.point(context, addresses)
        return context

    def point(self, context: trt.IExecutionContext, addresses: Mapping[str, int]) -> None:
        """Let a context read and write at these addresses."""
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise self._failed(f"set_tensor_address('{name}')")

    def run(self, context: trt.IExecutionContext, stream: int) -> None:
        """Give a run to a stream, by its handle."""
        if not context.execute_async_v3(stream):
            raise self._failed("execute_async_v3")

    def _failed(self, call: str) -> DeviceError:
        where = f"TensorRT {self.vendor.version}, engine {self.key[:8]}"
        return DeviceError(f"{where}: {call}: {self.vendor.said()}")


class Engines:
    """All engines of this process.

    Args:
        vendor: TensorRT.
        gpu: what it builds for; engines fit no other one.
        store: where engines and timings are kept.
    """

    def __init__(self, vendor: Library, gpu: str, store: Cache) -> None:
        import tensorrt as trt

        self.vendor = vendor
        self._gpu = gpu
        self._store = store
        self._known: dict[str, Engine] = {}
        self._lock = forks.lock()
        self._builder = trt.Builder(vendor.logger)
        self._runtime = trt.Runtime(vendor.logger)
        self._parser = trt.OnnxParser(self._network(), vendor.logger)

    def takes(self, operator: str) -> bool:
        """Whether TensorRT's parser knows an operator of ai.onnx."""
        with self._lock:
            return bool(self._parser.supports_operator(operator))

    def get(self, section: Section, settings: Settings) -> Engine:
        """Return the engine of a section: that of this process, of the disk, or a new one.

        Raises:
            Refused: TensorRT does not take the section.
        """
        parts = (self.vendor.version, self._gpu, settings, section.digest)
        key = sha256(repr(parts).encode()).hexdigest()
        with self._lock:
            if key not in self._known:
                self._known[key] = self._open(key, section, settings)
            return self._known[key]

    def _open(self, key: str, section: Section, settings: Settings) -> Engine:
        stored = self._store.read(f"{key}.engine")
        core = self._deserialized(stored) if stored is not None else None
        if core is None:
            built = self._build(section, settings)
            core = self._deserialized(built)
            if core is None:
                raise Refused("", f"deserialize_cuda_engine: {self.vendor.said()}")
            self._store.write(f"{key}.engine", built)
        scratch = int(core.device_memory_size_v2)
        return Engine(self.vendor, core, key, int(core.num_layers), scratch)

    def _deserialized(self, data: bytes) -> trt.ICudaEngine | None:
        """Return an engine; None where TensorRT does not take it, as one of another version."""
        return self._runtime.deserialize_cuda_engine(data)

    # ── building ─────────────────────────────────────────────────────────────────────────────

    def _network(self) -> trt.INetworkDefinition:
        import tensorrt as trt

        flag = trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        return self._builder.create_network(1 << int(flag))

    def _build(self, section: Section, settings: Settings) -> bytes:
        network = self._network()
        with TemporaryDirectory(prefix="tercet-") as folder:
            self._parse(network, section.write(Path(folder)))
            config = self._config(section, settings)
            timings = f"{sha256(f'{self.vendor.version} {self._gpu}'.encode()).hexdigest()}.timings"
            cache = config.create_timing_cache(self._store.read(timings) or b"")
            config.set_timing_cache(cache, False)
            built: trt.IHostMemory | None
            built = self._builder.build_serialized_network(network, config)
        if built is None:
            raise Refused("", f"build_serialized_network: {self.vendor.said()}")
        self._store.write(timings, _bytes(config.get_timing_cache().serialize()))
        return _bytes(built)

    def _parse(self, network: trt.INetworkDefinition, path: Path) -> None:
        import tensorrt as trt

        parser = trt.OnnxParser(network, self.vendor.logger)
        if parser.parse_from_file(str(path)):
            return
        if not parser.num_errors:
            raise Refused("", f"parse_from_file: {self.vendor.said()}")
        first: trt.ParserError = parser.get_error(0)
        raise Refused(first.node_name(), f"its parser says {first.code().name}: {first.desc()}")

    def _config(self, section: Section, settings: Settings) -> trt.IBuilderConfig:
        import tensorrt as trt

        config = self._builder.create_builder_config()
        if settings.tf32:
            config.set_flag(trt.BuilderFlag.TF32)
        else:
            config.clear_flag(trt.BuilderFlag.TF32)
        config.builder_optimization_level = settings.level
        if settings.workspace is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace)
        if section.profiles:
            profile = self._builder.create_optimization_profile()
            for name, shapes in section.profiles.items():
                profile.set_shape(name, *(trt.Dims(shape) for shape in shapes))
            if config.add_optimization_profile(profile) < 0:
                raise Refused("", f"add_optimization_profile: {self.vendor.said()}")
        return config


def _bytes(memory: trt.IHostMemory) -> bytes:
    """Return a copy of TensorRT's memory, which is a buffer, though its signature is silent."""
    view: Any = memory
    return bytes(view)
