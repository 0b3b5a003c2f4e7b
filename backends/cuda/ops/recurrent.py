"""Recurrent layers: one product for the inputs of a whole sequence, then one launch for all steps.

That launch keeps the weights of the state in registers of up to eight blocks, and multiplies them
on tensor cores if sequences are many. Where weights do not fit or that takes longer, every step is
a product on tensor cores and a kernel for all cells; for what these do not support, one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ....runtime.ir.dtypes import FLOATS, float32, int32
from ....runtime.ir.graph import Value
from ....runtime.ir.op import Op
from ....runtime.ir.types import TensorType
from ....runtime.ops.recurrent import GRU, LSTM, RNN
from ..algorithms.registry import Answer, Kernel, RecipeContext, Setting, need_dtypes, register
from ..codegen.epilogue import no_epilogue, unrounded
from ..gemm import f16, f32
from ..gemm.problem import Batch, Linear
from ..recipe.launch import Launch, behind, each, launches_of, reading
from ..recipe.operands import Arguments, Members, Operand, Scratch, Tensor, ceil_div
from ..recipe.source import arithmetic
from .recurrent_layer import (
    KINDS,
    CellStep,
    Layer,
    Operands,
    activations_of,
    cell_of,
    layer_of,
    places_of,
    projected,
)
from .recurrent_splits import multiplied
from .recurrent_ways import fastest

#: Units per block of the kernel for one step, one warp each.
UNITS = 8


def recurrent(context: RecipeContext) -> Answer:
    """Return the launches of a layer: the product of the inputs, and one for all steps or each."""
    given = operands_of(context.op, context.inputs, (context.y, *context.more))
    return given if isinstance(given, str) else launches(context.op, given, context.setting)


def operands_of(
    op: Op, inputs: Sequence[Tensor | None], results: Sequence[Tensor | None]
) -> Operands | str:
    """Return the operands of a layer, where ONNX has them, or why there are no launches."""
    x, w, r, b, lengths, *states = (*inputs, *(None,) * 5)[:8]
    if not isinstance(op, Layer) or x is None or w is None or r is None:
        return "no recurrent layer"
    h, c, peepholes = states
    y, *ends = (*results, None, None)[:3]
    refused = need_dtypes(FLOATS, x) or need_dtypes((x.dtype,), w, r, b, *states)
    refused = refused or need_dtypes((int32,), lengths)
    if refused:
        return refused
    batch, time = x.dims[:2] if op.layout else x.dims[1::-1]
    places = places_of(op, w.dims[0], batch, time)
    ways = (h, c), peepholes, y, (ends[0], ends[1])
    return Operands(x, w, r, b, lengths, *ways, batch, time, places)


def launches(op: Op, given: Operands, setting: Setting) -> Answer:
    """Return the launches of a layer."""
    assert isinstance(op, Layer)
    return _sequence(op, given, setting) or _cells(op, given, setting) or _steps(op, given, setting)


def _sequence(op: Layer, given: Operands, setting: Setting) -> Answer | None:
    """Return the launch for all steps behind the product, or None if it does not apply.

    Or the launches of each step, if many sequences have large states, which that would be longer
    for.
    """
    x, cell, (directions, width, hidden) = given.x, cell_of(op), given.r.dims
    if not _is_usual(op, given, cell):
        return None
    way = fastest(op, given, setting.target)
    apart = multiplied(hidden, width, directions, given.batch, x.dtype.itemsize)
    if way and way.microseconds > apart and (made := _cells(op, given, setting)):
        return made
    shares = projected(given, setting)
    if way is None or isinstance(shares, str):
        return None
    return way.launches(op, given, shares)


def _is_usual(op: Layer, given: Operands, cell: CellStep) -> bool:
    """Whether a cell is that of `cells.cuh`, with sums of float32."""
    x, r = given.x, given.r
    if given.peepholes is not None or getattr(op, "input_forget", 0) or cell.kind == "gru":
        return False
    return arithmetic(x.dtype) == float32 and x.size > 0 and r.size > 0


def _steps(op: Layer, given: Operands, setting: Setting) -> Answer:
    """Return the launches of each step: initial states, the steps, and final states."""
    x, r, cell = given.x, given.r, cell_of(op)
    compute = arithmetic(x.dtype)
    directions, hidden, batch = given.w.dims[0], r.dims[2], given.batch
    units = directions * batch * hidden
    room = ceil_div(units * compute.itemsize, 256) * 256
    shares = projected(given, setting)
    if isinstance(shares, str):
        return shares
    first = behind(shares.launches)
    # Behind the products: two alternating hidden states, the cell, two more for GRU.
    places = [Scratch(first + i * room) for i in range(5)]
    layer = layer_of(op, given, shares)
    how = _how(op, given, cell)

    def by_warps(entry: str, args: Arguments) -> Launch:
        launch = each("sequence/recurrent.cu", f"recurrent_{entry}", units, args, **how)
        return replace(launch, grid=(ceil_div(units, UNITS), 1, 1), note=f"{cell.kind} {hidden}")

    gates = {
        **{"shares": shares.place, "r": r, "b": given.b, "lengths": given.lengths},
        **{"update": places[3], "kept": places[4], "l": layer},
    }
    whole = {
        **{**gates, "peepholes": given.peepholes, "cell": places[2], "y": given.y},
        "input_forget": getattr(op, "input_forget", 0),
    }
    steps: list[Launch] = []
    for t in range(given.time):
        now, later = places[t % 2], places[(t + 1) % 2]
        if cell.kind == "gru":
            steps.append(by_warps("reset", {**gates, "h": now, "t": t}))
        steps.append(by_warps("step", {**whole, "h": now, "h_next": later, "t": t}))
    between = _between(op, given, layer, (places[0], places[1], places[2]), steps)
    launches = (*shares.launches, *between)
    return tuple(replace(launch, scratch=first + 5 * room) for launch in launches)


def _cells(op: Layer, given: Operands, setting: Setting) -> Answer | None:
    """Return the launches of each step: a product on tensor cores, and one for all cells.

    Or None for what these do not support.
    """
    x, r, cell, batch = given.x, given.r, cell_of(op), given.batch
    if not _is_usual(op, given, cell) or r.data is None:
        return None
    directions, width, hidden = r.dims
    states = Tensor(Value("states", TensorType(x.dtype, (directions, batch, hidden))))
    sums = Tensor(Value("sums", TensorType(float32, (directions, batch, width))))
    product = _product_of_states(sums, states, r, setting)
    shares = product if isinstance(product, str) else projected(given, setting, behind(product))
    if isinstance(product, str) or isinstance(shares, str):
        return None
    # Behind the products: sums, two alternating states, cells, and the states that are multiplied.
    first = behind(shares.launches)
    nbytes = [ceil_div(4 * size, 256) * 256 for size in (sums.size, *(states.size,) * 4)]
    at_sums, *wide, cells, rounded = (Scratch(first + sum(nbytes[:i])) for i in range(5))
    layer = layer_of(op, given, shares)
    args = {
        **{"shares": shares.place, "b": given.b, "lengths": given.lengths, "cells": cells},
        **{"y": given.y, "count": states.size, "l": layer},
        "rounded": None if x.dtype == float32 else rounded,
    }
    steps: list[Launch] = []
    for t in range(given.time):
        now, later = wide[t % 2], wide[(t + 1) % 2]
        there = {states: now if x.dtype == float32 else rounded, sums: at_sums}
        known = t > 0 or given.states[0] is not None  # else zeros
        if known:
            steps += (reading(launch, partial(_placed, there)) for launch in product)
        step = {**args, "sums": at_sums if known else None, "h": now, "h_next": later, "t": t}
        steps.append(
            each(
                "sequence/recurrent_cells.cu",
                "recurrent_cells",
                states.size,
                step,
                types=(("T", x.dtype), ("A", float32)),
                constants=(("CELL", KINDS.index(cell.kind)),),
                code=activations_of(op, cell.functions, directions),
                note=f"{cell.kind} {hidden}",
            )
        )
    kept = (wide[0], wide[1], cells)
    between = _between(op, given, layer, kept, steps, args["rounded"])
    scratch = first + sum(nbytes)
    return tuple(replace(launch, scratch=scratch) for launch in (*shares.launches, *between))


def _placed(there: Mapping[Tensor, Scratch], at: Operand) -> Operand:
    return there.get(at, at) if isinstance(at, Tensor) else at


def _product_of_states(
    sums: Tensor, states: Tensor, r: Tensor, setting: Setting
) -> tuple[Launch, ...] | str:
    """Return the products of all states and their constant weights, [direction, width, hidden]."""
    (directions, width, hidden), batch = r.dims, states.dims[1]
    setting = replace(setting, algorithm="", form="")
    if states.dtype != float32:
        epilogue = unrounded(states.dtype)
        made = f16.product(sums, states, r, epilogue, setting, transposed=True)
        return made if isinstance(made, str) else launches_of(made)
    if not setting.target.has_tf32:
        return "no tensor cores"
    strides = Batch(directions, batch * hidden, width * hidden, batch * width)
    layer = Linear(sums, states, r, (batch, width, hidden), (1.0, True), batch=strides)
    return f32.linear(layer, no_epilogue(float32), setting)


def _between(
    op: Layer,
    given: Operands,
    layer: Members,
    kept: tuple[Scratch, Scratch, Scratch],
    steps: Sequence[Launch],
    rounded: Scratch | None = None,
) -> tuple[Launch, ...]:
    """Return steps between those launches that get initial states and store final ones.

    Args:
        op: the layer.
        given: its operands.
        layer: struct `Layer` of the kernels.
        kept: the states before even steps and before odd ones, and the cells.
        steps: the launches.
        rounded: where initial states of 16 bits are kept as they are, if anywhere.
    """
    even, odd, cells = kept
    h, c = given.states
    units = given.w.dims[0] * given.batch * given.r.dims[2]
    how = _how(op, given, cell_of(op))

    def moved(entry: str, args: Arguments) -> Launch:
        numbers = {**args, "count": units, "l": layer}
        return each("sequence/recurrent.cu", f"recurrent_{entry}", units, numbers, **how)

    begins = [
        moved("begin", {"state": h, "kept": even, "rounded": rounded}),
        moved("begin", {"state": c, "kept": cells, "rounded": None}),
    ]
    last = odd if given.time % 2 else even
    ends = [
        moved("end", {"kept": at, "state": result})
        for at, result in zip((last, cells), given.ends, strict=True)
        if result is not None
    ]
    return (*begins, *steps, *ends)


def _how(op: Layer, given: Operands, cell: CellStep) -> dict[str, Any]:
    return {
        "types": (("T", given.x.dtype), ("A", arithmetic(given.x.dtype))),
        "constants": (("CELL", KINDS.index(cell.kind)),),
        "code": activations_of(op, cell.functions, given.w.dims[0]),
    }


register(Kernel(recurrent, outputs=2), RNN, GRU)
register(Kernel(recurrent, outputs=3), LSTM)
