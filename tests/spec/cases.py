"""ONNX's own test cases for single operators, by operator."""

import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

_EXPANDED = re.compile(r"_expanded.*$")


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx computes its expectations with overflows and all
        tests = load_model_tests(kind="node")
    cases = [
        Case(test.name, test.model, inputs, outputs, test.rtol, test.atol)
        for test in tests
        if test.model is not None
        for inputs, outputs in test.data_sets or ()
    ]
    operators: dict[str, tuple[str, str]] = {}
    for case in cases:
        if not _EXPANDED.search(case.name):
            node = case.model.graph.node[0]
            operators[case.name] = (node.domain, node.op_type)
    found: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        operator = operators.get(_EXPANDED.sub("", case.name))
        if operator is not None:
            found[operator].append(case)
    return found


def array_of(value: Any) -> Any:
    """Return a case's input or output with every tensor in it as an array."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list):
        return [array_of(v) for v in value]
    return None if value is None else np.asarray(value)
