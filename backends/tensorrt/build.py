"""Building engines: runs a section through the library's parser and builder; needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...runtime.base.cache import Cache
from ...runtime.base.record import record
from ...runtime.ir import dtypes
from ...runtime.ir.dtypes import name_of
from ..regions.section import Ints, Profile, Section
from .library import TensorrtLibrary

if TYPE_CHECKING:
    import tensorrt as trt

#: Shapes by input.
Profiles = Mapping[str, Profile]
#: The library's names of the element types of regions.
TYPES: Mapping[str, str] = {
    name_of(dtypes.float32): "FLOAT",
    name_of(dtypes.float16): "HALF",
    name_of(dtypes.bfloat16): "BF16",
    name_of(dtypes.float8e4m3fn): "FP8",
    name_of(dtypes.int8): "INT8",
    name_of(dtypes.uint8): "UINT8",
    name_of(dtypes.int32): "INT32",
    name_of(dtypes.int64): "INT64",
    name_of(dtypes.bool_): "BOOL",
}


class SectionRefused(Exception):
    """The library rejected a section.

    Attributes:
        node: the name of the offending node; empty if unknown.
        reason: the library's message.
        stage: ``parse`` or ``build``.
    """

    def __init__(self, node: str, reason: str, stage: str = "build") -> None:
        super().__init__(reason)
        self.node, self.reason, self.stage = node, reason, stage


@record
class EngineSettings:
    """The settings of an engine.

    Attributes:
        tf32: whether float32 products may be rounded to TF32.
        workspace: maximum scratch memory in bytes; None for no limit.
        level: the builder's optimization level, 0 to 5.
        strip: whether the engine contains no weights; these are added when it is opened.
    """

    tf32: bool = False
    workspace: int | None = None
    level: int = 3
    strip: bool = False


@record
class EngineIO:
    """Inputs and outputs of an engine.

    Attributes:
        types: dtype and shape by input and output.
        profiles: minimum, typical and maximum shape of inputs with symbolic dimensions.
    """

    types: Mapping[str, tuple[str, Ints]]
    profiles: Profiles

    @classmethod
    def of(cls, section: Section) -> EngineIO:
        """Return the inputs and outputs of a section."""
        tensors = (*section.inputs, *section.outputs)
        types = {t.name: (name_of(t.type.dtype), t.type.dims) for t in tensors}
        return cls(types, section.profiles)

    def difference(self, network: trt.INetworkDefinition) -> str:
        """Return where a network's types differ; empty if they agree.

        Parsers read some dtypes as others, such as float64 as float32, and would get wrong bytes.
        """
        inputs = (network.get_input(i) for i in range(network.num_inputs))
        outputs = (network.get_output(i) for i in range(network.num_outputs))
        for tensor in (*inputs, *outputs):
            dtype, dims = self.types[tensor.name]
            found: Any = tensor.dtype
            if found.name != TYPES.get(dtype):
                return f"'{tensor.name}' is {dtype}, but is parsed as {found.name}"
            sizes: Any = tensor.shape
            shape: Ints = tuple(sizes)
            fits = (n < 0 or n == size for n, size in zip(shape, dims, strict=False))
            if len(shape) != len(dims) or not all(fits):
                return f"'{tensor.name}' has shape {dims}, but is parsed as {shape}"
        return ""


class EngineBuilder:
    """Builds engines for one GPU.

    Args:
        vendor: the library.
        capability: the compute capability to build for, such as ``8.9``, if the library supports
            that; this machine's if empty.
        timings: the cache and entry name for kernel timings; None to keep none.
    """

    def __init__(
        self,
        vendor: TensorrtLibrary,
        capability: str = "",
        timings: tuple[Cache, str] | None = None,
    ) -> None:
        self.vendor = vendor
        self._capability = capability
        self._timings = timings if vendor.product.keeps_timings() else None
        self._builder = vendor.trt.Builder(vendor.logger)
        self._empty = self._network()
        self._parser = vendor.trt.OnnxParser(self._empty, vendor.logger)

    def takes(self, operator: str) -> bool:
        """Whether the parser supports an operator of ai.onnx."""
        known = operator not in self.vendor.product.lacks
        return known and bool(self._parser.supports_operator(operator))

    def build(self, section: Section, settings: EngineSettings) -> bytes:
        """Return a serialized engine.

        Raises:
            SectionRefused: the parser or the builder does not accept the section.
        """
        with TemporaryDirectory(prefix="tercet-") as folder:
            return self.build_file(section.write(Path(folder)), EngineIO.of(section), settings)

    def build_file(self, path: Path, border: EngineIO, settings: EngineSettings) -> bytes:
        """Return a serialized engine of an ONNX file.

        Args:
            path: the file.
            border: inputs and outputs.
            settings: of the builder.

        Raises:
            SectionRefused: the parser or the builder does not accept it, or changes its types.
        """
        self.vendor.messages.clear()
        network = self._network()
        parser = self._parse(network, path)
        if reason := border.difference(network):
            raise SectionRefused("", reason, "parse")
        config = self._config(border.profiles, settings)
        self._recall(config)
        built: trt.IHostMemory | None = self._builder.build_serialized_network(network, config)
        del parser  # the network refers to weights that it holds
        if built is None:
            raise self._refused("build_serialized_network")
        self._remember(config)
        return to_bytes(built)

    def probe(self) -> bytes:
        """Build a trivial engine, to find out whether a GPU supports any.

        Raises:
            SectionRefused: it cannot be built.
        """
        self.vendor.messages.clear()
        trt, network = self.vendor.trt, self._network()
        x = network.add_input("x", trt.DataType.FLOAT, trt.Dims((1,)))
        layer = network.add_activation(x, trt.ActivationType.RELU)
        network.mark_output(layer.get_output(0))
        config = self._builder.create_builder_config()
        self._aim(config)
        built: trt.IHostMemory | None = self._builder.build_serialized_network(network, config)
        if built is None:
            raise self._refused("build_serialized_network")
        return to_bytes(built)

    def _network(self) -> trt.INetworkDefinition:
        flag = self.vendor.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        return self._builder.create_network(1 << int(flag))

    def _refused(self, call: str) -> SectionRefused:
        return SectionRefused("", f"{call}: {self.vendor.take_message()}")

    def _parse(self, network: trt.INetworkDefinition, path: Path) -> trt.OnnxParser:
        parser = self.vendor.trt.OnnxParser(network, self.vendor.logger)
        if parser.parse_from_file(str(path)):
            return parser
        if not parser.num_errors:
            raise SectionRefused("", f"parse_from_file: {self.vendor.take_message()}", "parse")
        first: trt.ParserError = parser.get_error(0)
        message = f"its parser says {first.code().name}: {first.desc()}"
        raise SectionRefused(first.node_name(), message, "parse")

    def _config(self, profiles: Profiles, settings: EngineSettings) -> trt.IBuilderConfig:
        trt = self.vendor.trt
        config = self._builder.create_builder_config()
        self._aim(config)
        if settings.tf32:
            config.set_flag(trt.BuilderFlag.TF32)
        else:
            config.clear_flag(trt.BuilderFlag.TF32)
        if settings.strip:
            config.set_flag(trt.BuilderFlag.STRIP_PLAN)
            config.set_flag(trt.BuilderFlag.REFIT_IDENTICAL)
        config.builder_optimization_level = settings.level
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # for its inspector
        if settings.workspace is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace)
        if profiles:
            profile = self._builder.create_optimization_profile()
            for name, shapes in profiles.items():
                profile.set_shape(name, *(trt.Dims(shape) for shape in shapes))
            if config.add_optimization_profile(profile) < 0:
                raise self._refused("add_optimization_profile")
        return config

    def _aim(self, config: trt.IBuilderConfig) -> None:
        product = self.vendor.product
        if not product.aim(self.vendor.trt, config, self._capability):
            wanted = self._capability or "this GPU"
            known = ", ".join(product.capabilities(self.vendor.trt)) or "only this machine's"
            message = f"no engines for compute capability {wanted} (it has: {known})"
            raise SectionRefused("", message)

    def _recall(self, config: trt.IBuilderConfig) -> None:
        """Load the timings of earlier builds into the builder."""
        if self._timings is not None:
            store, name = self._timings
            config.set_timing_cache(config.create_timing_cache(store.read(name) or b""), False)

    def _remember(self, config: trt.IBuilderConfig) -> None:
        if self._timings is not None:
            store, name = self._timings
            store.write(name, to_bytes(config.get_timing_cache().serialize()))


def name_for(vendor: TensorrtLibrary, gpu: str, kind: str) -> str:
    """Return the cache name for a version of the library and a GPU."""
    return f"{sha256(f'{vendor} {gpu}'.encode()).hexdigest()}.{kind}"


def to_bytes(memory: Any) -> bytes:
    """Return a copy of a buffer from the library."""
    return bytes(memory)
