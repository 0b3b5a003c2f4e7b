"""What recurrent layers consist of: cells, activation functions, operands, products of inputs."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Value
from ....runtime.ir.types import TensorType
from ....runtime.ops.recurrent import GRU, LSTM, RNN
from ..algorithms.registry import Setting
from ..codegen.epilogue import no_epilogue, unrounded
from ..gemm import f16, f32
from ..gemm.linear import TILED
from ..gemm.problem import Batch, Linear
from ..gemm.product import products_with
from ..recipe.launch import Launch, behind, launches_of, reading
from ..recipe.operands import Members, Scratch, Tensor
from ..recipe.source import arithmetic, literal

Layer = RNN | GRU | LSTM
KINDS = ("rnn", "gru", "gru_linear", "lstm")

#: Activation functions by name, with their default alpha and beta.
_ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "Relu": ("x < A(0) ? A(0) : x", ()),
    "Tanh": ("tangent(x)", ()),
    "Sigmoid": ("logistic(x)", ()),
    "Affine": ("{0} * x + {1}", (1.0, 0.0)),
    "LeakyRelu": ("x < A(0) ? {0} * x : x", (0.01,)),
    "ThresholdedRelu": ("x > {0} ? x : A(0)", (1.0,)),
    "ScaledTanh": ("{0} * tangent({1} * x)", (1.0, 1.0)),
    "HardSigmoid": ("within(A(0), {0} * x + {1}, A(1))", (0.2, 0.5)),
    "Elu": ("x < A(0) ? {0} * expm1(x) : x", (1.0,)),
    "Softsign": ("x / (A(1) + fabs(x))", ()),
    "Softplus": ("(x > A(0) ? x : A(0)) + log1p(exp(-fabs(x)))", ()),
}


#: Limits, which NaN passes; the hyperbolic tangent without a branch, so that several of them
#: overlap: within 4 ulp.
_FUNCTIONS = """
__device__ __forceinline__ A within(A low, A x, A high)
{
    return x < low ? low : x > high ? high : x;
}
__device__ __forceinline__ double logistic(double x) { return 1 / (1 + exp(-x)); }
__device__ __forceinline__ float logistic(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ double tangent(double x) { return tanh(x); }
__device__ __forceinline__ float tangent(float x)
{
    const float s = x * x;
    const float p = ((-6.61576e-3f * s + 2.131275e-2f) * s - 5.391007e-2f) * s + 1.3333118e-1f;
    const float far = copysignf(1.0f - __fdividef(2.0f, expf(2.0f * fabsf(x)) + 1.0f), x);
    return fabsf(x) < 0.55f ? x + x * s * (s * p - 3.3333332e-1f) : far;
}
"""


def activations_of(op: Layer, usual: tuple[str, ...], directions: int) -> str:
    """Return the C++ function of direction, index of the function, and x.

    Parameters are assigned in order to functions that take one. Only the third function, which LSTM
    applies to its cell, is not clipped.
    """
    names = op.activations or usual * directions
    alphas, betas = iter(op.activation_alpha or ()), iter(op.activation_beta or ())
    cases: list[tuple[int, str]] = []
    for place in range(len(usual) * directions):
        which = place % len(usual)
        code, defaults = _ACTIVATIONS[names[place]]
        pairs = zip((alphas, betas), defaults, strict=False)
        given = [f"A({literal(next(values, value))})" for values, value in pairs]
        clip = (
            ""
            if op.clip is None or which == 2
            else f"x = within(A({literal(-op.clip)}), x, A({literal(op.clip)})); "
        )
        cases.append((place, f"{clip}return {code.format(*given)};"))
    own, others = cases[: len(usual)], cases[len(usual) :]
    both = [code for _, code in own] == [code for _, code in others]
    selected = own if both else cases
    return "\n".join(
        (
            _FUNCTIONS,
            "__device__ __forceinline__ A activate(int direction, int which, A x)",
            "{",
            f"    switch ({0 if both else len(usual)} * direction + which) {{",
            *(f"    case {place}: {code}" for place, code in selected),
            "    }",
            "    return x;",
            "}",
        )
    )


@record
class CellStep:
    """The step of a recurrent unit.

    Attributes:
        kind: one of `KINDS`.
        functions: default activations of one direction.
    """

    kind: str
    functions: tuple[str, ...]


def cell_of(op: Layer) -> CellStep:
    """Return the cell of an operator.

    RNN has f(w x + r h + b), GRU (1 - z) * g(candidate) + z * h, and LSTM c = f * c + i * g(gates)
    with h = o * h(c).
    """
    if isinstance(op, LSTM):
        return CellStep("lstm", ("Sigmoid", "Tanh", "Tanh"))
    if isinstance(op, GRU):
        return CellStep("gru_linear" if op.linear_before_reset else "gru", ("Sigmoid", "Tanh"))
    return CellStep("rnn", ("Tanh",))


@record
class Places:
    """Where sequences and their steps are in memory.

    Attributes:
        rows: from one sequence and from one step to the next in the inputs, in rows of them.
        results: from one direction, sequence and step to the next in the results, in states.
        states: from one direction and from one sequence to the next in initial and final states.
    """

    rows: tuple[int, int]
    results: tuple[int, int, int]
    states: tuple[int, int]


def places_of(op: Layer, directions: int, batch: int, time: int) -> Places:
    """Return the places that ONNX defines, by `layout`."""
    if op.layout:
        return Places((time, 1), (1, time * directions, directions), (1, directions))
    return Places((1, batch), (batch, 1, directions * batch), (batch, 1))


@record
class Operands:
    """The operands of a layer; `state` and `end` are those of the hidden state and the cell.

    Attributes:
        batch, time: sequences and their steps.
        places: where they are in x, in y, and in the states.
    """

    x: Tensor
    w: Tensor
    r: Tensor
    b: Tensor | None
    lengths: Tensor | None
    states: tuple[Tensor | None, Tensor | None]
    peepholes: Tensor | None
    y: Tensor | None
    ends: tuple[Tensor | None, Tensor | None]
    batch: int
    time: int
    places: Places


def layer_of(op: Layer, given: Operands, shares: Shares) -> Members:
    """Return struct `Layer` of the kernels."""
    places, (direction, row) = given.places, shares.strides
    by_row = (direction, *(row * step for step in places.rows))
    names = ("direction", "n", "t")
    return {
        **{"directions": given.w.dims[0], "batch": given.batch, "time": given.time},
        **{"hidden": given.r.dims[2], "backward": op.direction == "reverse"},
        **{f"share_{name}": step for name, step in zip(names, by_row, strict=True)},
        **{f"result_{name}": step for name, step in zip(names, places.results, strict=True)},
        **{"state_direction": places.states[0], "state_n": places.states[1]},
    }


@record
class Shares:
    """The products of inputs and gate weights.

    Attributes:
        launches: of the products.
        place: where they are, in float32 or the arithmetic of a wider type.
        strides: from one direction, and from one row of inputs, to the next, in products of a row.
    """

    launches: tuple[Launch, ...]
    place: Scratch
    strides: tuple[int, int]


def projected(given: Operands, setting: Setting, reserved: int = 0) -> Shares | str:
    """Return the products of the inputs, behind so many bytes of the workspace that others use."""
    x, w = given.x, given.w
    (directions, width, k), rows = w.dims, prod(x.dims[:-1])
    compute, setting = arithmetic(x.dtype), replace(setting, algorithm="", form="")
    y = Tensor(Value("projected", TensorType(compute, (directions, rows, width))))
    if w.data is None or not setting.target.has_tf32 or not x.size or x.dtype not in TILED:
        strides, made = (rows, 1), products_with(y, compute, x, w, width)
    elif x.dtype == float32:
        strides, batch = (rows, 1), Batch(directions, 0, width * k, rows * width)
        layer = Linear(y, x, w, (rows, width, k), (1.0, True), batch=batch)
        made = f32.linear(layer, no_epilogue(float32), setting)
    else:
        strides = (1, directions)
        layer = Linear(y, x, w, (rows, directions * width, k), (1.0, True))
        made = f16.linear(layer, unrounded(x.dtype), setting)
    if isinstance(made, str):
        return made
    launches = launches_of(made)
    there = Scratch(max(behind(launches), reserved))
    placed = (reading(each, lambda at: there if at == y else at) for each in launches)
    nbytes = there.offset + y.size * compute.itemsize
    return Shares(tuple(replace(each, scratch=nbytes) for each in placed), there, strides)
