"""What tercet computes, and what everybody else does.

Who computes floats besides tercet gets them wider: onnx.reference as float64, which makes its
result exact, onnxruntime half floats as float32.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator

import tercet
from tercet.runtime.ir.constraints import float64_for_float32
from tercet.runtime.ir.dtypes import FLOATS, bfloat16, float16, float32, float64

from ..unsigned import unsigned_at
from .generate import Array, Dice
from .rulings import Ruling, ruling
from .sample import Inputs, Sample, feeds_of, greatest, model_of

#: Samples per operator; $TERCET_SAMPLES asks for more.
SAMPLES = int(os.environ.get("TERCET_SAMPLES", "20"))
#: The newest opset that onnxruntime takes.
NEWEST = 26
#: Distance of neighbouring numbers at 1, and the least number.
EPSILON = {float64: 2.0**-52, float32: 2.0**-23, float16: 2.0**-10, bfloat16: 2.0**-7}
SMALLEST = {float64: 2.0**-1074, float32: 2.0**-126, float16: 2.0**-24, bfloat16: 2.0**-126}

#: onnxruntime approximates functions: so many roundings of the greatest element, or of 1.
APPROXIMATION = 16

#: What code with a mistake raises, and what refuses a model.
FAULTS = (
    *(
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        NameError,
        RuntimeError,
        TypeError,
    ),
    *(ValueError, Warning, tercet.TercetError),
)
#: onnxruntime's errors have no common base class.
ERRORS = (
    RuntimeError,
    ValueError,
    *(
        found
        for found in vars(import_module("onnxruntime.capi.onnxruntime_pybind11_state")).values()
        if isinstance(found, type) and issubclass(found, Exception)
    ),
)

Make = Callable[[str, Dice], Sample]


@dataclass(frozen=True)
class Absent:
    """Why a peer does not run a sample."""

    reason: str


Found = list[Array] | Absent


def by_tercet(sample: Sample) -> list[Array]:
    """Return what tercet computes; a warning is an error."""
    with tercet.load(model_of(sample, sample.inputs), "numpy") as model:
        return list(model.run(feeds_of(sample, sample.inputs)).values())


def by_onnxruntime(sample: Sample) -> Found:
    """Return what onnxruntime computes, of half floats as float32 where a bound is given."""
    if sample.opset > NEWEST:
        return Absent(f"knows no opset {sample.opset}")
    inputs = unsigned_at(sample.op, wider(sample, (float16, bfloat16), float32))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = model_of(sample, inputs).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
        return [np.asarray(x) for x in session.run(None, feeds_of(sample, inputs))]
    except ERRORS as error:
        return Absent(str(error))


def by_reference(sample: Sample, inputs: Inputs) -> Found:
    """Return what onnx.reference computes."""
    try:
        evaluator = ReferenceEvaluator(model_of(sample, inputs))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(x) for x in evaluator.run(None, feeds_of(sample, inputs))]
    except FAULTS as error:
        return Absent(f"{type(error).__name__}: {error}")


def by_formula(sample: Sample, inputs: Inputs) -> Found:
    """Return what the sample's own line of numpy computes."""
    if sample.want is None:
        return Absent("there is none")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = sample.want(*inputs)
    return [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]


def wider(sample: Sample, narrow: tuple[Any, ...], wide: Any) -> Inputs:
    """Return the inputs with some dtypes widened, if the sample's results have a bound."""
    if sample.bound is None:
        return sample.inputs
    return tuple(
        x.astype(wide) if x is not None and x.dtype in narrow else x for x in sample.inputs
    )


def disagreements(sample: Sample) -> Iterator[str]:
    """Yield how tercet's results differ from those of each of the others, rulings aside."""
    ours = by_tercet(sample)
    exact = wider(sample, tuple(FLOATS), float64)
    peers: dict[str, Callable[[], Found]] = {
        "formula": lambda: by_formula(sample, exact),
        "onnx.reference": lambda: by_reference(sample, exact),
        "onnxruntime": lambda: by_onnxruntime(sample),
    }
    rulings = {name: ruling(sample, name) for name in peers}
    answers = {
        name: run()
        for name, run in peers.items()
        if (found := rulings[name]) is None or found.precise
    }
    given = {name: found for name, found in answers.items() if not isinstance(found, Absent)}
    if not given:
        yield f"nothing to compare with: {answers}"
        return
    bounds = allowed_errors(replace(sample, inputs=exact), next(iter(given.values())))
    for name, found in given.items():
        for i, (got, want, bound) in enumerate(zip(ours, found, bounds, strict=True)):
            want = np.asarray(want)
            bound = relaxed(bound, name, rulings[name], got, want)
            same_dtype = name == "onnxruntime" and sample.bound is None
            if reason := difference(got, want, bound, same_dtype=same_dtype):
                yield f"{name}: y{i}: {reason}"


def relaxed(bound: Any, peer: str, known: Ruling | None, got: Array, want: Array) -> Any:
    """Return the bound for a peer that is less exact than float64."""
    if not np.any(bound) or (known is None and peer != "onnxruntime"):
        return bound
    coarser = 1.0
    if known and known.precise and got.dtype in EPSILON:
        coarser = max(1.0, EPSILON[known.precise] / EPSILON[got.dtype])
    return coarser * (2 * np.asarray(bound) + APPROXIMATION * max(1, greatest(want)))


def allowed_errors(sample: Sample, wanted: list[Array]) -> Sequence[Array | float]:
    """Return the errors allowed, in units of epsilon, result by result."""
    if sample.bound is None:
        return [0.0] * len(wanted)

    def evaluate(inputs: Inputs) -> list[Array]:
        moved = replace(sample, inputs=inputs)
        for found in (by_formula(moved, inputs), by_reference(moved, inputs)):
            if not isinstance(found, Absent):
                return found
        with float64_for_float32():
            return by_tercet(moved)

    with np.errstate(all="ignore"):
        return sample.bound(sample, evaluate, [np.asarray(x) for x in wanted])


def difference(got: Array, want: Array, bound: Any, *, same_dtype: bool) -> str:
    """Return how a result differs by more than `bound`; empty if it does not."""
    if got.shape != want.shape:
        return f"has shape {got.shape} instead of {want.shape}"
    if same_dtype and got.dtype != want.dtype:
        return f"is {got.dtype} instead of {want.dtype}"
    if got.dtype not in EPSILON:
        same = np.array_equal(got, want.astype(got.dtype))
        return "" if same else f"is {_excerpt(got, want, got != want)}"
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype).astype(float64)
        left, right = got.astype(float64), want.astype(float64)
        finite = np.isfinite(left) & np.isfinite(rounded)
        allowed = EPSILON[got.dtype] * (np.asarray(bound, float64)) + 2 * SMALLEST[got.dtype]
        near = np.abs(left - right) <= (allowed if np.any(bound) else 0)
        good = np.where(finite, near, (left == rounded) | (np.isnan(left) & np.isnan(rounded)))
        good |= ~finite & near & ~np.isnan(rounded)  # just below or above the greatest number
    return "" if good.all() else f"is {_excerpt(got, want, ~good)}"


def _excerpt(got: Array, want: Array, wrong: Array) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
    return f"{got[at]} instead of {want[at]} at {list(at)} ({np.count_nonzero(wrong)} wrong)"


def drawn(op: str, make: Make, dice: Dice) -> Sample:
    """Return a sample of an operator, some of its inputs constants, with known sizes or without."""
    with np.errstate(all="ignore"):
        sample = make(op, dice)
    inputs = tuple(None if x is None else np.asarray(x) for x in sample.inputs)
    every = tuple(range(len(inputs)))
    (constants,) = dice.choices((sample.constants, (), every), (0.6, 0.25, 0.15))
    return replace(sample, inputs=inputs, constants=constants, symbolic=dice.chance(0.3))


def agree(op: str, make: Make, kind: type[Dice] = Dice, count: int = SAMPLES) -> None:
    """Check that tercet agrees with everybody about samples of an operator."""
    wrong: list[str] = []
    for number in range(count):
        sample = drawn(op, make, kind(op, number))
        try:
            wrong += [f"{number}: {sample}\n    {reason}" for reason in disagreements(sample)]
        except FAULTS as error:
            wrong.append(f"{number}: {sample}\n    raises {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} of {count} samples\n" + "\n".join(wrong[:20])
