"""Fuses activations that exporters decompose: Gelu, Swish, HardSwish, Mish, Softplus."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, isclose, pi, sqrt
from typing import Any, cast

import ml_dtypes
import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node
from ...ir.op import Op
from ...ops.elementwise import (
    Clip,
    Erf,
    Gelu,
    Greater,
    HardSigmoid,
    HardSwish,
    Mish,
    Mul,
    Sigmoid,
    Softplus,
    Swish,
    Tanh,
    Where,
)
from ..driver import Context, Reason
from ..editing import dtype_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..pattern import Apply, Number, Pattern, Poly, scaling
from ..polynomial import agree


def _is_sixth(node: Node) -> bool:
    """Whether a HardSigmoid has the parameters of HardSwish."""
    line = {(1,): getattr(node.op, "alpha", 0.0), (0,): getattr(node.op, "beta", 0.0)}
    dtype = dtype_of(node.output)
    return dtype is not None and agree(line, {(1,): 1 / 6, (0,): 0.5}, dtype)


_CUBIC = {(1,): sqrt(2 / pi), (3,): sqrt(2 / pi) * 0.044715}
#: x (1 + t) / 2, x (1 - t) / 2, x t, x t / 6 and t / 6.
_HALF_SUM = Poly({(1, 0): 0.5, (1, 1): 0.5}, "x", "t")
_HALF_DIFFERENCE = Poly({(1, 0): 0.5, (1, 1): -0.5}, "x", "t")
_PRODUCT = Poly({(1, 1): 1.0}, "x", "t")
_SIXTH = Poly({(1, 1): 1 / 6}, "x", "t")
_SIXTH_ALONE = Poly({(1,): 1 / 6}, "t")

_ERF = Apply(Erf, Poly({(1,): sqrt(0.5)}, "x"), name="t")
_ERF_OF_MINUS = Apply(Erf, Poly({(1,): -sqrt(0.5)}, "x"), name="t")
_TANH = Apply(Tanh, Poly(_CUBIC, "x"), name="t")
_SIGMOID = Apply(Sigmoid, Poly({(1,): "alpha"}, "x"), name="t")
_LINE = Apply(HardSigmoid, "x", name="t", where=_is_sixth)
_CLIP = Apply(Clip, Poly({(1,): 1.0, (0,): 3.0}, "x"), Number(0), Number(6), name="t")
_SOFT = Apply(Tanh, Apply(Softplus, "x"), name="t")
_LINEAR = Apply(Greater, "x", Number("limit"))
_SOFTPLUS = Apply(Softplus, "x", name="t")

#: Maximum number of nodes from the function to the end of the formula.
_LONGEST = 4


@record
class _Is:
    """Replaces a formula by an operator of x."""

    op: Op

    def __call__(self, found: Found) -> Outcome:
        if dtype_of(found["x"]) not in FLOATS:
            return found.refuse(Reason.TYPE, f"no {self.op} of {found['x'].type}")
        alpha = found.match.numbers.get("alpha")
        op = self.op if alpha is None else Swish(alpha=alpha)
        return Replacement(op, (found["x"],))


def _softplus(found: Found) -> Outcome:
    """Return a Softplus without the threshold above which it is its input, or a multiple of it.

    Above, they must agree up to rounding.
    """
    x, limit = found["x"], found.match.numbers["limit"]
    dtype, step = dtype_of(x), scaling(x)
    if dtype is None or dtype not in FLOATS:
        return found.refuse(Reason.TYPE, f"no Softplus of {x.type}")
    if not exp(-limit) <= limit * float(cast("Any", ml_dtypes.finfo)(dtype).eps) / 2:
        return found.refuse(Reason.NUMBERS, f"Softplus differs from x where x > {limit:g}")
    inverse = found.match.numbers.get("inverse")
    if inverse is None:
        return Replacement(Softplus(), (x,))
    if step is None or step[0] is not found["z"] or not isclose(inverse * step[1], 1):
        return None
    soft = found.builder(found.match.made("t").name, (found.match.made("t"),))(Softplus(), x)
    factor = np.array(inverse, dtype)
    return Replacement(Mul(), (soft, found.graph.constant(factor, f"{found.top.name}.factor")))


def _activation(op: Op, function: Apply, pattern: Pattern) -> Fusion:
    return Fusion(function, _Is(op), pattern, _LONGEST)


FUSIONS = (
    _activation(Gelu(), _ERF, _HALF_SUM),
    _activation(Gelu(), _ERF_OF_MINUS, _HALF_DIFFERENCE),
    _activation(Gelu(approximate="tanh"), _TANH, _HALF_SUM),
    _activation(Swish(), _SIGMOID, _PRODUCT),
    _activation(HardSwish(), _LINE, _PRODUCT),
    _activation(HardSwish(), _CLIP, _SIXTH),
    _activation(HardSigmoid(alpha=1 / 6, beta=0.5), _CLIP, _SIXTH_ALONE),
    _activation(Mish(), _SOFT, Apply(Mul, "x", "t")),
    Fusion(_SOFTPLUS, _softplus, Apply(Where, _LINEAR, "x", "t"), _LONGEST),
    Fusion(
        _SOFTPLUS, _softplus, Apply(Where, _LINEAR, "z", Poly({(1,): "inverse"}, "t")), _LONGEST
    ),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a formula of x and a function of x by one node.

    Gelu is ``x (1 + erf(x / √2)) / 2`` or the same with tanh, Swish ``x sigmoid(α x)``, HardSwish
    ``x clip(x + 3, 0, 6) / 6``, HardSigmoid the same without the leading x, Mish ``x
    tanh(softplus(x))``; products and sums in any order, divisions by a constant or products with
    its inverse. Softplus is also ``x if β x > 20 else softplus(β x) / β``, as PyTorch exports it.
    """
    return fuse(graph, context, FUSIONS)
