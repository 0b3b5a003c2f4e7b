"""Cases for single operators: what to run, and how the expected result is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tercet

from ..unsigned import unsigned_at

Array = np.ndarray[Any, Any]
Oracle = Callable[..., Any]

FLOAT16, BFLOAT16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
FLOATS = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)
SIGNED = tuple(np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
UNSIGNED = tuple(np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
INTEGERS = SIGNED + UNSIGNED

#: Relative rounding error of one operation.
EPSILON = {FLOAT64: 1e-15, FLOAT32: 2e-7, FLOAT16: 1e-3, BFLOAT16: 8e-3}


@dataclass(frozen=True, eq=False)
class Case:
    """One operator with its inputs.

    Attributes:
        op: the operator.
        inputs: arrays, None where an input is left out.
        attributes: what the node has besides.
        want: computes the result from the inputs; where it is None onnxruntime does, or
            onnx.reference for float64, which onnxruntime mostly lacks.
        constants: positions of the inputs that are part of the model.
        outputs: number of outputs.
        error: greatest error allowed, as a multiple of the dtype's rounding error and of the
            greatest element; 0 asks for equality.
        opset: version of the operator that the model is written in.
        note: tells cases apart whose attributes and shapes are equal.
    """

    op: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    want: Oracle | None = None
    constants: tuple[int, ...] = ()
    outputs: int = 1
    error: float = 8.0
    opset: int = 21
    note: str = ""

    def __str__(self) -> str:
        given = [x for x in self.inputs if x is not None]
        shapes = ",".join("x".join(map(str, x.shape)) or "scalar" for x in given)
        attributes = ",".join(f"{k}={_text(v)}" for k, v in self.attributes.items())
        dtype = given[0].dtype.name if given else ""
        return "-".join(part for part in (self.op, shapes, dtype, attributes, self.note) if part)


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def model_of(case: Case, inputs: tuple[Array | None, ...]) -> onnx.ModelProto:
    """Return a model of the one node."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    fed = [(n, x) for i, (n, x) in enumerate(zip(names, inputs, strict=True))
           if x is not None and i not in case.constants]  # fmt: skip
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in fed
    ]
    constants = [inputs[i] for i in case.constants]
    stored = [
        numpy_helper.from_array(x, names[i])
        for i, x in zip(case.constants, constants, strict=True)
        if x is not None
    ]
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, **case.attributes)
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "one", types, results, stored)
    opsets = [helper.make_opsetid("", case.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds_of(case: Case, inputs: tuple[Array | None, ...]) -> dict[str, Array]:
    """Return the inputs that are no constants, by name."""
    return {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in case.constants}


def by_onnxruntime(case: Case, *inputs: Array | None) -> list[Array]:
    """Return what onnxruntime computes."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    inputs = unsigned_at(case.op, inputs)
    proto = model_of(case, inputs).SerializeToString()
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds_of(case, inputs))


def by_reference(case: Case, *inputs: Array | None) -> list[Array]:
    """Return what onnx.reference computes."""
    found = ReferenceEvaluator(model_of(case, inputs)).run(None, feeds_of(case, inputs))
    return [np.asarray(data) for data in found]


def expected(case: Case) -> list[Array]:
    """Return the results; half floats are computed by onnxruntime in float32."""
    if case.want is not None:
        found = case.want(*case.inputs)
        return list(found) if isinstance(found, tuple) else [found]
    if any(x is not None and x.dtype == FLOAT64 for x in case.inputs):
        return by_reference(case, *case.inputs)
    half = {FLOAT16, BFLOAT16}
    wide = [x.astype(FLOAT32) if x is not None and x.dtype in half else x for x in case.inputs]
    return by_onnxruntime(case, *wide)


def check(case: Case, backend: str) -> None:
    """Run a case on a backend and compare with what is expected."""
    try:
        with tercet.load(model_of(case, case.inputs), backend) as model:
            results = list(model.run(feeds_of(case, case.inputs)).values())
    except tercet.UnsupportedError as error:
        if backend == "numpy":
            raise
        pytest.skip(f"declined: {error}")
    for got, want in zip(results, expected(case), strict=True):
        compare(got, np.asarray(want), case.error)


def compare(got: Array, want: Array, error: float) -> None:
    """Compare shapes and elements, by the rounding error of the result's dtype."""
    assert got.shape == want.shape
    if got.dtype not in EPSILON:
        both = [x if x.dtype.isbuiltin == 1 else x.astype(FLOAT64) for x in (got, want)]
        assert np.array_equal(*both, equal_nan=both[0].dtype == FLOAT64), (got, want)
        return
    left, right = got.astype(FLOAT64), want.astype(FLOAT64)
    finite = np.isfinite(right)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(left[~finite], right[~finite], equal_nan=True)
    scale = np.abs(right[finite]).max(initial=0)
    worst = np.abs(left[finite] - right[finite]).max(initial=0)
    assert worst <= error * EPSILON[got.dtype] * scale, f"off by {worst} of {scale}"


def draw(seed: int, shape: tuple[int, ...], dtype: Any = FLOAT32) -> Array:
    """Return seeded numbers: standard normal ones, integers over their whole range."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.standard_normal(shape).astype(kind)
