"""One operator on arrays: `tercet.run_op`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from . import backends as _backends
from .arguments import ONE_BACKEND, public
from .backends.numpy import evaluate
from .importers.onnx.reading.attributes import Mismatch, make
from .runtime.base import arguments as rules
from .runtime.errors import InputError, ModelError, UsageError, did_you_mean
from .runtime.ir.dtypes import TO_ONNX
from .runtime.ir.graph import Graph
from .runtime.ir.infer import infer
from .runtime.ir.op import OPERATORS, Op, arity, attributes
from .runtime.ir.types import Array, HostValue, TensorType, type_of
from .runtime.options import Options
from .runtime.session.io_types import as_array, as_texts
from .runtime.session.model import Model


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


@public(outputs=rules.whole(1), backend=ONE_BACKEND)
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
    try:
        graph = _single(op, arrays, outputs, fed=1)
    except ModelError as error:
        if any(isinstance(each, list) for each in inputs):
            error.add_note("a list is a sequence of tensors; numpy.array makes a tensor of it")
        raise
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
            have = f" (attributes: {', '.join(known)})" if known else ", nor any other"
            hint = did_you_mean(name, known)
            raise UsageError(f"{operator} has no attribute '{name}'{hint}{have}")
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
