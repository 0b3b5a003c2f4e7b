"""One random node: its model, and how exactly its result is determined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from tercet.runtime.ir.dtypes import TO_ONNX

from .generate import Array

Inputs = tuple[Array | None, ...]
#: Computes all results of a sample from other inputs, exactly.
Evaluate = Callable[[Inputs], list[Array]]
#: Returns, result by result, the greatest error allowed per unit of the dtype's epsilon.
Bound = Callable[["Sample", Evaluate, list[Array]], list[Array | float]]


@dataclass(frozen=True, eq=False)
class Sample:
    """An operator with attributes and inputs that the specification allows.

    Attributes:
        op: the operator.
        inputs: arrays, None where an input is left out.
        attributes: what the node has besides.
        opset: the opset that the model is written in.
        constants: positions of the inputs that are part of the model.
        outputs: number of outputs; or which of them the node has.
        bound: how far from the exact result a float may be; None asks for equality.
        want: computes the result from the inputs, where that is a line of numpy.
        symbolic: whether the model says nothing of the sizes of its inputs.
    """

    op: str
    inputs: Inputs
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    opset: int = 21
    constants: tuple[int, ...] = ()
    outputs: int | tuple[bool, ...] = 1
    bound: Bound | None = None
    want: Callable[..., Any] | None = None
    symbolic: bool = False

    @property
    def output_names(self) -> list[str]:
        """The outputs' names, "" where one is left out."""
        wanted = (True,) * self.outputs if isinstance(self.outputs, int) else self.outputs
        return [f"y{i}" if is_there else "" for i, is_there in enumerate(wanted)]

    def data(self, position: int) -> Array:
        """Return an input that is there, half floats and the like as float64 or int64."""
        x = self.inputs[position]
        assert x is not None
        if x.dtype.isbuiltin == 1:
            return x
        return x.astype(np.int64 if "int" in x.dtype.name else np.float64)

    def __str__(self) -> str:
        inputs = ", ".join("none" if x is None else _text(x) for x in self.inputs)
        attributes = ", ".join(f"{k}={v!r}" for k, v in self.attributes.items())
        return f"{self.op}-{self.opset}({inputs}; {attributes})"


def _text(x: Array) -> str:
    shape = "×".join(map(str, x.shape))
    return f"{x.dtype}[{shape}]" + (f"={x.tolist()}" if x.size <= 8 else "")


def model_of(sample: Sample, inputs: Inputs) -> ModelProto:
    """Return a model of the one node, for inputs of these dtypes and shapes."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    types, stored = [], []
    for i, x in enumerate(inputs):
        if x is not None and i in sample.constants:
            stored.append(numpy_helper.from_array(x, names[i]))
        elif x is not None:
            shape = [f"x{i}@{axis}" for axis in range(x.ndim)] if sample.symbolic else x.shape
            types.append(helper.make_tensor_value_info(names[i], TO_ONNX[x.dtype], shape))
    node = helper.make_node(sample.op, names, sample.output_names, "node", **sample.attributes)
    results = [helper.make_empty_tensor_value_info(name) for name in sample.output_names if name]
    graph = helper.make_graph([node], "one", types, results, stored)
    opsets = [helper.make_opsetid("", sample.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds_of(sample: Sample, inputs: Inputs) -> dict[str, Array]:
    """Return the inputs that are no constants, by name."""
    return {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in sample.constants}


def each(roundings: float) -> Bound:
    """Every element is as exact as so many roundings of itself allow."""

    def bound(sample: Sample, evaluate: Evaluate, exact: list[Array]) -> list[Array | float]:
        return [roundings * np.abs(want) for want in exact]

    return bound


def flat(roundings: float) -> Bound:
    """Every element is as exact as so many roundings of 1 allow."""
    return lambda sample, evaluate, exact: [roundings] * len(exact)


def like_input(roundings: float) -> Bound:
    """Every element is as exact as so many roundings of the element it is computed from allow."""
    return lambda sample, evaluate, exact: [roundings * np.abs(sample.data(0)) for _ in exact]


def summed(terms: int) -> Bound:
    """Every element is a sum of so many products: its terms' magnitudes bound the error."""

    def bound(sample: Sample, evaluate: Evaluate, exact: list[Array]) -> list[Array | float]:
        magnitudes = tuple(
            np.abs(x) if x is not None and x.dtype == np.float64 else x for x in sample.inputs
        )
        return [(terms + 2.0) * np.abs(found) for found in evaluate(magnitudes)]

    return bound


def smooth(terms: int = 1, fixed: tuple[int, ...] = ()) -> Bound:
    """The result is the exact one of inputs that differ by so many roundings.

    What such differences do is measured, and the greatest over the tensor counts, since where
    they cancel in one element is chance. Inputs at the positions `fixed` are taken as they are.
    """

    def bound(sample: Sample, evaluate: Evaluate, exact: list[Array]) -> list[Array | float]:
        scales = [greatest(want) for want in exact]
        for seed in range(3):
            signs, step = np.random.default_rng(seed), 2.0**-40
            moved = tuple(
                x * (1 + step * signs.choice((-1.0, 1.0), x.shape))
                if x is not None and x.dtype == np.float64 and i not in fixed
                else x
                for i, x in enumerate(sample.inputs)
            )
            for i, (found, want) in enumerate(zip(evaluate(moved), exact, strict=True)):
                scales[i] = max(scales[i], greatest(found - want) / step)
        return [(terms + 4.0) * scale for scale in scales]

    return bound


def greatest(x: Array) -> float:
    """Return the magnitude of the greatest finite element."""
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max(initial=0))
