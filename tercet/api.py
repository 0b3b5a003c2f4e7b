"""The public functions of `tercet`: load a model, list backends, put arrays on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from . import backends as _backends
from .arguments import ONE_BACKEND, public
from .backends import Availability
from .runtime.base.collecting import no_collection
from .runtime.errors import InputError, UsageError
from .runtime.ir.dtypes import TO_ONNX, string
from .runtime.ir.types import Array, TensorType
from .runtime.options import Options, Precision
from .runtime.plan.format import Format
from .runtime.plan.host import HOST

if TYPE_CHECKING:
    from .backends.cuda.device import CudaDevice
    from .backends.cuda.interop.array import DeviceArray
    from .importers import onnx as importer
    from .runtime.ir.custom import CustomOperator
    from .runtime.session.model import Model

#: The forms of a model.
Loadable: TypeAlias = "importer.Loadable"
#: Custom operators: functions on arrays by domain and name.
Operators: TypeAlias = "Mapping[tuple[str, str], CustomOperator | Callable[..., Any]]"


@public()
def load(
    source: Loadable,
    backend: str | Sequence[str] = "numpy",
    *,
    fallback: str | Sequence[str] | None = None,
    precision: Precision = "float32",
    operators: Operators | None = None,
    freeze: Mapping[str, Any] | None = None,
    weights: Mapping[str, Any] | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    map_external_data: bool = True,
    whole_caches: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> Model:
    """Load an ONNX model on a backend.

    Args:
        source: a path, the file's bytes, ONNX text, a `ModelProto`, a ``torch.onnx.ONNXProgram`` or
            an ``onnx_ir.Model``.
        backend: ``numpy``, ``cuda``, ``cudnn``, ``tensorrt``, ``openvino``, or one of another
            package; the entries of a list after the first are fallbacks.
        fallback: backend, or several in order, for nodes that `backend` declines; without one such
            nodes are an error.
        precision: compute precision of float32 tensors. float32 means no TF32; tf32 allows it on a
            GPU and is float32 on numpy; float16 and bfloat16 run the operations that tolerate
            it in half precision.
        operators: custom operators by domain and name: functions of arrays, which run on the numpy
            backend, or `CustomOperator`, which may bring CUDA kernels.
        freeze: arrays by name for inputs that are the same in every run; they become constants and
            are no longer inputs.
        weights: other weights of the same dtypes and shapes, by name of an initializer, such as
            those of a checkpoint; arrays of int64 or bool among them, such as counters, are
            ignored.
        external_data_dir: the folder of the model's external data; its own
            if None. A model given as bytes or as a `ModelProto` has none.
        map_external_data: whether to memory-map external data, which costs nothing until they are
            used. Mapped files must not change while the model is open: a run refuses files that
            have become shorter, and truncation during a run kills the process (SIGBUS).
        whole_caches: let decoders keep all positions in caches that are as long as a sliding
            window, if the file leaves their length open; attention still sees the window only.
        timeout: time limit in seconds for reading and optimising; None for no limit.
        **options: further fields of `Options`.

    Raises:
        InputError: an array in `freeze` or `weights` does not fit.
        ModelError: the file is not a valid model.
        UnsupportedError: the model has an operator that tercet does not know.
        BackendUnavailable: the backend cannot run on this machine.
        UsageError: an option or a backend does not exist, or no backend that is asked for uses the
            option.
        DeviceOutOfMemory: the host has too little memory.
        TimeLimitError: the time limit passed.
    """
    given = Options(precision=precision, **options)
    _backends.begin(backend, given, fallback)
    _backends.check_options(given, backend, fallback)
    chosen = _backends.settled(given, backend, fallback)
    return _loading().loaded(
        source,
        backend,
        chosen,
        fallback=fallback,
        operators=operators,
        freeze=freeze,
        weights=weights,
        external_data_dir=external_data_dir,
        map_external_data=map_external_data,
        whole_caches=whole_caches,
        timeout=timeout,
    )


def load_to_plan(
    source: Loadable,
    backend: str,
    *,
    precision: Precision = "float32",
    operators: Operators | None = None,
    freeze: Mapping[str, Any] | None = None,
    weights: Mapping[str, Any] | None = None,
    whole_caches: bool = False,
    **options: Any,
) -> Model:
    """Load a model on numpy, with the options of another backend, to plan it for that.

    Args:
        source: see `load`.
        backend: the backend, which need not be able to run here.
        precision: see `load`.
        operators: see `load`.
        freeze: see `load`.
        weights: see `load`.
        whole_caches: see `load`.
        **options: further fields of `Options`.

    Raises:
        UsageError, ModelError, …: see `load`.
    """
    given = Options(precision=precision, **options)
    _backends.check_options(given, backend)
    return _loading().loaded(
        source,
        "numpy",
        _backends.settled(given, backend),
        fallback=None,
        operators=operators,
        freeze=freeze,
        weights=weights,
        external_data_dir=None,
        map_external_data=True,
        whole_caches=whole_caches,
        timeout=None,
    )


@cache
def _loading() -> ModuleType:
    """Import what reads and runs models: a GPU is starting meanwhile."""
    with no_collection(lasting=True):
        return import_module(".loading", __package__)


def available() -> tuple[Availability, ...]:
    """Return for every backend whether it can run here, and if not, what is missing."""
    return _backends.available()


@public(backend=ONE_BACKEND)
def to_device(
    array: Any, backend: str = "cuda", *, device: int = 0, stream: Any = None
) -> DeviceArray:
    """Copy or share an array to the memory of a GPU.

    Args:
        array: an array on the host, which is copied, or one of another library on the GPU
            (``__dlpack__`` or ``__cuda_array_interface__``), which is shared.
        backend: ``cuda`` or ``cudnn``, which share their devices.
        device: index of the GPU; see `Options.device`.
        stream: the stream that will read a shared array and waits for its elements; the
            legacy default one if None.

    Returns:
        The array; `numpy` copies it back, other libraries read it through DLPack.

    Raises:
        BackendUnavailable: the backend cannot run on this machine.
        UsageError: the backend runs on the host.
        InputError: the array is on another device, or not contiguous.
    """
    gpu = _cuda_device(backend, "to_device", device)
    from .backends.cuda.interop.array import DeviceArray
    from .runtime.session.dlpack import place_of
    from .runtime.session.io_types import as_array

    if isinstance(array, DeviceArray):
        return array
    try:
        if place_of(array) is None:
            return DeviceArray.upload(gpu, as_array(array))
        work = gpu.exchange.stream(stream)
        lent = gpu.exchange.take(array, work)
    except InputError as error:
        raise InputError(f"the array {error}") from error
    if lent.view.format is not Format.CONTIGUOUS:
        raise InputError(
            f"the array of shape {list(lent.type.dims)} has its channels last; give it in C order"
        )
    return DeviceArray(lent.view, work)


@public(backend=ONE_BACKEND)
def pinned(shape: Sequence[int], dtype: Any = np.float32, backend: str = "cuda") -> Array:
    """Return a new array in page-locked host memory, with undefined elements.

    A GPU copies from and to such memory asynchronously at full speed; see `Model.map`. It is slow
    to allocate, and unavailable to all other programs.

    Args:
        shape: the sizes of its axes.
        dtype: the type of its elements.
        backend: ``cuda`` or ``cudnn``.

    Raises:
        BackendUnavailable: the backend cannot run on this machine.
        UsageError: the backend runs on the host, or the dtype does not exist in ONNX.
        DeviceError: the system has no more memory to lock.
    """
    kind = TensorType(np.dtype(dtype), tuple(shape))
    if kind.dtype not in TO_ONNX or kind.dtype == string:
        raise UsageError(f"dtype={kind.dtype}: ONNX has no such numeric type")
    memory = _cuda_device(backend, "pinned").staging(kind.nbytes).memory
    return memory.view(kind.dtype).reshape(kind.dims)


def _cuda_device(backend: str, caller: str, number: int = 0) -> CudaDevice:
    (first, *_) = _backends.open_backends(backend, Options(device=number))
    if first.device is HOST:
        raise UsageError(f"backend '{backend}' runs on the host; {caller} needs a GPU")
    from .backends.cuda.device import CudaDevice

    if not isinstance(first.device, CudaDevice):
        raise UsageError(f"backend '{backend}' is on {first.device.name}, not on a CUDA device")
    return first.device
