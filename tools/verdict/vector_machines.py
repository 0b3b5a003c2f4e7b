"""Support vector machines step by step: kernel values, sums by pair of classes, and what is left.

Coefficients add up to zero, so little may be left of a sum of many kernel values, each of which is
rounded: moving what the machine reads says nothing about that, as all of them move alike.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np

from ...backends.numpy.ops.ml import rows_of
from ...backends.numpy.ops.ml_linear import kernel_values
from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.dtypes import float64
from ...runtime.ir.graph import Graph, Value
from ...runtime.ir.types import Array, TensorType
from ...runtime.ops.matmul import MatMul
from ...runtime.ops.ml import SVMClassifier, SVMRegressor

Machine = SVMClassifier | SVMRegressor


def has_sums(machine: Machine) -> bool:
    """Whether a machine adds up kernel values: it has more support vectors than results."""
    if isinstance(machine, SVMRegressor):
        return machine.n_supports > 1
    counts = machine.vectors_per_class or ()
    return sum(counts) > comb(len(counts), 2)


def by_steps(graph: Graph, machine: Machine, x: Value) -> tuple[Value, ...]:
    """Add the steps of a machine to a graph.

    Args:
        graph: gets kernel values [n, vectors], sums of them [n, pairs], and a machine of as many
            vectors as sums.
        machine: one with sums of kernel values.
        x: what it reads.

    Returns:
        Its results.
    """
    coefficients = np.array(machine.coefficients, float64)
    if isinstance(machine, SVMClassifier):
        weights, rest = _pairs(machine, coefficients)
    else:
        weights = coefficients.reshape(machine.n_supports, 1)
        rest = replace(machine, n_supports=0, support_vectors=None, coefficients=(1.0,))
    vectors = np.array(machine.support_vectors, float64).reshape(len(weights), -1)

    def values(data: Array) -> Array:
        return kernel_values(machine, rows_of(data).astype(float64), vectors)

    function = CustomOperator(values, lambda x: TensorType(float64, (None, len(vectors))))
    kernel = declare("tercet.steps", "Kernel", function)
    made = graph.insert(kernel(), [x]).output
    sums = graph.insert(MatMul(), [made, graph.constant(weights)]).output
    return graph.insert(rest, [sums], 2 if isinstance(machine, SVMClassifier) else 1).outputs


def _pairs(machine: SVMClassifier, coefficients: Array) -> tuple[Array, SVMClassifier]:
    """Return the weights [vectors, pairs] of each pair of classes, and a machine that reads sums.

    A vector has a coefficient for each class that is not its own. The machine that reads the sums
    has one vector per pair, which is one at the pair's sum, and belongs to the first class of it.
    """
    counts = machine.vectors_per_class or ()
    classes, own = len(counts), np.repeat(np.arange(len(counts)), counts)
    table = coefficients.reshape(classes - 1, -1)
    pairs = list(combinations(range(classes), 2))
    weights = np.zeros((len(own), len(pairs)))
    chosen = np.zeros((classes - 1, len(pairs)))
    for at, (first, second) in enumerate(pairs):
        weights[own == first, at] = table[second - 1, own == first]
        weights[own == second, at] = table[first, own == second]
        chosen[second - 1, at] = 1
    rest = replace(
        machine,
        kernel_type="LINEAR",
        coefficients=tuple(chosen.ravel().tolist()),
        support_vectors=tuple(np.eye(len(pairs)).ravel().tolist()),
        vectors_per_class=tuple(range(classes - 1, -1, -1)),
    )
    return weights, rest
