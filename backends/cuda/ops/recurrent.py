"""Recurrent layers: one product for the inputs of a whole sequence, then one launch for all steps.

That launch keeps the weights of the state in registers of up to eight blocks. Where they do not
fit, and for what it does not support, there is one launch per step.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, float32, int32
from ....runtime.ir.graph import Value
from ....runtime.ir.types import TensorType
from ....runtime.ops.recurrent import GRU, LSTM, RNN
from ..algorithms.registry import Answer, Kernel, RecipeContext, Setting, need_dtypes, register
from ..codegen.epilogue import no_epilogue
from ..gemm import f32
from ..gemm.problem import Batch, Linear
from ..gemm.product import products_with
from ..gemm.tile import CLUSTERED
from ..recipe.launch import Launch, behind, each, launches_of, sharing
from ..recipe.operands import Arguments, Members, Scratch, Tensor, ceil_div
from ..recipe.source import arithmetic, literal
from ..recipe.targets import Target

Layer = RNN | GRU | LSTM
KINDS = ("rnn", "gru", "gru_linear", "lstm")
#: Units per block of the kernel for one step, one warp each.
UNITS = 8
#: Of the kernel for a whole sequence: blocks that share the weights, threads of a block, words of
#: four weights per thread, and sequences of a cluster.
MAX_BLOCKS, MAX_THREADS, MAX_WORDS, MAX_ROWS = 8, 512, 16, 8

#: Activation functions by name, with their default alpha and beta.
_ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "Relu": ("x < A(0) ? A(0) : x", ()),
    "Tanh": ("tangent(x)", ()),
    "Sigmoid": ("A(0.5) * tangent(A(0.5) * x) + A(0.5)", ()),
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
class _Split:
    """How blocks and threads share a layer in the kernel for a whole sequence.

    Attributes:
        blocks: of a cluster, which share the units of the state.
        units: per block.
        rows: sequences of a cluster.
        slices: lanes that share the sums of a unit.
        chunks: words of four weights per lane and gate.
        threads: of a block.
    """

    blocks: int
    units: int
    rows: int
    slices: int
    chunks: int
    threads: int

    @property
    def width(self) -> int:
        """Floats of a state in shared memory."""
        return self.chunks * self.slices * 4


def _split(gates: int, hidden: int, directions: int, batch: int, target: Target) -> _Split | None:
    """Return the split with the fewest blocks, or None if the weights do not fit."""
    blocks = 1
    while True:
        units = ceil_div(hidden, blocks)
        able = [
            slices
            for slices in (1, 2, 4, 8, 16, 32)
            if slices * units <= MAX_THREADS and gates * ceil_div(hidden, slices * 4) <= MAX_WORDS
        ]
        if able:
            break
        blocks *= 2
        if blocks > MAX_BLOCKS or not target.has_clusters:
            return None
    resident = int(target.processors * (CLUSTERED if blocks > 1 else 1))
    rows = min(MAX_ROWS, ceil_div(batch, max(1, resident // (blocks * directions))))
    # Few sequences wait for sums, for which more lanes are sooner; many have the lanes busy.
    slices = able[-1] if rows < 4 else able[0]
    threads = ceil_div(units * slices, 32) * 32
    return _Split(blocks, units, rows, slices, ceil_div(hidden, slices * 4), threads)


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


def _layer(op: Layer, given: _Operands) -> Members:
    """Return struct `Layer` of the kernels."""
    time, batch = given.x.dims[1::-1] if op.layout else given.x.dims[:2]
    return {
        **{"directions": given.w.dims[0], "batch": batch, "time": time, "hidden": given.r.dims[2]},
        **{"backward": op.direction == "reverse", "batch_first": op.layout},
    }


def _projected(given: _Operands, setting: Setting) -> tuple[tuple[Launch, ...], Scratch] | str:
    """Return the product of the inputs, and where it is: [direction, row, width]."""
    x, w = given.x, given.w
    (directions, width, k), rows = w.dims, prod(x.dims[:-1])
    compute = arithmetic(x.dtype)
    nbytes = directions * rows * width * compute.itemsize
    if x.dtype != float32 or w.data is None or not setting.target.has_tf32 or not x.size:
        made = products_with(Scratch(0), compute, x, w, width)
        if isinstance(made, str):
            return made
        return tuple(replace(launch, scratch=nbytes) for launch in launches_of(made)), Scratch(0)
    y = Tensor(Value("projected", TensorType(float32, (directions, rows, width))))
    batch = Batch(directions, 0, width * k, rows * width)
    layer = Linear(y, x, w, (rows, width, k), (1.0, True), batch=batch)
    launches = f32.linear(layer, no_epilogue(float32), replace(setting, algorithm="", form=""))
    there = Scratch(behind(launches))
    return tuple(
        replace(
            launch,
            args={name: there if at == y else at for name, at in launch.args.items()},
            scratch=there.offset + nbytes,
        )
        for launch in launches
    ), there


def _sequence(op: Layer, given: _Operands, setting: Setting) -> Answer | None:
    """Return the launch for all steps behind the product, or None if it does not apply."""
    x, r, cell = given.x, given.r, _cell(op)
    directions, width, _ = given.w.dims
    gates, hidden = width // max(r.dims[2], 1), r.dims[2]
    layer = _layer(op, given)
    special = given.peepholes is not None or getattr(op, "input_forget", 0)
    if special or cell.kind == "gru" or arithmetic(x.dtype) != float32 or not x.size or not hidden:
        return None
    batch = x.dims[0] if op.layout else x.dims[1]
    split = _split(gates, hidden, directions, batch, setting.target)
    projected = _projected(given, setting)
    if split is None or isinstance(projected, str):
        return None
    product, shares = projected
    states = split.rows * (2 * split.width + gates * split.units)
    launch = Launch(
        "sequence/recurrent_sequence.cu",
        "recurrent_sequence",
        grid=(ceil_div(batch, split.rows) * split.blocks, directions, 1),
        block=split.threads,
        args={
            **{"shares": shares, "r": r, "b": given.b, "lengths": given.lengths},
            **{"h0": given.states[0], "c0": given.states[1], "y": given.y},
            **{"h_end": given.ends[0], "c_end": given.ends[1], "l": layer},
        },
        types=(("T", x.dtype), ("A", float32)),
        constants=(
            *(("CELL", KINDS.index(cell.kind)), ("BLOCKS", split.blocks), ("UNITS", split.units)),
            *(("ROWS", split.rows), ("SLICES", split.slices), ("CHUNKS", split.chunks)),
            *(("THREADS", split.threads), ("FIXED", r.data is not None)),
        ),
        code=_activations(op, cell.functions, directions),
        shared=16 + 4 * states,  # barriers
        cluster=(split.blocks, 1, 1),
        note=f"{cell.kind} {hidden}, {split.blocks} blocks for {split.rows} rows",
    )
    return sharing(*product, launch)


def _steps(op: Layer, given: _Operands, setting: Setting) -> Answer:
    """Return the launches of each step: initial states, the steps, and final states."""
    x, r, cell = given.x, given.r, _cell(op)
    compute = arithmetic(x.dtype)
    directions, hidden = given.w.dims[0], r.dims[2]
    time, batch = (x.dims[1], x.dims[0]) if op.layout else x.dims[:2]
    units = directions * batch * hidden
    room = ceil_div(units * compute.itemsize, 256) * 256
    projected = _projected(given, setting)
    if isinstance(projected, str):
        return projected
    product, shares = projected
    launches, first = [*product], behind(product)
    # Behind the products: two alternating hidden states, the cell, two more for GRU.
    places = [Scratch(first + i * room) for i in range(5)]
    layer = _layer(op, given)
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
        **{"shares": shares, "r": r, "b": given.b, "lengths": given.lengths},
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
