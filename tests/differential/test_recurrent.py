"""RNN, GRU and LSTM: directions, layouts, lengths, states, activations, clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .generate import Array, Dice, ints
from .oracles import Make, agree
from .sample import Sample, smooth

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
Formula = Callable[[Array, float, float], Array]
#: The functions that a gate may have, and their defaults for alpha and beta.
ACTIVATIONS: dict[str, tuple[Formula, float | None, float | None]] = {
    "Relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "Tanh": (lambda x, a, b: np.tanh(x), None, None),
    "Sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), None, None),
    "Affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "LeakyRelu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, None),
    "ThresholdedRelu": (lambda x, a, b: np.where(x >= a, x, 0), 1.0, None),
    "ScaledTanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "Elu": (lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), 1.0, None),
    "Softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "Softplus": (lambda x, a, b: np.logaddexp(x, 0), None, None),
}


def activations(op: str, dice: Dice, directions: int) -> dict[str, Any]:
    """Return functions with all of their parameters, which are consumed in order."""
    chosen = [dice.choice(list(ACTIVATIONS)) for _ in range(FUNCTIONS[op] * directions)]
    parameters = [ACTIVATIONS[name][1:] for name in chosen]
    alphas = [dice.uniform(0.1, 0.9) for alpha, _ in parameters if alpha is not None]
    betas = [dice.uniform(0.1, 0.9) for _, beta in parameters if beta is not None]
    found: dict[str, Any] = {"activations": chosen}
    found |= {"activation_alpha": alphas} if alphas else {}
    return found | ({"activation_beta": betas} if betas else {})


def layer(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 7)
    dtype = dice.floating(op, opset)
    time, batch, size, hidden = dice.randint(1, 6), *(dice.randint(1, 4) for _ in range(3))
    attributes: dict[str, Any] = dice.given(
        direction=("forward", "reverse", "bidirectional"),
        clip=lambda: dice.uniform(0.3, 2),
    )
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    spread = 0.7
    if dice.chance(0.5):  # most of the functions have no bounds; no number may run away
        attributes |= activations(op, dice, directions)
        time, spread = min(time, 3), 0.3
    if opset >= 14 and dice.chance(0.4):
        attributes["layout"] = dice.randint(0, 1)
    if op == "GRU":
        attributes |= dice.given(linear_before_reset=(0, 1))
    if op == "LSTM" and dice.chance(0.3):
        attributes["input_forget"] = dice.randint(0, 1)
    first = bool(attributes.get("layout"))
    rows, state = GATES[op] * hidden, (directions, batch, hidden)
    if first:
        state = (batch, directions, hidden)
    x = dice.array(dtype, (batch, time, size) if first else (time, batch, size))
    shapes = (directions, rows, size), (directions, rows, hidden)
    weights = (dice.array(dtype, shape, -spread, spread) for shape in shapes)

    def maybe(shape: tuple[int, ...]) -> Array | None:
        return dice.array(dtype, shape) if dice.chance(0.5) else None

    lengths = [dice.randint(1, time) for _ in range(batch)] if dice.chance(0.4) else None
    inputs: list[Array | None] = [x, *weights, maybe((directions, 2 * rows))]
    inputs += [None if lengths is None else ints(lengths, np.int32), maybe(state)]
    if op == "LSTM":
        inputs += [maybe(state), maybe((directions, 3 * hidden))]
    outputs = tuple(dice.chance(0.8) for _ in range(3 if op == "LSTM" else 2))
    outputs = outputs if any(outputs) else (True,) * len(outputs)
    attributes["hidden_size"] = hidden

    def want(*arrays: Array | None) -> Any:
        found = run(op, attributes, (*arrays, *[None] * (8 - len(arrays))))
        return tuple(y for y, wanted in zip(found, outputs, strict=True) if wanted)

    return Sample(op, tuple(inputs), attributes, opset, (1, 2, 3) if dice.chance(0.7) else (),
                  outputs=outputs, bound=smooth(4 * (size + hidden) * time), want=want)  # fmt: skip


def run(op: str, attributes: dict[str, Any], inputs: tuple[Array | None, ...]) -> list[Array]:
    """Return what the equations of the specification give, row by row and step by step."""
    x, w, r, b, lengths, h0, c0, p = inputs
    assert x is not None
    assert w is not None
    assert r is not None
    first = bool(attributes.get("layout"))
    if first:
        x = x.swapaxes(0, 1)
        h0, c0 = (s if s is None else s.swapaxes(0, 1) for s in (h0, c0))
    time, batch, _ = x.shape
    directions, hidden = len(w), r.shape[-1]
    y = np.zeros((time, directions, batch, hidden), x.dtype)
    last = [np.zeros((directions, batch, hidden), x.dtype) for _ in range(2)]
    functions = _functions(op, attributes, directions)
    for d in range(directions):
        backwards = d == 1 or attributes.get("direction") == "reverse"
        bias = np.zeros(2 * len(w[d]), x.dtype) if b is None else b[d]
        peepholes = np.zeros(3 * hidden, x.dtype) if p is None else p[d]
        for row in range(batch):
            count = time if lengths is None else int(lengths[row])
            states = [np.zeros(hidden, x.dtype) if s is None else s[d, row] for s in (h0, c0)]
            for t in reversed(range(count)) if backwards else range(count):
                states = CELLS[op](attributes, functions[d], x[t, row], w[d], r[d], bias,
                                   states, peepholes)  # fmt: skip
                y[t, d, row] = states[0]
            last[0][d, row], last[1][d, row] = states
    if first:
        y, last = y.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in last]
    return [y, *(last if op == "LSTM" else last[:1])]


def _functions(op: str, attributes: dict[str, Any], directions: int) -> list[list[Callable]]:
    names = attributes.get("activations", DEFAULTS[op] * directions)
    alphas = iter(attributes.get("activation_alpha", ()))
    betas = iter(attributes.get("activation_beta", ()))
    found: list[Callable[[Array], Array]] = []
    for name in names:
        formula, alpha, beta = ACTIVATIONS[name]
        a = float(np.float32(next(alphas, alpha))) if alpha is not None else 0.0
        b = float(np.float32(next(betas, beta))) if beta is not None else 0.0
        found.append(lambda v, f=formula, a=a, b=b: f(v, a, b))
    count = FUNCTIONS[op]
    return [found[i : i + count] for i in range(0, len(found), count)]


def _limit(attributes: dict[str, Any], x: Array) -> Array:
    limit = np.float32(attributes["clip"]) if "clip" in attributes else np.inf
    return np.clip(x, -limit, limit)


def _rnn(
    attributes: Any, f: Any, x: Array, w: Array, r: Array, b: Array, states: Any, _: Any
) -> Any:
    h = states[0]
    wb, rb = np.split(b, 2)
    return [f[0](_limit(attributes, w @ x + r @ h + wb + rb)), states[1]]


def _gru(
    attributes: Any, f: Any, x: Array, w: Array, r: Array, b: Array, states: Any, _: Any
) -> Any:
    h = states[0]
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    bz, br, bh, cz, cr, ch = np.split(b, 6)
    z = f[0](_limit(attributes, wz @ x + rz @ h + bz + cz))
    reset = f[0](_limit(attributes, wr @ x + rr @ h + br + cr))
    inner = (
        reset * (rh @ h + ch) if attributes.get("linear_before_reset") else rh @ (reset * h) + ch
    )
    new = f[1](_limit(attributes, wh @ x + inner + bh))
    return [(1 - z) * new + z * h, states[1]]


def _lstm(
    attributes: Any, f: Any, x: Array, w: Array, r: Array, b: Array, states: Any, p: Any
) -> Any:
    h, c = states
    wb, rb = np.split(b, 2)
    i, o, forget, cell = np.split(w @ x + r @ h + wb + rb, 4)
    pi, po, pf = np.split(p, 3)
    i = f[0](_limit(attributes, i + pi * c))
    forget = 1 - i if attributes.get("input_forget") else f[0](_limit(attributes, forget + pf * c))
    c = forget * c + i * f[1](_limit(attributes, cell))
    return [f[0](_limit(attributes, o + po * c)) * f[2](c), c]


CELLS: dict[str, Callable[..., Any]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}
MAKERS: dict[str, Make] = dict.fromkeys(GATES, layer)


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
