"""Recurrent layers: directions, lengths, states, activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import FLOAT32, FLOAT64, Array, Case, draw

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}


def layer(
    op: str,
    time: int = 5,
    batch: int = 3,
    size: int = 4,
    hidden: int = 6,
    *,
    bias: bool = True,
    lengths: tuple[int, ...] | None = None,
    states: bool = False,
    peepholes: bool = False,
    dtype: Any = FLOAT32,
    **attributes: Any,
) -> Case:
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = GATES[op] * hidden
    shapes = [(time, batch, size), (directions, rows, size), (directions, rows, hidden)]
    inputs: list[Array | None] = [draw(i, shape, dtype) for i, shape in enumerate(shapes[:2])]
    inputs.append((draw(2, shapes[2]) / hidden**0.5).astype(dtype))
    inputs.append(draw(3, (directions, 2 * rows), dtype) if bias else None)
    inputs.append(None if lengths is None else np.array(lengths, np.int32))
    state = (directions, batch, hidden)
    inputs += [draw(5 + i, state, dtype) if states else None for i in range(STATES[op])]
    if op == "LSTM":
        inputs.append(draw(7, (directions, 3 * hidden), dtype) if peepholes else None)
    given = {"hidden_size": hidden, **attributes}
    outputs = 1 + STATES[op]
    return Case(op, tuple(inputs), given, constants=(1, 2), outputs=outputs, error=64, opset=14)


DIRECTIONS = [
    layer(op, direction=direction, lengths=lengths, states=states)
    for op in GATES
    for direction in ("forward", "reverse", "bidirectional")
    for lengths, states in ((None, False), ((5, 2, 3), True), ((1, 4, 4), False))
]
VARIANTS = [
    *(layer(op, bias=False) for op in GATES),
    *(layer(op, time=1, batch=1, states=True) for op in GATES),
    *(layer(op, clip=0.7) for op in ("GRU", "RNN")),
    layer("LSTM", clip=0.7, peepholes=True, states=True),
    layer("LSTM", peepholes=True),
    layer("LSTM", peepholes=True, states=True, direction="bidirectional"),
    layer("LSTM", input_forget=1),
    layer("LSTM", time=40, batch=1, size=32, hidden=64),
    layer("GRU", linear_before_reset=1),
    layer("GRU", linear_before_reset=1, direction="bidirectional", states=True),
    layer("GRU", linear_before_reset=1, bias=False),
    layer("LSTM", dtype=FLOAT64, states=True),
]
ACTIVATIONS = [
    layer("RNN", activations=["Relu"]),
    layer("RNN", activations=["LeakyRelu"], activation_alpha=[0.1]),
    layer("RNN", activations=["ThresholdedRelu"], activation_alpha=[0.3]),
    layer("RNN", activations=["HardSigmoid"], activation_alpha=[0.3], activation_beta=[0.4]),
    layer("RNN", activations=["ScaledTanh"], activation_alpha=[0.8], activation_beta=[0.6]),
    layer("RNN", activations=["Softsign"]),
    layer("RNN", activations=["Elu"], activation_alpha=[0.5]),
    layer("RNN", activations=["Tanh", "Sigmoid"], direction="bidirectional"),
    layer("GRU", activations=["HardSigmoid", "Softsign"], activation_alpha=[0.3],
          activation_beta=[0.4]),
    layer("LSTM", activations=["HardSigmoid", "Elu", "ScaledTanh"],
          activation_alpha=[0.3, 0.6, 0.9], activation_beta=[0.4, 0.7]),
]  # fmt: skip
CASES = [*DIRECTIONS, *VARIANTS, *ACTIVATIONS]
