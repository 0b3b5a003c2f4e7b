"""Decompositions of operators that propagate NaN and infinities correctly through OpenVINO.

OpenVINO's kernels are correct for finite numbers; many lose a NaN, because x86's `max` and `min`
return their second operand if one is NaN. The decompositions here use operators that propagate it.
A decomposition is used only if the operator itself fails its trial (`trial.py`) and the
decomposition passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from math import e, sqrt

import numpy as np

from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.infer import infer
from ...runtime.ir.op import Op
from ...runtime.ir.types import Array
from ...runtime.ops.elementwise import (
    Add,
    Clip,
    Elu,
    Erf,
    Exp,
    Gelu,
    HardSigmoid,
    Min,
    Mul,
    Pow,
    Relu,
    Sub,
)
from ...runtime.ops.norm import LogSoftmax, Softmax
from ...runtime.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from ...runtime.ops.reduce import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from ..regions.section import Section

#: Suffix of the names of nodes in a decomposition.
MARK = "~"
#: Scales numbers so that their sums stay within the range of float32.
_TINY = 1e-30
#: erf is 1 from here on in float32.
_SATURATED = 6.0


class _Speller:
    """Adds the nodes of a decomposition before the node that they replace."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph, self.node = graph, node
        self.count = 0

    @property
    def x(self) -> Value:
        """The input of the node."""
        return self.node.distinct_reads[0]

    def bound(self, place: int, otherwise: float) -> float | None:
        """Return a constant scalar among the inputs; None if it is computed."""
        value = self.node.inputs[place] if len(self.node.inputs) > place else None
        if value is None:
            return otherwise
        return None if value.data is None else float(value.data.reshape(-1)[0])

    def scalar(self, number: float) -> Value:
        return self.constant(np.array(number, np.float32))

    def constant(self, data: Array) -> Value:
        return self._graph.constant(data)

    def add(self, op: Op, *inputs: Value | None) -> Value:
        name = f"{self.node.name}{MARK}{self.count}"
        self.count += 1
        outputs = [self._graph.fresh_name(name)]
        made = self._graph.insert(op, inputs, outputs, name=name, before=self.node)
        return made.output

    def relu(self, x: Value) -> Value:
        """max(x, 0), by `Elu`, whose comparison propagates NaN."""
        return self.add(Elu(alpha=-0.0), x)

    def at_most(self, maximum: float, x: Value) -> Value:
        """min(x, maximum), written so that the operand that may be NaN comes second."""
        return self.add(Min(), self.scalar(maximum), x)

    def unit(self, x: Value) -> Value:
        """A number from 0 to 1 for every number, NaN for NaN."""
        return self.at_most(1.0, self.relu(x))

    def with_nan_of(self, y: Value, marker: Value) -> Value:
        """Return y, but NaN where the otherwise finite marker is NaN."""
        return self.add(Add(), y, self.add(Mul(), marker, self.scalar(0.0)))


def _relu(s: _Speller) -> Value | None:
    return s.relu(s.x)


def _clip(s: _Speller) -> Value | None:
    minimum, maximum = s.bound(1, -np.inf), s.bound(2, np.inf)
    if minimum != 0 or maximum is None or maximum < 0:
        return None
    found = s.relu(s.x)
    return found if maximum == np.inf else s.at_most(maximum, found)


def _hard_sigmoid(s: _Speller) -> Value | None:
    op = s.node.op
    assert isinstance(op, HardSigmoid)
    return s.unit(
        s.add(Add(), s.add(Mul(), s.x, s.scalar(op.alpha)), s.scalar(op.beta)),
    )


def _exp(s: _Speller) -> Value | None:
    return s.add(Pow(), s.scalar(e), s.x)


def _gelu(s: _Speller) -> Value | None:
    op = s.node.op
    assert isinstance(op, Gelu)
    if op.approximate != "none":
        return None
    bounded = s.at_most(_SATURATED, s.add(Mul(), s.x, s.scalar(1 / sqrt(2))))
    half = s.add(Mul(), s.add(Erf(), bounded), s.scalar(0.5))
    return s.add(Mul(), s.x, s.add(Add(), half, s.scalar(0.5)))


def _softmax(s: _Speller) -> Value | None:
    op = s.node.op
    assert isinstance(op, Softmax | LogSoftmax)
    scaled = s.add(Mul(), s.relu(s.x), s.scalar(_TINY))
    axes = s.constant(np.array([op.axis], np.int64))
    total = s.add(ReduceSum(keepdims=1), scaled, axes)
    return s.add(Add(), s.add(replace(op), s.x), s.add(Sub(), total, total))


def _max_pool(s: _Speller) -> Value | None:
    op = s.node.op
    assert isinstance(op, MaxPool)
    if len(s.node.outputs) > 1:
        return None
    mean = AveragePool(
        auto_pad=op.auto_pad,
        ceil_mode=op.ceil_mode,
        dilations=op.dilations,
        kernel_shape=op.kernel_shape,
        pads=op.pads,
        strides=op.strides,
    )
    return s.with_nan_of(s.add(replace(op), s.x), s.add(mean, s.unit(s.x)))


def _global_max_pool(s: _Speller) -> Value | None:
    marker = s.add(GlobalAveragePool(), s.unit(s.x))
    return s.with_nan_of(s.add(replace(s.node.op), s.x), marker)


def _reduce(s: _Speller) -> Value | None:
    op = s.node.op
    assert isinstance(op, ReduceMax | ReduceMin)
    mean = ReduceMean(keepdims=op.keepdims, noop_with_empty_axes=op.noop_with_empty_axes)
    rest = s.node.inputs[1:]
    marker = s.add(mean, s.unit(s.x), *rest)
    return s.with_nan_of(s.add(replace(op), s.x, *rest), marker)


FORMS: Mapping[type[Op], Callable[[_Speller], Value | None]] = {
    Relu: _relu,
    Clip: _clip,
    HardSigmoid: _hard_sigmoid,
    Exp: _exp,
    Gelu: _gelu,
    Softmax: _softmax,
    LogSoftmax: _softmax,
    MaxPool: _max_pool,
    GlobalMaxPool: _global_max_pool,
    ReduceMax: _reduce,
    ReduceMin: _reduce,
}


def spelled(section: Section, plain: Set[str]) -> Section:
    """Return a section in which operators with a decomposition are decomposed.

    Args:
        section: not modified.
        plain: names of nodes that are not decomposed.
    """
    chosen = [n for n in section.graph.nodes if type(n.op) in FORMS and n.name not in plain]
    if not chosen:
        return section
    graph = section.graph.clone()
    by_name = {node.name: node for node in graph.nodes}
    for node in (by_name[each.name] for each in chosen):
        if node.output.tensor.dtype == np.float32:
            value = FORMS[type(node.op)](_Speller(graph, node))
            if value is not None:
                value.type = node.output.tensor.without_value()
                graph.replace(node, [value])
    infer(graph)
    return replace(section, graph=graph)
