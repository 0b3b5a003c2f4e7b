"""Recurrent layers whose steps are all in one launch: the kernels for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float16, float32
from ..gemm.atoms import atom_of
from ..recipe.launch import Launch, behind, each, sharing
from ..recipe.operands import Scratch, ceil_div
from ..recipe.targets import Target
from .recurrent_layer import KINDS, Layer, Operands, Shares, activations_of, cell_of, layer_of
from .recurrent_splits import resident_split, sequence_split, tiled_split

#: Places for states in memory, and activation functions of -1 to 1.
PLACES = 4
BOUNDED = frozenset({"Sigmoid", "Tanh", "HardSigmoid", "Softsign"})


@record
class Way:
    """A kernel for all steps of a layer.

    Attributes:
        microseconds: of a step, estimated.
        note: how it shares the layer.
        constants: of the kernel, besides CELL.
        fields: of the launch.
        code: generated, besides activation functions.
        width: elements of a state in memory by which blocks tell one another; 0 if they do not.
    """

    microseconds: float
    note: str
    constants: tuple[tuple[str, int | bool], ...]
    fields: Mapping[str, Any] = field(hash=False)
    code: str = ""
    width: int = 0

    def launches(self, op: Layer, given: Operands, shares: Shares) -> tuple[Launch, ...]:
        """Return the launches: the products of the inputs, and this kernel."""
        cell, (directions, _, hidden) = cell_of(op), given.r.dims
        common: dict[str, Any] = {
            "types": (("T", given.x.dtype), ("A", float32)),
            "constants": (("CELL", KINDS.index(cell.kind)), *self.constants),
            "code": self.code + activations_of(op, cell.functions, directions),
        }
        layer, scratch = layer_of(op, given, shares), 0
        told: dict[str, Scratch] = {}
        begins: tuple[Launch, ...] = ()
        if self.width:
            count = directions * given.batch * self.width
            told = {"states": Scratch(behind(shares.launches))}
            scratch = told["states"].offset + PLACES * count * given.x.dtype.itemsize
            args = {**told, "h0": given.states[0], "count": count, "l": layer}
            begin = f"{self.fields['entry']}_begin"
            begins = (each(self.fields["file"], begin, count, args, **common),)
        launch = Launch(
            args={
                **{"shares": shares.place, "r": given.r, "b": given.b, "lengths": given.lengths},
                **{"h0": given.states[0], "c0": given.states[1], "y": given.y, "l": layer},
                **{"h_end": given.ends[0], "c_end": given.ends[1], **told},
            },
            note=f"{cell.kind} {hidden}, {self.note}",
            scratch=scratch,
            **common,
            **self.fields,
        )
        return sharing(*begins, *shares.launches, launch)


def fastest(op: Layer, given: Operands, target: Target) -> Way | None:
    """Return the kernel that is estimated to be the fastest, or None if there is none."""
    ways = (_untiled(given, target), _tiled(op, given, target), _resident(given, target))
    found = (way for way in ways if way is not None)
    return min(found, key=lambda way: way.microseconds, default=None)


def _untiled(given: Operands, target: Target) -> Way | None:
    """Return the kernel for few sequences."""
    directions, width, hidden = given.r.dims
    gates = width // hidden
    split = sequence_split(gates, hidden, directions, given.batch, target)
    if split is None:
        return None
    states = split.rows * (2 * split.width + gates * split.units)
    return Way(
        split.microseconds,
        f"{split.blocks} blocks for {split.rows} rows",
        (
            *(("BLOCKS", split.blocks), ("UNITS", split.units), ("ROWS", split.rows)),
            *(("SLICES", split.slices), ("CHUNKS", split.chunks), ("THREADS", split.threads)),
            ("FIXED", given.r.data is not None),
        ),
        {
            **{"file": "sequence/recurrent_sequence.cu", "entry": "recurrent_sequence"},
            "grid": (ceil_div(given.batch, split.rows) * split.blocks, directions, 1),
            **{"block": split.threads, "cluster": (split.blocks, 1, 1)},
            "shared": 16 + 4 * states,  # barriers
        },
    )


def _tiled(op: Layer, given: Operands, target: Target) -> Way | None:
    """Return the kernel on tensor cores: weights and initial states are known, states bounded."""
    directions, _, hidden = given.r.dims
    dtype, start = given.x.dtype, given.states[0]
    known = [tensor for tensor in (given.r, start) if tensor is not None]
    bounded = BOUNDED.issuperset(op.activations or ()) and cell_of(op).kind != "rnn"
    if not bounded or not all(t.data is not None and np.isfinite(t.data).all() for t in known):
        return None
    terms = 2 if dtype == float32 else 1
    split = tiled_split(hidden, directions, given.batch, terms, target)
    if split is None:
        return None
    return Way(
        split.microseconds,
        f"{split.blocks} blocks for {split.rows} rows",
        (
            *(("BLOCKS", split.blocks), ("UNITS", split.units), ("ROWS", split.rows)),
            *(("HIDDEN", hidden), ("STEPS", split.steps), ("TERMS", terms)),
        ),
        {
            **{"file": "sequence/recurrent_mma.cu", "entry": "recurrent_mma"},
            "grid": (ceil_div(given.batch, split.rows) * split.blocks, directions, 1),
            **{"block": 4 * split.units, "cluster": (split.blocks, 1, 1), "shared": split.shared},
        },
        code=atom_of(float16 if terms == 2 else dtype).code() + "\n",
    )


def _resident(given: Operands, target: Target) -> Way | None:
    """Return the kernel with weights in the shared memory of many blocks."""
    directions, width, hidden = given.r.dims
    sizes = (width // hidden, hidden, directions, given.batch, given.x.dtype.itemsize)
    split = resident_split(*sizes, target) if target.has_tf32 else None
    if split is None:
        return None
    groups = ceil_div(given.batch, split.rows * split.chunks)
    return Way(
        split.microseconds,
        f"{split.blocks} blocks for {split.chunks} x {split.rows} rows",
        (
            *(("HIDDEN", hidden), ("BLOCKS", split.blocks), ("UNITS", split.units)),
            *(("ROWS", split.rows), ("CHUNKS", split.chunks), ("STEPS", split.steps)),
            *(("K_WARPS", split.k_warps), ("M_WARPS", split.m_warps), ("SUMS", split.buffers)),
        ),
        {
            **{"file": "sequence/recurrent_resident.cu", "entry": "recurrent_resident"},
            "grid": (groups * split.blocks, directions, 1),
            **{"block": split.threads, "cooperative": True, "shared": split.shared},
        },
        code=atom_of(given.x.dtype).code() + "\n",
        width=split.width,
    )
