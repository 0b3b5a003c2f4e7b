"""ONNX's own test cases for single operators, by operator."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto

from tercet.tools.conformance.suite import all_cases


@dataclass(frozen=True)
class Case:
    """A model of one operator, or of the function that stands for it, with one set of data.

    Attributes:
        name: onnx's name for it.
        model: the model.
        inputs: what to feed, in the order of the graph's inputs; see `array_of`.
        outputs: what to expect, in the order of the graph's outputs.
        rtol: relative tolerance.
        atol: absolute tolerance.
    """

    name: str
    model: ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


@cache
def cases_by_operator() -> Mapping[tuple[str, str], Sequence[Case]]:
    """Return the cases by domain and operator, those of expanded operators among them."""
    found: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in all_cases():
        if case.category == "node":
            domain, _, name = case.operator.rpartition(".")
            model, data_sets = case.content.read()
            for inputs, outputs in data_sets:
                made = Case(case.name, model, inputs, outputs, case.rtol, case.atol)
                found[domain, name].append(made)
    return found


def array_of(value: Any) -> Any:
    """Return a case's input or output with every number in it as an array."""
    if isinstance(value, list):
        return [array_of(v) for v in value]
    return None if value is None else np.asarray(value)
