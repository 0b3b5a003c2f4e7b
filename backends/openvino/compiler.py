"""Compiled regions, cached per section, threads, OpenVINO and CPU, in memory and on disk."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...runtime.base import forks
from ...runtime.base.cache import Cache
from ...runtime.base.record import record
from ...runtime.base.worker import Worker
from ...runtime.errors import DeviceError
from ...runtime.ir.types import Array
from ..numpy.numerics import blas
from ..regions.section import Ints, Profile, Section
from .library import DEVICE, OpenvinoLibrary, gist

#: Properties of every compilation: float32 stays float32, and accuracy is never traded for speed.
PROPERTIES: Mapping[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "ENABLE_CPU_PINNING": False,
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "KV_CACHE_PRECISION": "f32",
}
Profiles = Mapping[str, Profile]
#: Incremented to invalidate the cache entries of older versions.
_EDITION = 2


class RegionRefused(Exception):
    """A section that OpenVINO must not run.

    Attributes:
        node: the name of the offending node; empty if unknown.
        reason: the reason.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CompiledRegion:
    """A compiled region.

    Attributes:
        vendor: OpenVINO.
        core: the ``CompiledModel``.
        key: its cache key.
        layers: number of executed layers.
    """

    vendor: OpenvinoLibrary
    core: Any
    key: str
    layers: int

    def request(self, arrays: Mapping[str, Array]) -> Callable[[], object]:
        """Return the function that runs it on these arrays, in place.

        Args:
            arrays: by name of input and output; every call reads and writes them.
        """
        return requested(self.vendor, self.core, arrays)


class RegionCompiler:
    """All compiled regions of this process.

    Args:
        vendor: OpenVINO.
        store: the cache on disk.

    Attributes:
        worker: the process that tries nodes.
    """

    def __init__(self, vendor: OpenvinoLibrary, store: Cache) -> None:
        self.vendor = vendor
        self.store = store
        self.worker = Worker(f"{__package__}.worker")
        self._known: WeakValueDictionary[str, CompiledRegion] = WeakValueDictionary()
        self._lock = forks.lock()

    def digest(self, *parts: object) -> str:
        """Return a cache key for some parts, the version of OpenVINO and the CPU."""
        mine = (_EDITION, self.vendor.version, self.vendor.cpu, sorted(PROPERTIES.items()))
        return sha256(repr((mine, parts)).encode()).hexdigest()

    def get(self, section: Section, approve: Callable[[CompiledRegion], None]) -> CompiledRegion:
        """Return the engine of a section, from memory, from disk, or newly compiled.

        Args:
            section: the region.
            approve: called with a new engine before it is kept; may raise `RegionRefused`.

        Raises:
            RegionRefused: OpenVINO does not accept the section.
        """
        threads = blas.threads()
        key = self.digest("engine", threads, section.digest)
        with self._lock:
            engine = self._known.get(key) or self._stored(section, key, threads)
        if engine is None:
            engine = self.compile(section, key)
            approve(engine)
            self.store.write(f"{key}.blob", self._exported(engine))
        with self._lock:
            return self._known.setdefault(key, engine)

    def compile(self, section: Section, key: str = "") -> CompiledRegion:
        """Compile a section.

        Raises:
            RegionRefused: OpenVINO's ONNX frontend or its plugin does not accept it.
            DeviceError: this process was forked from one that had used OpenVINO.
        """
        self.vendor.uses.begin()
        with TemporaryDirectory(prefix="tercet-") as folder:
            path = section.write(Path(folder))
            made = compiled(self.vendor, path, section.profiles, blas.threads())
        check_results(made, shapes_of(section))
        return CompiledRegion(self.vendor, made, key, len(layers_of(made)))

    def _stored(self, section: Section, key: str, threads: int | None) -> CompiledRegion | None:
        blob = self.store.read(f"{key}.blob")
        if blob is None:
            return None
        self.vendor.uses.begin()
        try:
            made = self.vendor.core.import_model(blob, DEVICE, _properties(threads))
            self.vendor.uses.own(made)
        except RuntimeError:  # written by a different build with the same version
            return None
        names = {tensor.name for tensor in (*section.inputs, *section.outputs)}
        if any(names.isdisjoint(port.get_names()) for port in (*made.inputs, *made.outputs)):
            return None  # they were cut at a null character
        return CompiledRegion(self.vendor, made, key, len(layers_of(made)))

    def _exported(self, engine: CompiledRegion) -> bytes:
        try:
            blob: Any = engine.core.export_model()
        except RuntimeError as error:
            raise DeviceError(f"OpenVINO {self.vendor.version}: export: {gist(error)}") from error
        return blob if isinstance(blob, bytes) else bytes(blob.getbuffer())


def compiled(vendor: OpenvinoLibrary, path: Path, profiles: Profiles, threads: int | None) -> Any:
    """Return the ``CompiledModel`` of an ONNX file.

    Args:
        vendor: OpenVINO.
        path: the file.
        profiles: minimum, typical and maximum shape of inputs with symbolic dimensions.
        threads: maximum number of threads; None for its own choice.

    Raises:
        RegionRefused: OpenVINO's ONNX frontend or its plugin does not accept it.
    """
    try:
        model = vendor.core.read_model(str(path))
        if profiles:
            model.reshape({name: _bounds(vendor, *p) for name, p in profiles.items()})
        return vendor.uses.own(vendor.core.compile_model(model, DEVICE, _properties(threads)))
    except RuntimeError as error:
        raise RegionRefused("", gist(error)) from error


def requested(
    vendor: OpenvinoLibrary, made: Any, arrays: Mapping[str, Array]
) -> Callable[[], object]:
    """Return a function that runs a ``CompiledModel`` on arrays by name, in place.

    Raises:
        DeviceError: this process was forked from one that had used OpenVINO; raised by the returned
            function, too.
    """
    vendor.uses.begin()
    request = vendor.uses.own(made.create_infer_request())
    shared = {name: as_tensor(vendor, data) for name, data in arrays.items()}
    for port in (*made.inputs, *made.outputs):
        request.set_tensor(port, next(shared[n] for n in port.get_names() if n in shared))

    def run() -> object:
        vendor.uses.check()
        return request.infer(share_outputs=True)

    return run


def as_tensor(vendor: OpenvinoLibrary, data: Array) -> Any:
    """Return a tensor that shares an array's memory, even if it is read-only."""
    if not data.flags.writeable:
        data = writeable(data)
    return vendor.api.Tensor(data, shared_memory=True)


def _bounds(
    vendor: OpenvinoLibrary, minimum: Sequence[int], usual: Sequence[int], maximum: Sequence[int]
) -> Any:
    api = vendor.api
    sizes = zip(minimum, maximum, strict=True)
    return api.PartialShape([api.Dimension(low, high) for low, high in sizes])


def _properties(threads: int | None) -> dict[str, Any]:
    chosen = {"INFERENCE_NUM_THREADS": threads} if threads else {}
    return {**PROPERTIES, **chosen}


def shapes_of(section: Section) -> dict[str, Ints]:
    """Return the shapes of a section's results."""
    return {tensor.name: tensor.type.dims for tensor in section.outputs}


def check_results(made: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a model for whose results OpenVINO infers other shapes.

    Args:
        made: the ``CompiledModel``.
        shapes: the expected shape of each output.

    Raises:
        RegionRefused: one of them has another shape.
    """
    for port in made.outputs:
        name = next(name for name in port.get_names() if name in shapes)
        shape, dims = port.get_partial_shape(), shapes[name]
        fits = shape.rank.is_dynamic or len(shape) == len(dims)
        if not fits or not all(a.is_dynamic or a == b for a, b in zip(shape, dims, strict=False)):
            raise RegionRefused("", f"it infers {shape} for '{name}', whose shape is {list(dims)}")


@record
class ExecutedLayer:
    """A layer that a compiled region executes.

    Attributes:
        kind: such as ``Convolution``.
        names: the nodes that it implements, as far as OpenVINO reports them.
        kernel: such as ``brgconv_avx512_f32``.
    """

    kind: str
    names: tuple[str, ...]
    kernel: str

    def __str__(self) -> str:
        return " | ".join(filter(None, (self.kind, " + ".join(self.names), self.kernel)))


def layers_of(compiled: Any) -> list[ExecutedLayer]:
    """Return the layers that a compiled model reports, without inputs and outputs."""
    found: list[ExecutedLayer] = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        info: Any = op.get_rt_info()
        kind, names, kernel = (
            info[key].astype(str) if key in info else ""
            for key in ("layerType", "originalLayersNames", "primitiveType")
        )
        if kind not in ("Input", "Output", "Const"):
            found.append(ExecutedLayer(kind, tuple(names.split(",")), kernel))
    return found


def writeable(data: Array) -> Array:
    """Return a writable view of read-only memory, for callers that require one but do not write."""
    memory: Any = (ctypes.c_char * data.nbytes).from_address(data.ctypes.data)
    memory.owner = data  # keeps the memory alive as long as the view
    return np.frombuffer(memory, data.dtype).reshape(data.shape)
