"""Shape rules against onnx's own shape inference, and against what its test cases compute.

Every case is inferred three times: as it is; with its inputs as constants, where the elements that
inference claims to know must be those that the case expects; and with a symbol for every size of an
input that is not made of integers, where whatever is known must hold for the sizes of the case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import (
    GraphProto,
    ModelProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
    shape_inference,
)

from tercet.importers.onnx import load
from tercet.runtime.ir.dtypes import BY_ONNX, string
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import OptionalType, SequenceType, TensorType, ValueType
from tercet.runtime.ops.gather import OneHot
from tercet.runtime.ops.propagate import is_small

from .cases import Case, array_of, cases_by_operator


@dataclass(frozen=True)
class Known:
    """What onnx says of a tensor: integers in `shape` are sure."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        return str(TensorType(self.dtype, self.shape))


def without_shapes(model: ModelProto) -> ModelProto:
    """Return the model with nothing said about the shapes of what it computes."""
    bare = ModelProto()
    bare.CopyFrom(model)
    _leave_out_shapes(bare.graph)
    return bare


def _leave_out_shapes(graph: GraphProto) -> None:
    del graph.value_info[:]
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    for body in (attribute.g for attribute in attributes if attribute.HasField("g")):
        _leave_out_shapes(body)


def with_constants(
    model: ModelProto, inputs: Sequence[Any], kinds: str = "biufcOSTUV"
) -> ModelProto:
    """Return the model with its tensor inputs, those of some `kinds` of dtype, as initializers."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    for formal, value in zip(model.graph.input, inputs, strict=False):
        if not formal.type.HasField("tensor_type") or array_of(value).dtype.kind not in kinds:
            continue
        if not isinstance(value, TensorProto):
            value = numpy_helper.from_array(np.asarray(value))
        tensor = fixed.graph.initializer.add()
        tensor.CopyFrom(value)
        tensor.name = formal.name
        fixed.graph.input.remove(formal)
    return fixed


def with_symbols(model: ModelProto) -> ModelProto:
    """Return the model with every size of its inputs as a separate symbol."""
    symbolic = ModelProto()
    symbolic.CopyFrom(model)
    for formal in symbolic.graph.input:
        for axis, dim in enumerate(formal.type.tensor_type.shape.dim):
            dim.dim_param = symbol(formal.name, axis)
    return symbolic


def symbol(name: str, axis: int) -> str:
    return f"{name}@{axis}"


def known_to_onnx(model: ModelProto) -> dict[str, Known]:
    """Return what onnx infers, value by value; nothing where it refuses its own case."""
    try:
        inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except shape_inference.InferenceError:
        return {}
    values = (*inferred.graph.output, *inferred.graph.value_info)
    return {v.name: known for v in values if (known := _known(v)) is not None}


def _known(value: ValueInfoProto) -> Known | None:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.elem_type:
        return None
    tensor = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    return Known(BY_ONNX[tensor.elem_type], tuple(dims) if tensor.HasField("shape") else None)


def contradiction(ours: ValueType | None, theirs: Known) -> str:
    """Return how our type is less precise than theirs, or contradicts it; empty if it does not."""
    if not isinstance(ours, TensorType):
        return f"is {ours}; onnx says {theirs}"
    if ours.dtype != theirs.dtype:
        return f"is {ours}; onnx says {theirs}"
    if theirs.shape is None:
        return ""
    if ours.shape is None or len(ours.shape) != len(theirs.shape):
        return f"is {ours}; onnx says {theirs}"
    pairs = zip(ours.shape, theirs.shape, strict=True)
    return (
        f"is {ours}; onnx says {theirs}" if any(b is not None and a != b for a, b in pairs) else ""
    )


def mistake(ours: ValueType | None, actual: Any, case: Case) -> str:
    """Return how our type contradicts what the case computes; empty if it does not."""
    if isinstance(ours, OptionalType):
        return mistake(ours.element, actual, case)
    if isinstance(actual, list):
        if not isinstance(ours, SequenceType):
            return "" if ours is None else f"is {ours}; the case has a list"
        return next(filter(None, (mistake(ours.element, a, case) for a in actual)), "")
    if not isinstance(ours, TensorType) or actual is None:
        return ""
    real = TensorType(actual.dtype, actual.shape)
    if ours.dtype != actual.dtype and actual.dtype.kind not in "OUST":
        return f"is {ours}; the case has {real}"
    if ours.shape is None:
        return ""
    pairs = zip(ours.shape, actual.shape, strict=False)
    if len(ours.shape) != actual.ndim or any(isinstance(a, int) and a != b for a, b in pairs):
        return f"is {ours}; the case has {real}"
    if ours.value is None or actual.dtype.kind in "OUST":
        return ""
    pairs = [(a, b) for a, b in zip(ours.value.flat, actual.flat, strict=True) if a is not None]
    claimed, real = (np.array([pair[i] for pair in pairs], actual.dtype) for i in range(2))
    if np.allclose(claimed, real, case.rtol, case.atol, equal_nan=True):
        return ""
    return f"is known as {ours.value.tolist()}; the case has {actual.tolist()}"


def mistakes(model: ModelProto, case: Case, expected: Sequence[Any]) -> Iterator[str]:
    graph = graph_of(model)
    actual = dict(zip(graph.outputs, expected, strict=True))
    for name, theirs in known_to_onnx(model).items():
        if mistake(TensorType(theirs.dtype, theirs.shape), actual.get(name), case):
            continue  # onnx 1.23 is wrong about the number of frequencies of STFT
        value = graph.outputs.get(name) or graph.values.get(name)
        if value is not None and (reason := contradiction(value.type, theirs)):
            yield f"{case.name}: {name} {reason}"
    for name, value in graph.outputs.items():
        if value.producer is not None and not value.producer.op.deterministic:
            continue
        if reason := mistake(value.type, actual[name], case):
            yield f"{case.name}: {name} {reason}"


def graph_of(model: ModelProto) -> Graph:
    graph = load(model).graph
    infer(graph)
    return graph


@pytest.mark.parametrize("operator", sorted(OPERATORS), ids="::".join)
def test_integer_shapes(operator: tuple[str, str]) -> None:
    found: list[str] = []
    for case in cases_by_operator().get(operator, ()):
        expected = [array_of(value) for value in case.outputs]
        bare = without_shapes(case.model)
        found += mistakes(bare, case, expected)
        found += mistakes(with_constants(bare, case.inputs), case, expected)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("operator", sorted(OPERATORS), ids="::".join)
def test_symbolic_shapes(operator: tuple[str, str]) -> None:
    found: list[str] = []
    for case in cases_by_operator().get(operator, ()):
        sizes = {
            symbol(formal.name, axis): size
            for formal, value in zip(case.model.graph.input, case.inputs, strict=False)
            if not isinstance(value, list | None)
            for axis, size in enumerate(array_of(value).shape)
        }
        bare = without_shapes(case.model)
        graph = graph_of(with_symbols(with_constants(bare, case.inputs, "biu")))
        for (name, value), actual in zip(graph.outputs.items(), case.outputs, strict=True):
            bound = with_sizes(value.type, sizes)
            if reason := mistake(bound, array_of(actual), case):
                found.append(f"{case.name}: {name}: {value.type} {reason}")
    assert not found, "\n" + "\n".join(found)


def with_sizes(type_: ValueType | None, sizes: Mapping[str, int]) -> ValueType | None:
    """Return a tensor's type with numbers in place of symbols, in its shape and its elements."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    shape = tuple(sizes[d] if isinstance(d, str) else d for d in type_.shape)
    value = type_.value
    if value is not None and value.dtype == object and type_.dtype != string:
        value = np.array([sizes.get(v, v) for v in value.flat], object).reshape(value.shape)
    return TensorType(type_.dtype, shape, value)


SHAPE_ARITHMETIC = (
    *("Abs", "Add", "And", "Ceil", "Clip", "Concat", "ConstantOfShape", "Div", "Expand"),
    *("Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max"),
    *("Min", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "Reciprocal", "Reshape", "Round", "Shape"),
    *("Sign", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "Transpose"),
    *("Unsqueeze", "Where", "Xor"),
)


@pytest.mark.parametrize("name", SHAPE_ARITHMETIC)
def test_elements_of_small_tensors_are_known(name: str) -> None:
    """What is computed of constants is known; that it is right, `test_integer_shapes` checks."""
    for case in cases_by_operator()["", name]:
        for value in graph_of(with_constants(case.model, case.inputs)).outputs.values():
            assert value.tensor.known is not None or not is_small(value.tensor), case.name


@pytest.mark.parametrize(("depth", "known"), [(3, [[0, 0], [1, 0], [0, 0]]), (10**15, None)])
def test_elements_of_large_results_are_not_computed(depth: int, known: object) -> None:
    """Even where all operands are known: as many would not fit into memory."""
    given = np.array([1, np.nan], np.float32), np.array(depth), np.array([0, 1])
    found = OneHot(axis=0).infer(*(TensorType(each.dtype, each.shape, each) for each in given))
    assert found.shape == (depth, 2)
    assert (None if found.known is None else found.known.tolist()) == known
