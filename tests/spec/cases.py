"""ONNX's own test cases for single operators, by operator."""

import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

_EXPANDED = re.compile(r"_expanded.*$")


@cache
def cases_by_operator() -> Mapping[tuple[str, str], Sequence[TestCase]]:
    """Return the cases by domain and operator.

    Those in which the operator is expanded into the nodes of its function body are among them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx computes its expectations with overflows and all
        cases = load_model_tests(kind="node")
    found: dict[tuple[str, str], list[TestCase]] = defaultdict(list)
    operators: dict[str, tuple[str, str]] = {}
    for case in cases:
        if case.model is not None and not _EXPANDED.search(case.name):
            node = case.model.graph.node[0]
            operators[case.name] = (node.domain, node.op_type)
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
