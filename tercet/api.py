"""The public functions of `tercet`: load a model, run an operator, list backends."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from . import backends as _backends
from .arguments import public
from .backends import Availability
from .backends.numpy import evaluate
from .importers import onnx as importer
from .importers.onnx.reading.attributes import Mismatch, make
from .runtime import ops as _ops  # noqa: F401 - declares the operators
from .runtime.base import arguments as rules
from .runtime.base.budget import Budget
from .runtime.base.collecting import no_collection
from .runtime.base.guard import bounded, inherited
from .runtime.errors import InputError, ModelWarning, UsageError, did_you_mean
from .runtime.ir.custom import CustomOperator, with_custom
from .runtime.ir.dtypes import TO_ONNX, string
from .runtime.ir.graph import Graph
from .runtime.ir.infer import infer
from .runtime.ir.op import OPERATORS, Op, arity, attributes
from .runtime.ir.types import Array, HostValue, TensorType, type_of
from .runtime.options import Options, Precision, check_algorithms
from .runtime.passes.to_half import check_kept
from .runtime.plan.backend import Format
from .runtime.plan.host import HOST
from .runtime.session.dlpack import place_of
from .runtime.session.freeze import freeze_inputs, frozen_around
from .runtime.session.io_types import as_array, as_texts
from .runtime.session.model import Model, ModelSource
from .runtime.session.program_cache import Optimised, optimised
from .runtime.session.refit import refit, weights_around

if TYPE_CHECKING:
    from .backends.cuda.device import CudaDevice
    from .backends.cuda.interop.array import DeviceArray

_ONE = rules.word("the name of a backend, such as 'cuda'")

#: Custom operators: functions on arrays by domain and name.
Operators = Mapping[tuple[str, str], CustomOperator | Callable[..., Any]]
Loadable = importer.Loadable


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
            GPU and changes nothing on numpy; float16 and bfloat16 run the operations that tolerate
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
        timeout: time limit in seconds for reading and optimising; None for no limit.
        **options: further fields of `Options`.

    Raises:
        InputError: an array in `freeze` or `weights` does not fit.
        ModelError: the file is not a valid model.
        UnsupportedError: the model has an operator that tercet does not know.
        BackendUnavailable: the backend cannot run on this machine.
        UsageError: an option or a backend does not exist.
        DeviceOutOfMemory: the host has too little memory.
        TimeLimitError: the time limit passed.
    """
    chosen = Options(precision=precision, **options)
    known = with_custom(OPERATORS, operators or {})
    with no_collection(), bounded(timeout, Budget(chosen.max_bytes)):
        read = partial(
            importer.load,
            source,
            operators=known,
            external_data_dir=external_data_dir,
            map_external_data=map_external_data,
        )
        frozen = {**frozen_around(), **(freeze or {})}
        given = {**weights_around(), **(weights or {})}

        def prepare(found: importer.Imported) -> tuple[Graph, Optimised]:
            check_kept(found.graph, chosen.keep_float32)
            check_algorithms(found.graph, chosen.algorithms)
            graph = refit(found.graph, given) if given else found.graph
            graph = freeze_inputs(graph, frozen) if frozen else graph
            return graph, optimised(graph, chosen, evaluate)

        if backend == "numpy" and fallback in (None, "numpy"):
            chain = _backends.open_backends(backend, chosen, fallback)
            found = read()
            prepared = partial(prepare, found)
        else:
            # A GPU takes as long to start as a file to be read and optimised.
            with ThreadPoolExecutor(1) as aside:
                reading = aside.submit(copy_context().run, inherited(read))
                then = inherited(lambda: prepare(reading.result()))
                prepared = aside.submit(copy_context().run, then).result
                chain = _backends.open_backends(backend, chosen, fallback)
            found = reading.result()
        about = ModelSource(
            found.file,
            found.opsets,
            found.ir_version,
            found.producer,
            found.metadata,
            found.warnings,
            found.mapped,
        )
        for text in found.warnings:
            model = f"{found.file}: " if found.file else ""
            warnings.warn(f"{model}{text}", ModelWarning, stacklevel=3)
        graph, made = prepared()
        return Model(graph, chain, chosen, evaluate, about, made)


def available() -> tuple[Availability, ...]:
    """Return for every backend whether it can run here, and if not, what is missing."""
    return _backends.available()


@public(backend=_ONE)
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


@public(backend=_ONE)
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


@overload
def run_op(
    operator: str,
    *inputs: Any,
    backend: str = ...,
    outputs: Literal[1] = ...,
    domain: str = ...,
    **attributes_: Any,
) -> Array: ...


@overload
def run_op(
    operator: str,
    *inputs: Any,
    backend: str = ...,
    outputs: int,
    domain: str = ...,
    **attributes_: Any,
) -> tuple[Array, ...]: ...


@public(outputs=rules.whole(1), backend=_ONE)
def run_op(
    operator: str,
    *inputs: Any,
    backend: str = "numpy",
    outputs: int = 1,
    domain: str = "",
    **attributes_: Any,
) -> Array | tuple[Array, ...]:
    """Run one ONNX operator on arrays.

        y = tercet.run_op("Conv", x, w, pads=(1, 1, 1, 1), backend="cuda")

    Args:
        operator: its ONNX name, of the newest opset.
        *inputs: one array (or number) per input, a list for a sequence, None for an omitted one.
            All arrays but the first are constants of the model, as weights and shapes are.
        backend: the backend to run on.
        outputs: number of results.
        domain: the operator's domain.
        **attributes_: its attributes: numbers, strings, lists, dtypes or arrays.

    Returns:
        The result; a tuple of results if `outputs` is greater than 1.

    Raises:
        InputError: an input is no array, or has elements that no operator takes.
        ModelError: the operator does not accept inputs of these types and shapes.
        UsageError: there is no such operator, attribute or backend.
        BackendUnavailable: the backend cannot run on this machine.
        UnsupportedError: the backend does not run the operator on these types.
    """
    arrays = [_value(f"{operator}: input {i}", data) for i, data in enumerate(inputs)]
    op = _operator(operator, domain, len(arrays), attributes_)
    graph = _single(op, arrays, outputs, fed=1)
    if not all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.outputs.values()):
        graph = _single(op, arrays, outputs, fed=0)
    options = Options(skip=("fold_constants",))
    feeds = {value.name: arrays[int(value.name[1:])] for value in graph.inputs}
    with Model(graph, _backends.open_backends(backend, options), options, evaluate) as model:
        results = tuple(model.run(feeds).values())
    return results[0] if outputs == 1 else results


def _value(name: str, data: Any) -> HostValue:
    if data is None or isinstance(data, dict):
        return data
    if isinstance(data, list):
        return [_value(name, each) for each in data]
    try:
        return as_texts(as_array(data))
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _operator(operator: str, domain: str, inputs: int, given: Mapping[str, Any]) -> Op:
    kind = OPERATORS.get((domain, operator))
    if kind is None:
        names = [name for where, name in OPERATORS if where == domain]
        raise UsageError(f"there is no operator '{operator}'{did_you_mean(operator, names)}")
    known = attributes(kind)
    for name in given:
        if name not in known:
            raise UsageError(f"{operator} has no attribute '{name}'{did_you_mean(name, known)}")
    minimum, maximum = arity(kind)
    if inputs < minimum or (maximum is not None and inputs > maximum):
        count = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
        plural = "" if maximum == 1 else "s"
        raise UsageError(f"{operator} takes {count} input{plural}, not {inputs}")
    plain = {name: _attribute(value) for name, value in given.items()}
    try:
        return make(kind, plain)
    except Mismatch as first:
        try:  # Python's callers write 1 where a file has 1.0
            return make(kind, {name: _as_float(value) for name, value in plain.items()})
        except Mismatch:
            raise UsageError(f"{operator}: {first}") from first


def _attribute(value: Any) -> Any:
    """Return what a caller gives as an attribute as a file has it."""
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return TO_ONNX.get(np.dtype(value), -1)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(_attribute(each) for each in value)
    return value


def _as_float(value: Any) -> Any:
    whole = isinstance(value, tuple) and all(type(each) is int for each in value)
    return tuple(map(float, value)) if whole else float(value) if type(value) is int else value


def _single(op: Op, inputs: Sequence[HostValue], outputs: int, *, fed: int) -> Graph:
    """Return a graph of one node; all arrays but the first `fed` inputs are its constants.

    What decides the shape of a result (the k of TopK, the shape of a Reshape) must be constant,
    and weights are best so: backends pack them.
    """
    graph = Graph(type(op).__name__)
    values = [
        None
        if data is None
        else graph.constant(data, f"x{i}")
        if isinstance(data, np.ndarray) and i >= fed
        else graph.add_input(f"x{i}", type_of(data))
        for i, data in enumerate(inputs)
    ]
    node = graph.insert(op, values, [f"y{i}" for i in range(outputs)], name=graph.name)
    graph.set_outputs({value.name: value for value in node.outputs})
    infer(graph)
    return graph
