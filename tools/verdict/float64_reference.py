"""The same model in float64: what the results would be with next to no rounding."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...backends.numpy import NumpyBackend, evaluate
from ...runtime.ir.constraints import float64_for_float32
from ...runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.infer import infer
from ...runtime.ir.op import Op, TensorAttribute, attributes, with_attributes
from ...runtime.ir.types import (
    Array,
    HostValue,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
)
from ...runtime.ops.elementwise import BitCast, Cast
from ...runtime.ops.ml import LabelEncoder
from ...runtime.ops.quantize import DynamicQuantizeLinear
from ...runtime.ops.sequence import SequenceEmpty
from ...runtime.ops.shape import ConstantOfShape
from ...runtime.ops.text import TfIdfVectorizer
from ...runtime.options import Options
from ...runtime.session.model import Model

NARROW = frozenset({float16, bfloat16, float32})
#: Elements from which on threads share the conversion of an array.
SHARED = 1 << 20

#: Operators that read numbers as they are: their bits, or as keys of a table.
_AS_IT_IS = (BitCast, LabelEncoder)
#: Operators of ONNX's own domain that give narrow floats whatever they read.
_NARROWING = (BitCast, DynamicQuantizeLinear, TfIdfVectorizer)

#: Returns the elements of an input in float64.
ChangeInput = Callable[[Array], Array]


class Oracle:
    """Runs a graph in float64 on the numpy backend, unoptimised.

    Args:
        graph: an imported graph (`Model.imported`); not modified.
        change_input: applied to every input of a narrower floating-point type.
    """

    def __init__(self, graph: Graph, change_input: ChangeInput | None = None) -> None:
        self._change_input = change_input or _widened
        wide, options = in_float64(graph), Options(stop_at=0, max_plans=1)
        with float64_for_float32():
            self._model = Model(wide, [NumpyBackend()], options, evaluate)

    def run(self, inputs: Mapping[str, Any], outputs: list[str] | None = None) -> dict[str, Any]:
        """Run on the model's own inputs.

        Floats are widened, whether in arrays or lists of them; results that would be narrower are
        float64, too.
        """
        feeds = {name: self._wide(value) for name, value in inputs.items()}
        with float64_for_float32():
            return self._model.run(feeds, outputs)

    def _wide(self, value: HostValue) -> HostValue:
        if isinstance(value, list):
            return [self._wide(item) for item in value]
        if isinstance(value, dict) or value is None:
            return value
        data = np.asarray(value)
        return self._change_input(data) if data.dtype in NARROW else data

    def close(self) -> None:
        """Give the memory back."""
        self._model.close()


def in_float64(graph: Graph) -> Graph:
    """Return a copy of a graph in which every narrower float tensor is float64."""
    copy = graph.clone()
    for each in copy.graphs():
        kept = {
            node: [_narrow_dtype(value) for value in node.inputs]
            for node in each.nodes
            if isinstance(node.op, _AS_IT_IS)
        }
        for value in each.values.values():
            value.type, value.declared = _wide_type(value.type), _wide_type(value.declared)
            if value.data is not None and value.data.dtype in NARROW:
                each.set_data(value, _widened(value.data))
        for node in each.nodes:
            changes = {} if node in kept else _wide_attributes(node.op)
            if changes:
                each.set_op(node, with_attributes(node.op, **changes))
        for node, dtypes in kept.items():
            _narrow_inputs(each, node, dtypes)
        _widen_results(each)
    with float64_for_float32():
        infer(copy)
    return copy


def _narrow_dtype(value: Value | None) -> DType | None:
    """Return the dtype of a narrow float tensor; None for all else."""
    dtype = value.type.dtype if value is not None and isinstance(value.type, TensorType) else None
    return dtype if dtype in NARROW else None


def _narrow_inputs(graph: Graph, node: Node, dtypes: Sequence[DType | None]) -> None:
    """Cast what a node reads back to these dtypes."""
    inputs = list(node.inputs)
    for i, dtype in enumerate(dtypes):
        if dtype is not None:
            inputs[i] = graph.insert(Cast(to=dtype), [inputs[i]], before=node).output
    graph.set_inputs(node, inputs)


def _widen_results(graph: Graph) -> None:
    """Cast what comes out of operators that give narrow floats whatever they read."""
    for node in list(graph.nodes):
        if node.op.domain != "ai.onnx.ml" and not isinstance(node.op, _NARROWING):
            continue
        after = graph.nodes.index(node) + 1
        follower = graph.nodes[after] if after < len(graph.nodes) else None
        for value in node.outputs:
            if isinstance(value.type, TensorType) and value.type.dtype == float64:
                cast = graph.insert(Cast(to=float64), [value], before=follower)
                value.declared = None
                graph.redirect(value, cast.output)
                graph.set_inputs(cast, [value])


def _wide_attributes(op: Op) -> dict[str, object]:
    """Return the attributes that have to change: element types, and tensors of such.

    What is left out may stand for float32.
    """
    changes: dict[str, object] = {}
    if isinstance(op, SequenceEmpty) and op.dtype is None:
        changes["dtype"] = float64
    if isinstance(op, ConstantOfShape) and op.value is None:
        changes["value"] = TensorAttribute(np.zeros(1))
    for name in attributes(type(op)):
        value = getattr(op, name)
        if isinstance(value, TensorAttribute) and value.array.dtype in NARROW:
            changes[name] = TensorAttribute(value.array.astype(float64))
        elif isinstance(value, np.dtype) and _is_narrow(value):
            changes[name] = float64
        elif isinstance(value, TensorType | SequenceType | OptionalType):
            changes[name] = _wide_type(value)
    return changes


def _is_narrow(dtype: DType) -> bool:
    return dtype in NARROW


def _wide_type(type_: ValueType | None) -> ValueType | None:
    match type_:
        case TensorType() if type_.dtype in NARROW:
            return replace(type_, dtype=float64, value=None)
        case SequenceType() | OptionalType() | MapType():
            return replace(type_, element=_wide_type(type_.element))
        case _:
            return type_


def _widened(data: Array) -> Array:
    """Return narrow floats as float64, repeated elements still repeated."""
    if data.size and not any(data.strides):
        return np.broadcast_to(data.reshape(-1)[:1].astype(float64).reshape(()), data.shape)
    if data.size < SHARED:
        return data.astype(float64)
    found = np.empty(data.shape, float64)
    count = min(os.cpu_count() or 1, len(data))
    ends = [len(data) * i // count for i in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:  # numpy releases the GIL
        parts = [slice(*pair) for pair in pairwise(ends)]
        list(pool.map(lambda part: np.copyto(found[part], data[part]), parts))
    return found
