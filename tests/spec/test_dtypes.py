"""Every operator with every dtype that the specification allows.

A case of ONNX's own gives the inputs; those of one type parameter after the other are cast to every
dtype that it may be. The backend has to take them, to give the dtypes that the specification says,
and the numbers that it gives in the widest dtype of their kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, defs

from tercet.backends.numpy import NumpyBackend
from tercet.backends.numpy.numerics.convert import convert
from tercet.runtime.errors import TercetError
from tercet.runtime.ir.dtypes import (
    BY_ONNX,
    COMPLEX,
    FLOAT8S,
    FLOATS,
    INTEGERS,
    UNSIGNED,
    DType,
    bool_,
    complex128,
    float32,
    float64,
    int64,
    name_of,
    string,
)
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.op import OPERATORS, attributes, with_attributes
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.elementwise import Cast
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.weights import WeightStore

from .samples import Key, Sample, fitted, sample_of

SCHEMAS = {
    (schema.domain, schema.name): schema
    for schema in defs.get_all_schemas()
    if (schema.domain, schema.name) in OPERATORS
}

#: Operators whose inputs are of no parameter, or whose bodies decide on the dtypes.
WITHOUT = {
    "If": "a body's operators decide on the dtypes",
    "Loop": "a body's operators decide on the dtypes",
    "Scan": "a body's operators decide on the dtypes",
    "SequenceMap": "a body's operators decide on the dtypes",
    "Gradient": "is written out as other operators",
}

#: What the specification allows and what makes no sense, by operator.
NONSENSE = {
    "Col2Im": "T = string: not taken: strings cannot be added",
    "GridSample": "T1 = string: not taken: strings cannot be interpolated",
    "Resize": "T1 = string: not taken: strings cannot be interpolated",
}

#: Operators whose result is not the same number in a wider dtype.
BITS = {"BitCast", "BitwiseNot"}


def dtype_of(text: str) -> DType | None:
    """Return the dtype of ``tensor(float)`` or ``seq(tensor(float))``; None for other types."""
    inner = text.removeprefix("seq(").removeprefix("tensor(").rstrip(")")
    number = TensorProto.DataType.DESCRIPTOR.values_by_name.get(inner.upper())
    is_plain = text.startswith(("tensor(", "seq(tensor("))
    return BY_ONNX[number.number] if number and is_plain else None


def cast(x: Any, to: DType) -> Any:
    """Return the input in another dtype: counts in place of strings, no negative unsigned ones."""
    if isinstance(x, list):
        return [cast(each, to) for each in x]
    if not isinstance(x, np.ndarray) or x.dtype == to:
        return x
    if x.dtype == string:
        x = np.arange(x.size).reshape(x.shape)
    if to in UNSIGNED:
        x = np.abs(x.astype(float64))
    if x.dtype in COMPLEX and to not in COMPLEX:
        x = x.real
    return convert(
        np.where(np.isfinite(x), x, 0) if to in INTEGERS and x.dtype in FLOATS else x, to
    )


def widest(dtype: DType, allowed: list[DType]) -> DType | None:
    """Return the dtype whose results are the ones to expect, where there is another."""
    for kinds, wide in (
        (FLOATS, (float64, float32)),
        (INTEGERS, (int64,)),
        (COMPLEX, (complex128,)),
    ):
        if dtype in kinds:
            return next((w for w in wide if w in allowed and w != dtype), None)
    return float32 if dtype not in (bool_, string) and float32 in allowed else None


def parameters(key: Key, sample: Sample) -> Iterator[tuple[str, list[int], list[DType]]]:
    """Yield every type parameter, the inputs that are of it, and the dtypes that it may be."""
    schema = SCHEMAS[key]
    for constraint in schema.type_constraints:
        name = constraint.type_param_str
        linked = {"S", "T"} if name in ("S", "T") and "S" in schema_parameters(key) else {name}
        inputs = [
            i
            for i, x in enumerate(sample.inputs)
            if isinstance(x, np.ndarray | list)
            and schema.inputs[min(i, len(schema.inputs) - 1)].type_str in linked
        ]
        found = dict.fromkeys(map(dtype_of, constraint.allowed_type_strs))
        if inputs:
            yield name, inputs, [dtype for dtype in found if dtype is not None]


def schema_parameters(key: Key) -> set[str]:
    return {constraint.type_param_str for constraint in SCHEMAS[key].type_constraints}


def run(sample: Sample, which: list[int], *dtypes: DType) -> Sequence[Any] | str:
    """Evaluate a sample with some inputs cast to one dtype after the other; or say why not."""
    inputs = list(sample.inputs)
    for dtype in dtypes:
        inputs = [cast(x, dtype) if i in which else x for i, x in enumerate(inputs)]
    op = fitted(sample, dtypes[-1]) if 0 in which else sample.op
    graph = Graph()
    values = [None if x is None else graph.add_input(f"x{i}", None) for i, x in enumerate(inputs)]
    node = graph.insert(op, values, sample.count)
    try:
        return NumpyBackend().evaluate(node, inputs, WeightStore(HOST))
    except (TercetError, ArithmeticError, IndexError, ValueError) as error:
        return f"not taken: {error}"


def problems(key: Key, sample: Sample) -> Iterator[str]:
    for name, which, allowed in parameters(key, sample):
        for dtype in allowed:
            where = f"{name} = {name_of(dtype)}"
            found = run(sample, which, dtype)
            if isinstance(found, str):
                yield f"{where}: {found}"
                continue
            for value, formal in zip(found, SCHEMAS[key].outputs, strict=False):
                is_wrong = isinstance(value, np.ndarray) and value.dtype != dtype
                if formal.type_str == name and is_wrong:
                    yield f"{where}: gives {value.dtype}"
            wide = widest(dtype, allowed)
            if wide is not None and OPERATORS[key].deterministic and key[1] not in BITS:
                want = run(sample, which, dtype, wide)
                yield from (f"{where}: {text}" for text in differences(found, want, dtype))


def differences(found: Sequence[Any], wanted: Sequence[Any], dtype: DType) -> Iterator[str]:
    """Yield where numbers differ by more than a dtype's rounding explains."""
    for got, want in zip(found, wanted, strict=True):
        if isinstance(got, list):
            yield from differences(got, want, dtype)
        elif not is_near(got, want, dtype):
            yield f"gives {got.reshape(-1)[:6]}, not {want.reshape(-1)[:6]}"


def is_near(got: Array, want: Array, dtype: DType) -> bool:
    if got.shape != want.shape:
        return False
    want = convert(want.real if got.dtype not in COMPLEX else want, got.dtype)
    if got.dtype in INTEGERS or got.dtype in (bool_, string):
        return bool((got == want).all())
    kind = np.complex128 if got.dtype in COMPLEX else np.float64
    eps = 0.0 if dtype in INTEGERS or dtype in FLOAT8S else float(ml_dtypes.finfo(dtype).eps)
    got, want = got.astype(kind), want.astype(kind)
    scale = np.abs(want[np.isfinite(want)]).max(initial=0)
    return np.allclose(got, want, 0, max(64 * eps, 1e-6) * scale, equal_nan=True)


@pytest.mark.parametrize("key", sorted(SCHEMAS), ids=lambda key: "::".join(filter(None, key)))
def test_every_dtype(key: Key) -> None:
    if key[1] in WITHOUT:
        pytest.skip(WITHOUT[key[1]])
    sample = sample_of(key)
    assert sample is not None, "no case, and nothing in samples.py"
    with np.errstate(all="ignore"):
        found = list(problems(key, sample))
    expected = [NONSENSE[key[1]]] if key[1] in NONSENSE else []
    assert found == expected, "\n" + "\n".join(found)


def by_attribute() -> Iterator[tuple[Key, str]]:
    """Yield the operators whose result is of a dtype that an attribute names, and the attribute."""
    for key, operator in OPERATORS.items():
        for name in attributes(operator):
            if name in ("dtype", "output_datatype", "output_dtype") and key[1] != "SequenceEmpty":
                yield key, name


@pytest.mark.parametrize(("key", "attribute"), sorted(by_attribute()), ids=lambda x: x[-1])
def test_dtype_attributes(key: Key, attribute: str) -> None:
    sample = sample_of(key)
    assert sample is not None
    formal = SCHEMAS[key].outputs[0].type_str
    (constraint,) = [c for c in SCHEMAS[key].type_constraints if c.type_param_str == formal]
    for dtype in filter(None, map(dtype_of, constraint.allowed_type_strs)):
        op = with_attributes(sample.op, **{attribute: dtype})
        zero_points = [2] if key[1] == "QuantizeLinear" else []
        found = run(replace(sample, op=op), zero_points, dtype)
        assert not isinstance(found, str), f"{name_of(dtype)}: {found}"
        assert found[0].dtype == dtype


@pytest.mark.parametrize("to", [d for d in BY_ONNX.values() if d not in COMPLEX], ids=name_of)
def test_cast_from_every_dtype(to: DType) -> None:
    for dtype in [d for d in BY_ONNX.values() if d not in COMPLEX]:
        ones = Sample(Cast(to=to), [convert(np.ones((2, 1), float32), dtype)])
        (found,) = run(ones, [], dtype)
        assert isinstance(found, np.ndarray)
        assert found.dtype == to
        assert convert(found, float32).tolist() == [[1], [1]]
