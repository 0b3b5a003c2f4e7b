"""Recurrent layers: one product for the inputs of a whole sequence, then one launch for all steps.

That launch keeps the weights of the state in registers of up to eight blocks, and multiplies them
on tensor cores if sequences are many. Where they do not fit, and for what it does not support,
there is one launch per step.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, float16, float32, int32
from ....runtime.ir.graph import Value
from ....runtime.ir.types import TensorType
from ....runtime.ops.recurrent import GRU, LSTM, RNN
from ..algorithms.registry import Answer, Kernel, RecipeContext, Setting, need_dtypes, register
from ..codegen.epilogue import no_epilogue, unrounded
from ..gemm import f16, f32
from ..gemm.atoms import atom_of
from ..gemm.linear import TILED
from ..gemm.problem import Batch, Linear
from ..gemm.product import products_with
from ..recipe.launch import Launch, behind, each, launches_of, reading, sharing
from ..recipe.operands import Arguments, Members, Scratch, Tensor, ceil_div
from ..recipe.source import arithmetic, literal
from ..recipe.targets import Target
from .recurrent_splits import sequence_split, tiled_split

Layer = RNN | GRU | LSTM
KINDS = ("rnn", "gru", "gru_linear", "lstm")
#: Units per block of the kernel for one step, one warp each.
UNITS = 8
#: Activation functions of -1 to 1.
BOUNDED = frozenset({"Sigmoid", "Tanh", "HardSigmoid", "Softsign"})

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


def _activations(op: Layer, usual: tuple[str, ...], directions: int) -> str:
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
class _CellStep:
    """The step of a recurrent unit.

    Attributes:
        kind: one of `KINDS`.
        functions: default activations of one direction.
    """

    kind: str
    functions: tuple[str, ...]


def _cell(op: Layer) -> _CellStep:
    """Return the cell of an operator.

    RNN has f(w x + r h + b), GRU (1 - z) * g(candidate) + z * h, and LSTM c = f * c + i * g(gates)
    with h = o * h(c).
    """
    if isinstance(op, LSTM):
        return _CellStep("lstm", ("Sigmoid", "Tanh", "Tanh"))
    if isinstance(op, GRU):
        return _CellStep("gru_linear" if op.linear_before_reset else "gru", ("Sigmoid", "Tanh"))
    return _CellStep("rnn", ("Tanh",))


@record
class _Operands:
    """The operands of a layer; `state` and `end` are those of the hidden state and the cell."""

    x: Tensor
    w: Tensor
    r: Tensor
    b: Tensor | None
    lengths: Tensor | None
    states: tuple[Tensor | None, Tensor | None]
    peepholes: Tensor | None
    y: Tensor | None
    ends: tuple[Tensor | None, Tensor | None]


def recurrent(context: RecipeContext) -> Answer:
    """Return the launches of a layer: the product of the inputs, and one for all steps or each."""
    op, (x, w, r, b, lengths, *states) = context.op, (*context.inputs, *(None,) * 5)[:8]
    if not isinstance(op, Layer) or x is None or w is None or r is None:
        return "no recurrent layer"
    h, c, peepholes = states
    y, *ends = (context.y, *context.more, None, None)[:3]
    refused = need_dtypes(FLOATS, x) or need_dtypes((x.dtype,), w, r, b, *states)
    refused = refused or need_dtypes((int32,), lengths)
    if refused:
        return refused
    given = _Operands(x, w, r, b, lengths, (h, c), peepholes, y, (ends[0], ends[1]))
    return _sequence(op, given, context.setting) or _steps(op, given, context.setting)


def _layer(op: Layer, given: _Operands, shares: _Shares) -> Members:
    """Return struct `Layer` of the kernels."""
    time, batch = given.x.dims[1::-1] if op.layout else given.x.dims[:2]
    return {
        **{"directions": given.w.dims[0], "batch": batch, "time": time, "hidden": given.r.dims[2]},
        **{"backward": op.direction == "reverse", "batch_first": op.layout},
        **dict(zip(("share_direction", "share_row"), shares.strides, strict=True)),
    }


@record
class _Shares:
    """The products of inputs and gate weights.

    Attributes:
        launches: of the products.
        place: where they are, in float32 or the arithmetic of a wider type.
        strides: from one direction, and from one row of inputs, to the next, in products of a row.
    """

    launches: tuple[Launch, ...]
    place: Scratch
    strides: tuple[int, int]


def _projected(given: _Operands, setting: Setting) -> _Shares | str:
    """Return the products of the inputs."""
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
    there = Scratch(behind(launches))
    placed = (reading(each, lambda at: there if at == y else at) for each in launches)
    nbytes = there.offset + y.size * compute.itemsize
    return _Shares(tuple(replace(each, scratch=nbytes) for each in placed), there, strides)


def _sequence(op: Layer, given: _Operands, setting: Setting) -> Answer | None:
    """Return the launch for all steps behind the product, or None if it does not apply."""
    x, cell = given.x, _cell(op)
    special = given.peepholes is not None or getattr(op, "input_forget", 0)
    hidden = given.r.dims[2]
    if special or cell.kind == "gru" or arithmetic(x.dtype) != float32 or not x.size or not hidden:
        return None
    target = setting.target
    how = _tiled(op, given, cell, target) or _untiled(op, given, target)
    shares = _projected(given, setting)
    if how is None or isinstance(shares, str):
        return None
    constants, code = how.pop("constants"), how.pop("code", "")
    launch = Launch(
        args={
            **{"shares": shares.place, "r": given.r, "b": given.b, "lengths": given.lengths},
            **{"h0": given.states[0], "c0": given.states[1], "y": given.y},
            **{"h_end": given.ends[0], "c_end": given.ends[1], "l": _layer(op, given, shares)},
        },
        types=(("T", x.dtype), ("A", float32)),
        constants=(("CELL", KINDS.index(cell.kind)), *constants),
        code=code + _activations(op, cell.functions, given.w.dims[0]),
        **how,
    )
    return sharing(*shares.launches, replace(launch, note=f"{cell.kind} {hidden}, {launch.note}"))


def _batch(op: Layer, given: _Operands) -> int:
    return given.x.dims[0 if op.layout else 1]


def _untiled(op: Layer, given: _Operands, target: Target) -> dict[str, Any] | None:
    """Return what the launch for few sequences consists of."""
    directions, width, _ = given.w.dims
    hidden = given.r.dims[2]
    gates, batch = width // hidden, _batch(op, given)
    split = sequence_split(gates, hidden, directions, batch, target)
    if split is None:
        return None
    states = split.rows * (2 * split.width + gates * split.units)
    return dict(
        file="sequence/recurrent_sequence.cu",
        entry="recurrent_sequence",
        grid=(ceil_div(batch, split.rows) * split.blocks, directions, 1),
        block=split.threads,
        constants=(
            *(("BLOCKS", split.blocks), ("UNITS", split.units), ("ROWS", split.rows)),
            *(("SLICES", split.slices), ("CHUNKS", split.chunks), ("THREADS", split.threads)),
            ("FIXED", given.r.data is not None),
        ),
        shared=16 + 4 * states,  # barriers
        cluster=(split.blocks, 1, 1),
        note=f"{split.blocks} blocks for {split.rows} rows",
    )


def _tiled(op: Layer, given: _Operands, cell: _CellStep, target: Target) -> dict[str, Any] | None:
    """Return the launch on tensor cores: weights and initial states are known, states bounded."""
    directions, hidden, dtype = given.w.dims[0], given.r.dims[2], given.x.dtype
    start, batch = given.states[0], _batch(op, given)
    known = [tensor for tensor in (given.r, start) if tensor is not None]
    bounded = BOUNDED.issuperset(op.activations or ()) and cell.kind != "rnn"
    if not bounded or not all(t.data is not None and np.isfinite(t.data).all() for t in known):
        return None
    terms = 2 if dtype == float32 else 1
    split = tiled_split(hidden, directions, batch, terms, target)
    if split is None:
        return None
    return dict(
        file="sequence/recurrent_mma.cu",
        entry="recurrent_mma",
        grid=(ceil_div(batch, split.rows) * split.blocks, directions, 1),
        block=4 * split.units,
        constants=(
            *(("BLOCKS", split.blocks), ("UNITS", split.units), ("ROWS", split.rows)),
            *(("HIDDEN", hidden), ("STEPS", split.steps), ("TERMS", terms)),
            ("LOW_SHARED", split.low_shared),
        ),
        code=atom_of(float16 if terms == 2 else dtype).code() + "\n",
        shared=split.shared,
        cluster=(split.blocks, 1, 1),
        note=f"{split.blocks} blocks for {split.rows} rows",
    )


def _steps(op: Layer, given: _Operands, setting: Setting) -> Answer:
    """Return the launches of each step: initial states, the steps, and final states."""
    x, r, cell = given.x, given.r, _cell(op)
    compute = arithmetic(x.dtype)
    directions, hidden = given.w.dims[0], r.dims[2]
    time, batch = (x.dims[1], x.dims[0]) if op.layout else x.dims[:2]
    units = directions * batch * hidden
    room = ceil_div(units * compute.itemsize, 256) * 256
    shares = _projected(given, setting)
    if isinstance(shares, str):
        return shares
    launches, first = [*shares.launches], behind(shares.launches)
    # Behind the products: two alternating hidden states, the cell, two more for GRU.
    places = [Scratch(first + i * room) for i in range(5)]
    layer = _layer(op, given, shares)
    types = (("T", x.dtype), ("A", compute))
    how = {
        "types": types,
        "constants": (("KIND", KINDS.index(cell.kind)),),
        "code": _activations(op, cell.functions, directions),
    }

    def plain(entry: str, args: Arguments) -> Launch:
        numbers = {**args, "count": units, "l": layer}
        return each("sequence/recurrent.cu", f"recurrent_{entry}", units, numbers, **how)

    def by_warps(entry: str, args: Arguments) -> Launch:
        launch = each("sequence/recurrent.cu", f"recurrent_{entry}", units, args, **how)
        return replace(launch, grid=(ceil_div(units, UNITS), 1, 1), note=f"{cell.kind} {hidden}")

    for kept, state in zip((places[0], places[2]), given.states, strict=True):
        launches.append(plain("begin", {"state": state, "kept": kept}))
    gates = {
        **{"shares": shares.place, "r": r, "b": given.b, "lengths": given.lengths},
        **{"update": places[3], "kept": places[4], "l": layer},
    }
    whole = {
        **{**gates, "peepholes": given.peepholes, "cell": places[2], "y": given.y},
        "input_forget": getattr(op, "input_forget", 0),
    }
    for t in range(time):
        now, later = places[t % 2], places[(t + 1) % 2]
        if cell.kind == "gru":
            launches.append(by_warps("reset", {**gates, "h": now, "t": t}))
        launches.append(by_warps("step", {**whole, "h": now, "h_next": later, "t": t}))
    ends = (places[time % 2], places[2])
    for kept, result in zip(ends, given.ends, strict=True):
        if result is not None:
            launches.append(plain("end", {"kept": kept, "state": result}))
    return tuple(replace(launch, scratch=first + 5 * room) for launch in launches)


register(Kernel(recurrent, outputs=2), RNN, GRU)
register(Kernel(recurrent, outputs=3), LSTM)
