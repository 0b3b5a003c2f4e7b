"""Recurrent layers: one product for the inputs of a whole sequence, then one small one a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ....runtime.ops.recurrent import GRU, LSTM, RNN
from ..engine.registry import kernel
from ..numerics.products import multiply, recorded, sums
from .movement import need_lengths

Function = Callable[[Array], Array]
#: What a layer carries from step to step, each [batch, hidden]; the first is also its result.
State = tuple[Array, ...]
#: Computes the next state from the input's share of the gates [batch, gates * hidden].
Step = Callable[[Array, State], State]


# ── activations ──────────────────────────────────────────────────────────────────────────────────


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _affine(x: Array, alpha: float, beta: float) -> Array:
    return alpha * x + beta


def _leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * x, x)


def _thresholded_relu(x: Array, alpha: float) -> Array:
    return np.where(x > alpha, x, 0)


def _scaled_tanh(x: Array, alpha: float, beta: float) -> Array:
    return alpha * np.tanh(beta * x)


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _softsign(x: Array) -> Array:
    return x / (1 + np.abs(x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


#: By name: the function and the defaults of its alpha and beta, as far as it has them.
ACTIVATIONS: dict[str, tuple[Callable[..., Array], tuple[float, ...]]] = {
    "Relu": (_relu, ()),
    "Tanh": (np.tanh, ()),
    "Sigmoid": (_sigmoid, ()),
    "Affine": (_affine, (1.0, 0.0)),
    "LeakyRelu": (_leaky_relu, (0.01,)),
    "ThresholdedRelu": (_thresholded_relu, (1.0,)),
    "ScaledTanh": (_scaled_tanh, (1.0, 1.0)),
    "HardSigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "Elu": (_elu, (1.0,)),
    "Softsign": (_softsign, ()),
    "Softplus": (_softplus, ()),
}


def _functions(
    op: LSTM | GRU | RNN, usual: tuple[str, ...], directions: int
) -> Iterator[tuple[Function, ...]]:
    """Yield the activations of each direction; parameters go to those that take one, in order.

    The third one, which LSTM applies to its cell, is the only one that does not clip: that is how
    onnxruntime reads "the input of activations".
    """
    names = op.activations or usual * directions
    alphas, betas = iter(op.activation_alpha or ()), iter(op.activation_beta or ())
    for first in range(0, len(usual) * directions, len(usual)):
        made: list[Function] = []
        for name in names[first : first + len(usual)]:
            function, defaults = ACTIVATIONS[name]
            pairs = zip((alphas, betas), defaults, strict=False)
            given = tuple(next(values, value) for values, value in pairs)
            made.append(_activation(function, given, op.clip if len(made) < 2 else None))
        yield tuple(made)


def _activation(
    function: Callable[..., Array], parameters: tuple[float, ...], clip: float | None
) -> Function:
    if clip is None:
        return lambda x: function(x, *parameters)
    return lambda x: function(np.clip(x, -clip, clip), *parameters)


# ── sequences ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights of one direction, ready for products from the right.

    Attributes:
        w: [input, gates * hidden].
        r: [hidden, gates * hidden].
        wb: [gates * hidden], the bias that belongs to `w`.
        rb: the same, to `r`.
    """

    w: Array
    r: Array
    wb: Array
    rb: Array


class _Sequences:
    """The inputs of a layer in the order [time, batch, ...], and its results as they come."""

    def __init__(
        self, op: LSTM | GRU | RNN, arrays: tuple[Array, Array, Array], lengths: Array | None
    ) -> None:
        x, w, r = arrays
        self.op, self.given = op, x.dtype
        self.dtype: DType = sums(x.dtype)
        self.x = self.wide(x.swapaxes(0, 1) if op.layout else x)
        self.w, self.r = self.wide(w), self.wide(r)
        self.time, self.batch = self.x.shape[:2]
        self.directions, _, self.hidden = r.shape
        if lengths is not None:
            need_lengths(lengths, self.time)
        self.lengths = None if lengths is None or (lengths == self.time).all() else lengths
        self.y = np.zeros((self.time, self.directions, self.batch, self.hidden), self.dtype)
        self.last: list[State] = []

    def wide(self, x: Array) -> Array:
        """Return an input in the dtype of the sums."""
        return x.astype(self.dtype, copy=False)

    def initial(self, states: Sequence[Array | None]) -> Iterator[State]:
        """Yield the state that each direction begins with."""
        shape = (self.directions, self.batch, self.hidden)
        zeros = np.zeros(shape, self.dtype)
        ordered = [
            zeros if s is None else self.wide(s.swapaxes(0, 1) if self.op.layout else s)
            for s in states
        ]
        return zip(*ordered, strict=True)

    def weights(self, b: Array | None) -> Iterator[_Weights]:
        """Yield the weights of each direction."""
        size = self.w.shape[1]
        bias = np.zeros((self.directions, 2 * size), self.dtype) if b is None else self.wide(b)
        for w, r, both in zip(self.w, self.r, bias, strict=True):
            yield _Weights(w.T, r.T, both[:size], both[size:])

    def run(self, projected: Callable[[Array], Array], step: Step, state: State) -> None:
        """Run the next direction.

        Args:
            projected: computes the input's share of the gates of all steps at once.
            step: one step.
            state: what to begin with.
        """
        direction = len(self.last)
        backward = direction == 1 or self.op.direction == "reverse"
        order = self._reversal() if backward else None
        x = self.x if order is None else np.take_along_axis(self.x, order, 0)
        shares = projected(x.reshape(self.time * self.batch, x.shape[2]))
        shares = shares.reshape(self.time, self.batch, self.w.shape[1])
        y = np.zeros((self.time, self.batch, self.hidden), self.dtype)
        for t, share in enumerate(shares):
            new = step(share, state)
            if self.lengths is None:
                y[t], state = new[0], new
                continue
            alive = (t < self.lengths)[:, np.newaxis]
            np.copyto(y[t], new[0], where=alive)
            state = tuple(np.where(alive, a, b) for a, b in zip(new, state, strict=True))
        self.y[:, direction] = y if order is None else np.take_along_axis(y, order, 0)
        self.last.append(state)

    def _reversal(self) -> Array:
        """Return the step [time, batch, 1] to take at each one, from each sequence's own end."""
        steps = np.arange(self.time)[:, np.newaxis]
        ends = np.full(self.batch, self.time) if self.lengths is None else self.lengths
        return np.where(steps < ends, ends - 1 - steps, steps)[..., np.newaxis]

    def results(self) -> tuple[Array, ...]:
        """Return y and the last states, in the layout that was asked for."""
        y, states = self.y, [np.stack(parts) for parts in zip(*self.last, strict=True)]
        if self.op.layout:
            y, states = y.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in states]
        return tuple(a.astype(self.given) for a in (y, *states))


# ── layers ───────────────────────────────────────────────────────────────────────────────────────


@kernel(RNN)
def rnn(
    op: RNN,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
) -> tuple[Array, ...]:
    """Run every step as f(w x + r h + b)."""
    sequences = _Sequences(op, (x, w, r), sequence_lens)
    functions = _functions(op, ("Tanh",), sequences.directions)
    states = sequences.initial([initial_h])
    for weights, state, (f,) in zip(sequences.weights(b), states, functions, strict=True):
        product = _product(weights.r, sequences.batch)
        sequences.run(_projection(weights), _rnn_step(product, f), state)
    return sequences.results()


def _product(r: Array, rows: int) -> Function:
    """Return what multiplies states, that many rows, by `r`: all arrays are made here, once.

    What it returns is overwritten by the next call.
    """
    state, found = (np.empty((rows, size), r.dtype) for size in r.shape)
    call = recorded(state, r, found, is_fixed=True)

    def product(h: Array) -> Array:
        np.copyto(state, h)
        call()
        return found

    return product


def _projection(weights: _Weights) -> Callable[[Array], Array]:
    bias = weights.wb + weights.rb
    return lambda x: multiply(x, weights.w) + bias


def _rnn_step(product: Function, f: Function) -> Step:
    return lambda share, state: (f(share + product(state[0])),)


@kernel(GRU)
def gru(
    op: GRU,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
) -> tuple[Array, ...]:
    """Run every step as (1 - z) * g(candidate) + z * h."""
    sequences = _Sequences(op, (x, w, r), sequence_lens)
    functions = _functions(op, ("Sigmoid", "Tanh"), sequences.directions)
    states = sequences.initial([initial_h])
    for weights, state, (f, g) in zip(sequences.weights(b), states, functions, strict=True):
        if op.linear_before_reset:
            step = _gru_linear_step(weights, sequences.batch, f, g)
            sequences.run(lambda x, ws=weights: multiply(x, ws.w) + ws.wb, step, state)
        else:
            sequences.run(_projection(weights), _gru_step(weights.r, sequences.batch, f, g), state)
    return sequences.results()


def _gru_step(r: Array, rows: int, f: Function, g: Function) -> Step:
    """Reset the state before its product."""
    hidden = len(r)
    gates, candidate = (_product(part, rows) for part in (r[:, : 2 * hidden], r[:, 2 * hidden :]))

    def step(share: Array, state: State) -> State:
        (h,) = state
        zk = f(share[:, : 2 * hidden] + gates(h))
        z, k = zk[:, :hidden], zk[:, hidden:]
        new = g(share[:, 2 * hidden :] + candidate(k * h))
        return (new + z * (h - new),)

    return step


def _gru_linear_step(weights: _Weights, rows: int, f: Function, g: Function) -> Step:
    """Reset the state after its product."""
    hidden, product = len(weights.r), _product(weights.r, rows)

    def step(share: Array, state: State) -> State:
        (h,) = state
        recurrent = product(h) + weights.rb
        zk = f(share[:, : 2 * hidden] + recurrent[:, : 2 * hidden])
        z, k = zk[:, :hidden], zk[:, hidden:]
        new = g(share[:, 2 * hidden :] + k * recurrent[:, 2 * hidden :])
        return (new + z * (h - new),)

    return step


@kernel(LSTM)
def lstm(
    op: LSTM,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
) -> tuple[Array, ...]:
    """Run every step as c = f * c + i * g(gates), h = o * h(c)."""
    sequences = _Sequences(op, (x, w, r), sequence_lens)
    functions = _functions(op, ("Sigmoid", "Tanh", "Tanh"), sequences.directions)
    states = sequences.initial([initial_h, initial_c])
    peepholes = [None] * sequences.directions if p is None else list(sequences.wide(p))
    each = zip(sequences.weights(b), states, functions, peepholes, strict=True)
    for weights, state, fgh, peephole in each:
        product = _product(weights.r, sequences.batch)
        step = _lstm_step(product, fgh, peephole, bool(op.input_forget))
        sequences.run(_projection(weights), step, state)
    return sequences.results()


def _lstm_step(
    product: Function,
    functions: tuple[Function, ...],
    peepholes: Array | None,
    input_forget: bool,
) -> Step:
    """Of three gates and the new cell; without peepholes, the gates are all made at once."""
    f, g, h = functions

    def step(share: Array, state: State) -> State:
        hidden, cell = state
        gates = share + product(hidden)
        size = cell.shape[1]
        made = f(gates[:, : 3 * size])
        i, o = made[:, :size], made[:, size : 2 * size]
        k = 1 - i if input_forget else made[:, 2 * size :]
        cell = k * cell + i * g(gates[:, 3 * size :])
        return o * h(cell), cell

    def step_with_peepholes(share: Array, state: State) -> State:
        hidden, cell = state
        pi, po, pf = np.split(np.asarray(peepholes), 3)
        i, o, k, c = np.split(share + product(hidden), 4, 1)
        i = f(i + pi * cell)
        k = 1 - i if input_forget else f(k + pf * cell)
        cell = k * cell + i * g(c)
        return f(o + po * cell) * h(cell), cell

    return step if peepholes is None else step_with_peepholes
