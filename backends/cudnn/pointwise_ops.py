"""Elementwise operators as cuDNN's pointwise operations, where the semantics agree.

A stage computes in float32. Booleans are 1 or 0 there, and int8 in memory: cuDNN's BOOLEAN is not
ONNX's byte. How an operator is expressed depends on the results of cuDNN 9.19 on an H200 for zeros,
infinities, NaN and the limits of the range:

- `max` and `min` lose NaN, so Max and Min are comparisons and selections;
- `div` gives 0 for divisors above 2**126, so both sides are divided by 4 there;
- `sin`, `cos` and `tan` are wrong far from 0 (the sine of 1.57e7 is 1.0), so they are not used;
- `exp` has a relative error of up to 4e-6, `tanh` of 1.1e-5 (so that Gelu by tanh is off by 5e-6);
  `elu` and `softplus` lose the digits of small results (absolute error 6e-7). Everything else is
  within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf
from typing import Any

from ...runtime.base.record import record
from ...runtime.ir.dtypes import bool_
from ...runtime.ir.graph import Node
from ...runtime.ir.op import Op
from ...runtime.ops import elementwise as ops
from .operation import HALVES


@record
class PointwiseWriter:
    """Adds pointwise operations to a graph; a number becomes a scalar passed by value.

    Attributes:
        graph: the frontend's graph.
        cudnn: the frontend.
    """

    graph: Any
    cudnn: Any

    def __call__(self, word: str, *given: Any, **attributes: Any) -> Any:
        """Add an operation, such as ``add``, and return its result."""
        return getattr(self.graph, word)(*map(self._tensor, given), **attributes)

    def choose(self, condition: Any, x: Any, y: Any) -> Any:
        """Return `x` where the condition is not 0, and `y` elsewhere."""
        return self("binary_select", x, y, condition)

    def _tensor(self, given: Any) -> Any:
        if not isinstance(given, float):
            return given
        return self.graph.tensor_scalar(given, self.cudnn.scalar_type.RUNTIME_PARAM)


#: Called with a writer, the operator, and for each input a tensor, a number, or None.
Word = Callable[..., Any]


def _is(word: str) -> Word:
    """Return the writer of an operation with exactly the operator's semantics."""
    return lambda w, op, *given: w(word, *given)


def _folded(step: Callable[[PointwiseWriter, Any, Any], Any]) -> Word:
    """Return the writer of a variadic operation; tensors come before numbers."""

    def word(w: PointwiseWriter, op: Op, *given: Any) -> Any:
        ordered = sorted(given, key=lambda one: isinstance(one, float))
        if len(ordered) == 1:
            return w("identity", ordered[0])
        return reduce(lambda x, y: step(w, x, y), ordered)

    return word


def _greatest(w: PointwiseWriter, x: Any, y: Any) -> Any:
    return w.choose(w("cmp_neq", x, x), x, w.choose(w("cmp_gt", x, y), x, y))


def _minimum(w: PointwiseWriter, x: Any, y: Any) -> Any:
    return w.choose(w("cmp_neq", x, x), x, w.choose(w("cmp_lt", x, y), x, y))


def _mean(w: PointwiseWriter, op: Op, *given: Any) -> Any:
    return w("div", _folded(lambda w, x, y: w("add", x, y))(w, op, *given), float(len(given)))


def _quotient(w: PointwiseWriter, op: Op, x: Any, y: Any) -> Any:
    """Divide; both by 4 where the divisor is above 2**125."""
    if isinstance(y, float) and abs(y) <= 2.0**126:
        return w("div", x, y)
    large = w("cmp_gt", w("abs", y), 2.0**125)
    factor = w("add", w("mul", large, -0.75), 1.0)
    return w("div", w("mul", x, factor), w("mul", y, factor))


def _clipped(w: PointwiseWriter, x: Any, lower: float, upper: float) -> Any:
    return w.graph.relu(x, lower_clip=lower, upper_clip=upper)


def _clip(
    w: PointwiseWriter, op: Op, x: Any, lower: float | None = None, upper: float | None = None
) -> Any:
    """Clip; without a lower limit, cuDNN's would be -3.4e38."""
    if lower is not None and lower != -inf:
        return _clipped(w, x, lower, inf if upper is None else upper)
    return w("identity", x) if upper is None else w.choose(w("cmp_gt", x, upper), upper, x)


def _gelu(w: PointwiseWriter, op: ops.Gelu, x: Any) -> Any:
    return w("gelu_approx_tanh" if op.approximate == "tanh" else "gelu", x)


def _exponential(w: PointwiseWriter, x: Any, above: Any, factor: float, rate: float = 1.0) -> Any:
    """Return `above` where x > 0, factor (e^(x/rate) - 1) elsewhere."""
    below = w("sub", w("exp", x if rate == 1 else w("div", x, rate)), 1.0)
    return w.choose(w("cmp_gt", x, 0.0), above, w("mul", below, factor))


def _elu(w: PointwiseWriter, op: ops.Elu, x: Any) -> Any:
    return w("elu", x) if op.alpha == 1 else _exponential(w, x, x, op.alpha)


def _celu(w: PointwiseWriter, op: ops.Celu, x: Any) -> Any:
    return _exponential(w, x, x, op.alpha, op.alpha)


def _selu(w: PointwiseWriter, op: ops.Selu, x: Any) -> Any:
    return _exponential(w, x, w("mul", x, op.gamma), op.gamma * op.alpha)


def _hard_sigmoid(w: PointwiseWriter, op: ops.HardSigmoid, x: Any) -> Any:
    return _clipped(w, w("add", w("mul", x, op.alpha), op.beta), 0.0, 1.0)


def _hard_swish(w: PointwiseWriter, op: ops.HardSwish, x: Any) -> Any:
    return w("mul", x, _clipped(w, w("add", w("mul", x, 1 / 6), 0.5), 0.0, 1.0))


def _mish(w: PointwiseWriter, op: ops.Mish, x: Any) -> Any:
    return w("mul", x, w("tanh", w("softplus", x)))


def _softsign(w: PointwiseWriter, op: ops.Softsign, x: Any) -> Any:
    return _quotient(w, op, x, w("add", w("abs", x), 1.0))


def _sign(w: PointwiseWriter, op: ops.Sign, x: Any) -> Any:
    return w.choose(w("cmp_gt", x, 0.0), 1.0, w.choose(w("cmp_lt", x, 0.0), -1.0, x))


def _prelu(w: PointwiseWriter, op: ops.PRelu, x: Any, slope: Any) -> Any:
    return w.choose(w("cmp_lt", x, 0.0), w("mul", x, slope), x)


def _shrink(w: PointwiseWriter, op: ops.Shrink, x: Any) -> Any:
    above = w.choose(w("cmp_gt", x, op.lambd), w("sub", x, op.bias), 0.0)
    return w.choose(w("cmp_lt", x, -op.lambd), w("add", x, op.bias), above)


def _thresholded(w: PointwiseWriter, op: ops.ThresholdedRelu, x: Any) -> Any:
    return w.choose(w("cmp_gt", x, op.alpha), x, 0.0)


def _gated(w: PointwiseWriter, op: ops.SwiGLU, a: Any, b: Any) -> Any:
    return w("mul", w.graph.swish(a, swish_beta=op.alpha), b)


def _infinite(w: PointwiseWriter, op: ops.IsInf, x: Any) -> Any:
    if op.detect_negative and op.detect_positive:
        return w("cmp_eq", w("abs", x), inf)
    return w("cmp_eq", x, inf if op.detect_positive else -inf)


def _cast(w: PointwiseWriter, op: ops.Cast, x: Any) -> Any:
    return w("cmp_neq", x, 0.0) if op.to == bool_ else w("identity", x)


WORDS: dict[type[Op], Word] = {
    # arithmetic
    ops.Add: _folded(lambda w, x, y: w("add", x, y)),
    ops.Sum: _folded(lambda w, x, y: w("add", x, y)),
    ops.Sub: _is("sub"),
    ops.Mul: _is("mul"),
    ops.Div: _quotient,
    ops.Mod: _is("mod"),  # only fmod
    ops.Pow: _is("pow"),
    ops.Max: _folded(_greatest),
    ops.Min: _folded(_minimum),
    ops.Mean: _mean,
    ops.Neg: _is("neg"),
    ops.Abs: _is("abs"),
    ops.Sign: _sign,
    ops.Floor: _is("floor"),
    ops.Ceil: _is("ceil"),
    ops.Reciprocal: _is("reciprocal"),
    ops.Sqrt: _is("sqrt"),
    ops.Clip: _clip,
    # comparison, logic and conversion
    ops.Equal: _is("cmp_eq"),
    ops.Less: _is("cmp_lt"),
    ops.LessOrEqual: _is("cmp_le"),
    ops.Greater: _is("cmp_gt"),
    ops.GreaterOrEqual: _is("cmp_ge"),
    ops.And: _is("mul"),
    ops.Or: _is("max"),
    ops.Xor: _is("cmp_neq"),
    ops.Not: lambda w, op, x: w("cmp_eq", x, 0.0),
    ops.IsNaN: lambda w, op, x: w("cmp_neq", x, x),
    ops.IsInf: _infinite,
    ops.Where: lambda w, op, condition, x, y: w.choose(condition, x, y),
    ops.Cast: _cast,
    # functions of one variable
    ops.Erf: _is("erf"),
    ops.Exp: _is("exp"),
    ops.Log: _is("log"),
    ops.Tanh: _is("tanh"),
    # activations
    ops.Celu: _celu,
    ops.Elu: _elu,
    ops.Gelu: _gelu,
    ops.HardSigmoid: _hard_sigmoid,
    ops.HardSwish: _hard_swish,
    ops.LeakyRelu: lambda w, op, x: w.graph.leaky_relu(x, negative_slope=op.alpha),
    ops.Mish: _mish,
    ops.PRelu: _prelu,
    ops.Relu: _is("relu"),
    ops.Selu: _selu,
    ops.Shrink: _shrink,
    ops.Sigmoid: _is("sigmoid"),
    ops.Softplus: _is("softplus"),
    ops.Softsign: _softsign,
    ops.SwiGLU: _gated,
    ops.Swish: lambda w, op, x: w.graph.swish(x, swish_beta=op.alpha),
    ops.ThresholdedRelu: _thresholded,
}

#: Why cuDNN is not used for other operators, unless it simply has no such operation.
WORDLESS: dict[type[Op], str] = {
    ops.Sin: "cuDNN's sine is wrong far from 0: that of 1.57e7 is 1.0",
    ops.Cos: "cuDNN's cosine is wrong far from 0: that of -1.95e34 is 1.0",
    ops.Tan: "cuDNN's tangent is wrong far from 0: that of 1.13e7 is -1.0",
    ops.Round: "cuDNN has no rounding to the nearest",
}


def refusal(node: Node) -> str:
    """Return why cuDNN cannot express an elementwise node; empty if it can."""
    op = node.op
    if type(op) not in WORDS:
        return WORDLESS.get(type(op), f"cuDNN has no operation for {node.kind}")
    if isinstance(op, ops.Mod) and not op.fmod:
        return "cuDNN's remainder has the sign of the dividend (fmod=1)"
    if isinstance(op, ops.IsInf) and not (op.detect_negative or op.detect_positive):
        return "IsInf of neither sign"
    return ""


def rounds(node: Node) -> bool:
    """Whether a node rounds its input: a Cast to a 16-bit float that it does not read."""
    given, wanted = node.distinct_reads[0].tensor.dtype, node.output.tensor.dtype
    return isinstance(node.op, ops.Cast) and wanted in HALVES and given not in (wanted, bool_)
