"""Elementwise operators: a table of formulas, and generated code for chains of them.

The same row serves a single kernel, a chain of operators in one kernel, and the epilogues of
convolutions and matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from itertools import takewhile
from math import inf, prod
from typing import Any

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.chains import chain_behind
from ....runtime.ir.dtypes import (
    FLOAT8S,
    FLOATS,
    INTEGERS,
    UNSIGNED,
    DType,
    bfloat16,
    bool_,
    float4e2m1,
    float8e8m0,
    float16,
    float32,
    int8,
    int16,
    name_of,
    uint8,
    uint16,
    uint64,
)
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.op import Op, attributes
from ....runtime.ops import elementwise as ops
from ....runtime.ops.ml import Binarizer
from ....runtime.ops.quantize import DequantizeLinear, QuantizeLinear
from ....runtime.ops.reduce import Reduce
from ..recipe.source import C_TYPES, SMALL, literal
from .readers import readers_outside

BOOLS = frozenset({bool_})
SMALL_FLOATS = FLOAT8S | {float4e2m1}
#: Dtypes that chains compute in float.
SHORT = SMALL_FLOATS | {float16, bfloat16}
NUMBERS = FLOATS | (INTEGERS - frozenset(SMALL))
ANY = NUMBERS | BOOLS
#: Dtypes that chains quantize from and to.
REAL = frozenset({float32, float16, bfloat16})
QUANTA = frozenset({int8, uint8, int16, uint16})
THREADS = 256


@record
class Formula:
    """How an operator computes one element.

    Attributes:
        code: a C++ expression of x, y, z (the inputs), T (their type) and the attributes in braces;
            or a function of the operator that returns one. Variadic operators fold it from the
            left.
        over: dtypes of the first input that it applies to.
    """

    code: str | Callable[[Any], str]
    over: frozenset[DType] = FLOATS


def _gelu(op: ops.Gelu) -> str:
    if op.approximate == "tanh":
        return "T(0.5) * x * (T(1) + tanh(T(0.7978845608028654) * (x + T(0.044715) * x * x * x)))"
    return "gelu_of(x)"


def _is_inf(op: ops.IsInf) -> str:
    signs = {(1, 1): "isinf(x)", (0, 1): "isinf(x) && x > T(0)", (1, 0): "isinf(x) && x < T(0)"}
    return signs.get((op.detect_negative, op.detect_positive), "false")


def _mod(op: ops.Mod) -> str:
    if op.fmod:
        return "remainder_of(x, y)"
    return "floored_remainder(x, y)"


#: Faster formulas for 16-bit results, in which the difference is rounded away.
QUICK: dict[type[Op], Callable[[Any], str]] = {
    ops.Gelu: lambda op: f"quick_gelu{'_tanh' if op.approximate == 'tanh' else ''}(x)",
    ops.Cos: lambda op: "quick_cos(x)",
    ops.Mish: lambda op: "quick_mish(x)",
    ops.Sigmoid: lambda op: "quick_sigmoid(x)",
    ops.Sin: lambda op: "quick_sin(x)",
    ops.SwiGLU: lambda op: "x * quick_sigmoid({alpha} * x) * y",
    ops.Swish: lambda op: "x * quick_sigmoid({alpha} * x)",
}

#: The same of float16, which is never so far from 0 that a call has to reduce it.
NEAR: dict[type[Op], str] = {ops.Cos: "near_cos(x)", ops.Sin: "near_sin(x)"}

_SOFTPLUS = "(x > T(0) ? x : T(0)) + log1p(exp(-fabs(x)))"

#: Comparisons are written so that NaN propagates as ONNX requires.
ROWS: dict[type[Op], Formula] = {
    # arithmetic
    ops.Add: Formula("x + y", NUMBERS),
    ops.Sub: Formula("x - y", NUMBERS),
    ops.Mul: Formula("x * y", NUMBERS),
    ops.Div: Formula("quotient_of(x, y)", NUMBERS),
    ops.Mod: Formula(_mod, NUMBERS),
    ops.Pow: Formula("power(x, y)", NUMBERS),
    ops.Max: Formula("x > y || x != x ? x : y", NUMBERS),
    ops.Min: Formula("x < y || x != x ? x : y", NUMBERS),
    ops.Sum: Formula("x + y", NUMBERS),
    ops.Mean: Formula("x + y"),  # divided by their number at the end
    ops.Neg: Formula("-x", NUMBERS - UNSIGNED),
    ops.Abs: Formula("x < T(0) ? -x : x == T(0) ? T(0) : x", NUMBERS),
    ops.Sign: Formula("x > T(0) ? T(1) : x < T(0) ? T(-1) : x", NUMBERS),
    ops.Floor: Formula("floor(x)"),
    ops.Ceil: Formula("ceil(x)"),
    ops.Round: Formula("rint(x)"),
    ops.Reciprocal: Formula("T(1) / x"),
    ops.Sqrt: Formula("sqrt(x)"),
    # comparison, logic and bits
    ops.Equal: Formula("x == y", ANY),
    ops.Less: Formula("x < y", NUMBERS),
    ops.LessOrEqual: Formula("x <= y", NUMBERS),
    ops.Greater: Formula("x > y", NUMBERS),
    ops.GreaterOrEqual: Formula("x >= y", NUMBERS),
    ops.And: Formula("x && y", BOOLS),
    ops.Or: Formula("x || y", BOOLS),
    ops.Xor: Formula("x != y", BOOLS),
    ops.Not: Formula("!x", BOOLS),
    ops.BitwiseAnd: Formula("x & y", INTEGERS & NUMBERS),
    ops.BitwiseOr: Formula("x | y", INTEGERS & NUMBERS),
    ops.BitwiseXor: Formula("x ^ y", INTEGERS & NUMBERS),
    ops.BitwiseNot: Formula("~x", INTEGERS & NUMBERS),
    ops.BitShift: Formula(lambda op: f"shift_{op.direction.lower()}(x, y)", INTEGERS & NUMBERS),
    ops.IsNaN: Formula("x != x", FLOATS | SMALL_FLOATS),
    ops.IsInf: Formula(_is_inf, FLOATS | SMALL_FLOATS),
    ops.Where: Formula("x ? y : z", BOOLS),
    ops.Cast: Formula("", frozenset(C_TYPES)),  # see `_conversion`
    ops.CastLike: Formula("", frozenset(C_TYPES)),
    # functions of one variable
    ops.Acos: Formula("acos(x)"),
    ops.Acosh: Formula("acosh(x)"),
    ops.Asin: Formula("asin(x)"),
    ops.Asinh: Formula("asinh(x)"),
    ops.Atan: Formula("atan(x)"),
    ops.Atanh: Formula("atanh(x)"),
    ops.Cos: Formula("cos(x)"),
    ops.Cosh: Formula("cosh(x)"),
    ops.Erf: Formula("erf(x)"),
    ops.Exp: Formula("exp(x)"),
    ops.Log: Formula("log(x)"),
    ops.Sin: Formula("sin(x)"),
    ops.Sinh: Formula("sinh(x)"),
    ops.Tan: Formula("tan(x)"),
    ops.Tanh: Formula("tanh(x)"),
    # activations
    ops.Celu: Formula("x > T(0) ? x : {alpha} * expm1(x / {alpha})"),
    ops.Elu: Formula("x > T(0) ? x : {alpha} * expm1(x)"),
    ops.Gelu: Formula(_gelu),
    ops.HardSigmoid: Formula("limit({alpha} * x + {beta}, T(0), T(1))"),
    ops.HardSwish: Formula("x * limit(x * T(1.0 / 6) + T(0.5), T(0), T(1))"),
    ops.LeakyRelu: Formula("x < T(0) ? {alpha} * x : x"),
    ops.Mish: Formula(f"x * tanh({_SOFTPLUS})"),
    ops.PRelu: Formula("x < T(0) ? y * x : x", NUMBERS),
    ops.Relu: Formula("positive(x)", NUMBERS),
    ops.Selu: Formula("{gamma} * (x > T(0) ? x : {alpha} * expm1(x))"),
    ops.Shrink: Formula("x < -{lambd} ? x + {bias} : x > {lambd} ? x - {bias} : T(0)"),
    ops.Sigmoid: Formula("T(1) / (T(1) + exp(-x))"),
    ops.Softplus: Formula(_SOFTPLUS),
    ops.Softsign: Formula("x / (T(1) + fabs(x))"),
    ops.Swish: Formula("x / (T(1) + exp(-{alpha} * x))"),
    ops.SwiGLU: Formula("x / (T(1) + exp(-{alpha} * x)) * y"),
    ops.ThresholdedRelu: Formula("x > {alpha} ? x : T(0)"),
    ops.Clip: Formula("limit(x, y, z)", NUMBERS),
    Binarizer: Formula("x > T({threshold}) ? T(1) : T(0)", NUMBERS),
    # quantization
    QuantizeLinear: Formula("", REAL),  # see `_quantization`
    DequantizeLinear: Formula("(x - z) * y", QUANTA),
}


#: Limit of a chain: longer ones need too many registers.
MAX_CHAINED = 24
#: Maximum number of elements for each of which a chain computes anew what it repeats along an axis,
#: whatever the operator: less than a launch.
MAX_REPEATED = 1 << 18
#: Times that a chain computes the same number at most, whatever the operator, instead of reading
#: it: coordinates that a Concat joins, which is a Where.
FEW_TIMES = 4
#: Operators of one or two instructions: faster to recompute than to read from memory.
CHEAP = (
    *(ops.Add, ops.Sub, ops.Mul, ops.Neg, ops.Abs, ops.Max, ops.Min, ops.Relu, ops.Clip, ops.Where),
    *(ops.Equal, ops.Less, ops.LessOrEqual, ops.Greater, ops.GreaterOrEqual),
    *(ops.And, ops.Or, ops.Xor, ops.Not, ops.Cast),
)


def is_elementwise(op: Op) -> bool:
    """Whether the table has the operator."""
    return type(op) in ROWS


def one_by_one(graph: Graph, value: Value, free: Set[Node]) -> Iterator[Node]:
    """Return the elementwise nodes behind a value, each the only reader of what is before it."""
    readers = chain_behind(graph, value)
    return takewhile(lambda node: node in free and in_chains(node), readers)


def closed_after(
    graph: Graph, results: tuple[Value, ...], free: Set[Node]
) -> Iterator[tuple[Node, ...]]:
    """Yield ever more elementwise nodes after results, whenever only the last is read elsewhere."""
    values, found = [*results], list[Node]()
    while len(found) < MAX_CHAINED:
        node = next(iter(readers_outside(graph, values, found)), None)
        if node is None or node not in free or not in_chains(node):
            return
        if node.output.tensor.dims != results[0].tensor.dims:
            return
        found.append(node)
        values.append(node.output)
        if [v for v in values if graph.is_read_outside(v, found)] == values[-1:]:
            yield tuple(found)


def is_worth_repeating(source: Node, shape: tuple[int, ...]) -> bool:
    """Whether a node is cheap enough to be recomputed for every element of `shape`."""
    dims = source.output.tensor.dims
    if (1,) * (len(shape) - len(dims)) + dims == shape:
        return True
    ranks = {value.tensor.rank for value in source.distinct_reads if not value.is_constant}
    few = max(MAX_REPEATED, FEW_TIMES * source.output.tensor.size)
    cheap = isinstance(source.op, CHEAP) or prod(shape) <= few
    return cheap and ranks <= {len(shape)}


def reads_reduced(node: Node) -> bool:
    """Whether a node combines rows with a reduction of them, which is one kernel (`row_chains`)."""
    made = [value.producer for value in node.distinct_reads if value.producer]
    reduced = {v for each in made if isinstance(each.op, Reduce) for v in each.distinct_reads}
    return not reduced.isdisjoint(node.distinct_reads)


def in_chains(node: Node) -> bool:
    """Whether a node may be in a chain; quantization only with one known scale and zero point."""
    if not isinstance(node.op, QuantizeLinear | DequantizeLinear):
        return is_elementwise(node.op)
    x, *numbers = (value for value in node.inputs if value is not None)
    dtypes = (x.tensor.dtype, node.output.tensor.dtype)
    real, quantum = dtypes if isinstance(node.op, QuantizeLinear) else reversed(dtypes)
    precise = not isinstance(node.op, QuantizeLinear) or node.op.precision in (None, real)
    known = all(value.data is not None and value.data.size == 1 for value in numbers)
    by_one = known and not node.op.block_size and numbers[0].tensor.dtype == real
    return by_one and precise and real in REAL and quantum in QUANTA


# ── chains ───────────────────────────────────────────────────────────────────────────────────────


@record
class ElementwiseChain:
    """Elementwise nodes as one C++ function.

    Attributes:
        operands: the tensors that it reads, in the order of its parameters; one-element constants
            are inlined.
        code: the function, and the functions it calls.
        title: the operators, for reports.
    """

    operands: tuple[Value, ...]
    code: str
    title: str

    def within(self, space: str) -> str:
        """Return the code in a namespace, as several chains may have functions of one name.

        None are in the global namespace then, which calls with an argument of a 16-bit type look
        into.
        """
        lines = self.code.splitlines()
        begin = next(i for i, line in enumerate(lines) if not line.startswith("#include"))
        return "\n".join([*lines[:begin], f"namespace {space} {{", *lines[begin:], "}"])


def chain_of(
    nodes: Sequence[Node],
    name: str = "chain",
    sums: Sequence[Value] = (),
    *,
    rounds: bool = True,
    handed: Sequence[Value] = (),
    result: Value | None = None,
) -> ElementwiseChain | str:
    """Return the code of elementwise nodes of which one result is used, the last one by default.

    Args:
        nodes: in topological order.
        name: the name of the function.
        sums: values that become the first parameters, in their compute types: they are never
            stored.
        rounds: whether the result has the type that is stored, or else its compute type.
        handed: values that are stored in the last parameters, which are references to their compute
            types.
        result: what the function returns.

    Returns:
        The chain, or the reason why there is none.
    """
    result = result or nodes[-1].output
    names: dict[Value, str] = {}
    operands: list[Value] = []
    functions: list[str] = []
    body: list[str] = []

    def name_of_argument(value: Value) -> str:
        if value not in names:
            literal = None if value in sums else _written(value)
            names[value] = literal or f"a{len(operands)}"
            if literal is None:
                operands.append(value)
        return names[value]

    for value in sums:
        name_of_argument(value)
    for number, node in enumerate(nodes):
        refused = _refusal(node)
        if refused:
            return refused
        arguments = [
            _default(node, place) if value is None else name_of_argument(value)
            for place, value in enumerate(_inputs(node))
        ]
        function = f"{type(node.op).__name__.lower()}_{number}"
        functions.append(_function(node, function))
        names[node.output] = f"v{number}"
        kind = compute_type(node.output.tensor.dtype)
        body.append(f"    const {kind} v{number} = {_call(node, function, arguments)};")
    of_result = result.tensor.dtype
    stored = C_TYPES[of_result] if rounds else compute_type(of_result)
    parameters = [
        f"{(compute_type if v in sums else C_TYPES.__getitem__)(v.tensor.dtype)} {names[v]}"
        for v in operands
    ]
    for number, value in enumerate(handed):
        parameters.append(f"{compute_type(value.tensor.dtype)}& r{number}")
        body.append(f"    r{number} = {names[value]};")
    code = [
        '#include "elementwise/functions.cuh"',
        *functions,
        f"__device__ __forceinline__ {stored} {name}({', '.join(parameters)})",
        "{",
        *body,
        f"    return {stored}({names[result]});",
        "}",
    ]
    title = "+".join(type(node.op).__name__ for node in nodes)
    return ElementwiseChain(tuple(operands), "\n".join(code), title)


def unchanged(x: Value) -> ElementwiseChain:
    """Return the chain that computes nothing."""
    kind = C_TYPES[x.tensor.dtype]
    code = f"__device__ __forceinline__ {kind} chain({kind} a0) {{ return a0; }}"
    return ElementwiseChain((x,), code, "")


def _refusal(node: Node) -> str:
    values = [v for v in (*_inputs(node), node.output) if v is not None]
    for dtype in (value.tensor.dtype for value in values):
        if dtype not in C_TYPES:
            return f"dtype {name_of(dtype)}"
    first = values[0].tensor.dtype
    return "" if first in ROWS[type(node.op)].over else f"dtype {name_of(first)}"


def _inputs(node: Node) -> tuple[Value | None, ...]:
    """Return the operands of a node's expression: three, even if some are omitted."""
    if isinstance(node.op, ops.CastLike):
        return node.inputs[:1]
    if isinstance(node.op, ops.Clip | QuantizeLinear | DequantizeLinear):
        return (*node.inputs, None, None)[:3]
    return node.inputs


def _default(node: Node, place: int) -> str:
    """Return the default of an omitted input as C++: a limit of Clip, or zero point 0."""
    dtype = node.output.tensor.dtype
    if not isinstance(node.op, ops.Clip):
        return written(0, dtype)
    return lowest(dtype) if place == 1 else greatest(dtype)


def lowest(dtype: DType) -> str:
    """Return the smallest number of a dtype as C++: -infinity for floats."""
    if dtype in FLOATS:
        return written(-inf, dtype)
    return written(0 if dtype == bool_ else int(np.iinfo(dtype).min), dtype)


def greatest(dtype: DType) -> str:
    """Return the largest number of a dtype as C++: infinity for floats."""
    if dtype in FLOATS:
        return written(inf, dtype)
    return written(1 if dtype == bool_ else int(np.iinfo(dtype).max), dtype)


def _written(value: Value) -> str | None:
    """Return a one-element constant as C++, None for all other values."""
    if value.data is None or value.data.size != 1:
        return None
    return written(value.data.reshape(()).item(), value.tensor.dtype)


def written(number: float | int | bool, dtype: DType) -> str:
    """Return a number as a C++ expression in the compute type of `dtype`."""
    return f"{compute_type(dtype)}({literal(number)})"


def compute_type(dtype: DType) -> str:
    """Return the C++ type in which a dtype is computed: float or int for narrow types."""
    if dtype in SHORT:
        return "float"
    return "int" if dtype in SMALL else C_TYPES[dtype]


def _call(node: Node, function: str, arguments: list[str]) -> str:
    if not isinstance(node.op, ops.Variadic):
        return f"{function}({', '.join(arguments)})"
    text = arguments[0]
    for argument in arguments[1:]:
        text = f"{function}({text}, {argument})"
    if isinstance(node.op, ops.Mean):
        text += f" / {written(len(arguments), node.output.tensor.dtype)}"
    return text


def _function(node: Node, name: str) -> str:
    """Return a C++ function that computes one node; a binary one for variadic operators."""
    code = ROWS[type(node.op)].code
    if isinstance(node.op, ops.Cast | ops.CastLike):
        code = _conversion(node.op, node.inputs[0], node.output.tensor.dtype)
    if isinstance(node.op, QuantizeLinear):
        code = _quantization(node)
    if node.output.tensor.dtype in (float16, bfloat16):
        code = QUICK.get(type(node.op), code)
    if node.operands and node.operands[0].tensor.dtype == float16:
        code = NEAR.get(type(node.op), code)
    code = code if isinstance(code, str) else code(node.op)
    for attribute in attributes(type(node.op)):
        if (place := f"{{{attribute}}}") in code:
            code = code.replace(place, f"T({literal(getattr(node.op, attribute))})")
    gives = compute_type(node.output.tensor.dtype)
    kinds = [compute_type(v.tensor.dtype) if v else gives for v in _inputs(node)]
    if isinstance(node.op, ops.Variadic):
        kinds = kinds[:1] * 2
    computed = gives if isinstance(node.op, ops.Where) else kinds[0]
    parameters = ", ".join(f"{kind} {x}" for kind, x in zip(kinds, "xyz", strict=False))
    return (
        f"__device__ __forceinline__ {gives} {name}({parameters}) "
        f"{{ using T = {computed}; return {gives}({code}); }}"
    )


def _conversion(op: ops.Cast | ops.CastLike, x: Value | None, to: DType) -> str:
    """Return x in the C++ storage type of `to`, so that chains round as separate nodes do."""
    kind = C_TYPES[to]
    if to == float8e8m0:
        rounding = f"Float8e8m0::{op.round_mode.upper()}"
        return f"Float8e8m0::rounded<{rounding}>(float(x), {'true' if op.saturate else 'false'})"
    if to in SHORT:
        saturates = to in FLOAT8S and op.saturate
        return f"{kind}{'::saturated' if saturates else ''}(float(x))"
    if x is not None and x.tensor.dtype in FLOATS | SMALL_FLOATS and to in INTEGERS:
        return "to_uint64(x)" if to == uint64 else f"{kind}(int64(x))"
    return f"{kind}(x)"


def _quantization(node: Node) -> str:
    """Return x divided by the scale y, rounded and offset by the zero point z."""
    to, ratio = node.output.tensor.dtype, "x / y"
    if node.distinct_reads[0].tensor.dtype in SHORT:
        ratio = f"T({C_TYPES[node.distinct_reads[0].tensor.dtype]}(x / y))"
    return f"saturated(rint({ratio}) + T(z), T({lowest(to)}), T({greatest(to)}))"
