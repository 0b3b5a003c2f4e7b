"""Recurrent layers: one product for the inputs of a whole sequence, then one launch per step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....runtime.ir.dtypes import FLOATS, int32
from ....runtime.ops.recurrent import GRU, LSTM, RNN
from ..algorithms.registry import Answer, Kernel, RecipeContext, need_dtypes, register
from ..gemm.product import products_with
from ..recipe.launch import Launch, each, launches_of
from ..recipe.operands import Arguments, Scratch, ceil_div
from ..recipe.source import arithmetic

Layer = RNN | GRU | LSTM
KINDS = ("rnn", "gru", "gru_linear", "lstm")
#: Units per block, one warp each.
UNITS = 8

#: Activation functions by name, with their default alpha and beta.
_ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "Relu": ("x > A(0) ? x : A(0)", ()),
    "Tanh": ("tanh(x)", ()),
    "Sigmoid": ("A(0.5) * tanh(A(0.5) * x) + A(0.5)", ()),
    "Affine": ("{0} * x + {1}", (1.0, 0.0)),
    "LeakyRelu": ("x < A(0) ? {0} * x : x", (0.01,)),
    "ThresholdedRelu": ("x > {0} ? x : A(0)", (1.0,)),
    "ScaledTanh": ("{0} * tanh({1} * x)", (1.0, 1.0)),
    "HardSigmoid": ("min(max({0} * x + {1}, A(0)), A(1))", (0.2, 0.5)),
    "Elu": ("x < A(0) ? {0} * expm1(x) : x", (1.0,)),
    "Softsign": ("x / (A(1) + fabs(x))", ()),
    "Softplus": ("(x > A(0) ? x : A(0)) + log1p(exp(-fabs(x)))", ()),
}


def _activations(op: Layer, usual: tuple[str, ...], directions: int) -> str:
    """Return the C++ function of direction, index of the function, and x.

    Parameters are assigned in order to functions that take one. Only the third function, which LSTM
    applies to its cell, is not clipped.
    """
    names = op.activations or usual * directions
    alphas, betas = iter(op.activation_alpha or ()), iter(op.activation_beta or ())
    cases: list[str] = []
    for place in range(len(usual) * directions):
        which = place % len(usual)
        code, defaults = _ACTIVATIONS[names[place]]
        pairs = zip((alphas, betas), defaults, strict=False)
        given = [f"A({next(values, value)!r})" for values, value in pairs]
        clip = (
            ""
            if op.clip is None or which == 2
            else f"x = min(max(x, A({-op.clip!r})), A({op.clip!r})); "
        )
        cases.append(f"    case {place}: {clip}return {code.format(*given)};")
    return "\n".join(
        (
            "__device__ __forceinline__ A activate(int direction, int which, A x)",
            "{",
            f"    switch (direction * {len(usual)} + which) {{",
            *cases,
            "    }",
            "    return x;",
            "}",
        )
    )


@dataclass(frozen=True, slots=True)
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


def recurrent(context: RecipeContext) -> Answer:
    """Return the launches of a layer: initial states, one per step, and final states."""
    op, (x, w, r, b, lengths, *states) = context.op, (*context.inputs, *(None,) * 5)[:8]
    if not isinstance(op, Layer) or x is None or w is None or r is None:
        return "no recurrent layer"
    *states, peepholes = states
    results = (context.y, *context.more, None, None)[:3]
    refused = need_dtypes(FLOATS, x) or need_dtypes((x.dtype,), w, r, b, *states, peepholes)
    refused = refused or need_dtypes((int32,), lengths)
    if refused:
        return refused
    cell = _cell(op)
    compute = arithmetic(x.dtype)
    directions, width, _ = w.dims
    time, batch = (x.dims[1], x.dims[0]) if op.layout else x.dims[:2]
    hidden = r.dims[2]
    units = directions * batch * hidden
    room = ceil_div(units * compute.itemsize, 256) * 256
    # Workspace: two alternating hidden states, the cell, two more for GRU, the input products.
    places = [Scratch(i * room) for i in range(6)]
    layer = {
        **{"directions": directions, "batch": batch, "time": time, "hidden": hidden},
        **{"backward": op.direction == "reverse", "batch_first": op.layout},
    }
    types = (("T", x.dtype), ("A", compute))
    how = {
        "types": types,
        "constants": (("KIND", KINDS.index(cell.kind)),),
        "code": _activations(op, cell.functions, directions),
    }

    def plain(entry: str, args: Arguments) -> Launch:
        given = {**args, "count": units, "l": layer}
        return each("sequence/recurrent.cu", f"recurrent_{entry}", units, given, **how)

    def by_warps(entry: str, args: Arguments) -> Launch:
        launch = each("sequence/recurrent.cu", f"recurrent_{entry}", units, args, **how)
        return replace(launch, grid=(ceil_div(units, UNITS), 1, 1), note=f"{cell.kind} {hidden}")

    projected = products_with(places[5], compute, x, w, width)
    if isinstance(projected, str):
        return projected
    launches = [*launches_of(projected)]
    for kept, state in zip((places[0], places[2]), states, strict=True):
        launches.append(plain("begin", {"state": state, "kept": kept}))
    gates = {
        **{"shares": places[5], "r": r, "b": b, "lengths": lengths},
        **{"update": places[3], "kept": places[4], "l": layer},
    }
    whole = {
        **{**gates, "peepholes": peepholes, "cell": places[2], "y": results[0]},
        "input_forget": getattr(op, "input_forget", 0),
    }
    for t in range(time):
        now, later = places[t % 2], places[(t + 1) % 2]
        if cell.kind == "gru":
            launches.append(by_warps("reset", {**gates, "h": now, "t": t}))
        launches.append(by_warps("step", {**whole, "h": now, "h_next": later, "t": t}))
    ends = (places[time % 2], places[2])
    for kept, result in zip(ends, results[1:], strict=True):
        if result is not None:
            launches.append(plain("end", {"kept": kept, "state": result}))
    scratch = 5 * room + directions * time * batch * width * compute.itemsize
    return tuple(replace(launch, scratch=scratch) for launch in launches)


register(Kernel(recurrent, outputs=2), RNN, GRU)
register(Kernel(recurrent, outputs=3), LSTM)
