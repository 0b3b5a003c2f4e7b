"""Recurrent layers: one product for the inputs of a whole sequence, then a small one per step.

Gates are the first axis of what a step computes, so that each is contiguous: numpy takes several
times as long for calls on slices as for others of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.recurrent import GRU, LSTM, RNN
from ..engine.registry import kernel
from ..numerics.products import multiply, recorded, sums
from .movement import need_lengths

#: Writes f(x) to `out`, which may be x.
Function = Callable[[Array, Array], object]
#: The states of a layer, each [directions, batch, hidden]; the first is also its
#: result. A step overwrites them.
State = tuple[Array, ...]
#: Computes the next state from the input part of the gates [gates, directions, batch, hidden].
Step = Callable[[Array], object]


# ── activations ──────────────────────────────────────────────────────────────────────────────────


#: One half by dtype: numpy converts a Python number in each call.
_HALF = {dtype: np.array(0.5, dtype) for dtype in (float32, float64)}


def _sigmoid(x: Array, out: Array) -> None:
    half = _HALF[out.dtype]
    np.multiply(x, half, out)
    np.tanh(out, out)
    np.multiply(out, half, out)
    np.add(out, half, out)


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=out)


def _affine(x: Array, out: Array, alpha: float, beta: float) -> None:
    np.multiply(x, alpha, out)
    np.add(out, beta, out)


def _leaky_relu(x: Array, out: Array, alpha: float) -> None:
    np.copyto(out, np.where(x < 0, alpha * x, x))


def _thresholded_relu(x: Array, out: Array, alpha: float) -> None:
    np.copyto(out, np.where(x > alpha, x, 0))


def _scaled_tanh(x: Array, out: Array, alpha: float, beta: float) -> None:
    np.multiply(x, beta, out)
    np.tanh(out, out)
    np.multiply(out, alpha, out)


def _hard_sigmoid(x: Array, out: Array, alpha: float, beta: float) -> None:
    np.clip(x * alpha + beta, 0, 1, out)


def _elu(x: Array, out: Array, alpha: float) -> None:
    np.copyto(out, np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x))


def _softsign(x: Array, out: Array) -> None:
    np.divide(x, 1 + np.abs(x), out)


def _softplus(x: Array, out: Array) -> None:
    np.logaddexp(x, 0, out)


#: Function and default alpha and beta by name.
ACTIVATIONS: dict[str, tuple[Callable[..., object], tuple[float, ...]]] = {
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


@record
class _Activation:
    """A named activation with its parameters and symmetric clipping bound."""

    name: str
    parameters: tuple[float, ...]
    clip: float | None

    @property
    def function(self) -> Function:
        """The function that computes it."""
        function, _ = ACTIVATIONS[self.name]
        parameters, clip = self.parameters, self.clip
        if clip is None and not parameters:
            return function

        def clipped(x: Array, out: Array) -> None:
            if clip is not None:
                x = np.clip(x, -clip, clip, out)
            function(x, out, *parameters)

        return clipped


def _activations(
    op: LSTM | GRU | RNN, usual: tuple[str, ...], directions: int
) -> Iterator[tuple[_Activation, ...]]:
    """Yield the activations of each direction; parameters are assigned in order.

    Only the third one, which LSTM applies to its cell, is not clipped: that is how onnxruntime
    reads "the input of activations".
    """
    names = op.activations or usual * directions
    alphas, betas = iter(op.activation_alpha or ()), iter(op.activation_beta or ())
    for first in range(0, len(usual) * directions, len(usual)):
        made: list[_Activation] = []
        for name in names[first : first + len(usual)]:
            _, defaults = ACTIVATIONS[name]
            pairs = zip((alphas, betas), defaults, strict=False)
            given = tuple(next(values, value) for values, value in pairs)
            made.append(_Activation(name, given, op.clip if len(made) < 2 else None))
        yield tuple(made)


# ── sequences ────────────────────────────────────────────────────────────────────────────────────


@record
class _Directions:
    """Directions with equal activations, which are stepped together.

    Attributes:
        which: the directions.
        functions: the activations.
        r: recurrent weights, ready for right products [gates, directions, hidden, hidden].
        state: the initial state; overwritten by each step.
    """

    which: slice
    functions: tuple[Function, ...]
    r: Array
    state: State


class _Sequences:
    """The inputs of a layer in the order [time, batch, ...], and its results."""

    def __init__(
        self, op: LSTM | GRU | RNN, arrays: tuple[Array, Array, Array], lengths: Array | None
    ) -> None:
        x, w, r = arrays
        self.op, self.given = op, x.dtype
        self.dtype: DType = sums(x.dtype)
        self.x = self.wide(x.swapaxes(0, 1) if op.layout else x)
        self.w, self.r = self.wide(w), self.wide(r)
        self.time, self.batch = self.x.shape[:2]
        self.directions, rows, self.hidden = r.shape
        self.gates = rows // max(1, self.hidden)
        if lengths is not None:
            need_lengths(lengths, self.time)
        self.lengths = None if lengths is None or (lengths == self.time).all() else lengths
        self.y = np.zeros((self.time, self.directions, self.batch, self.hidden), self.dtype)
        self.last: list[State] = []

    def wide(self, x: Array) -> Array:
        """Return an input in the dtype of the sums."""
        return x.astype(self.dtype, copy=False)

    def layers(
        self, usual: tuple[str, ...], states: Sequence[Array | None]
    ) -> Iterator[_Directions]:
        """Yield the directions in groups that are stepped together.

        Args:
            usual: default activations.
            states: initial states, zeros if None.
        """
        first = 0
        for found, group in groupby(_activations(self.op, usual, self.directions)):
            which = slice(first, first + len(list(group)))
            first = which.stop
            shape = (which.stop - which.start, self.batch, self.hidden)
            state = tuple(
                np.zeros(shape, self.dtype)
                if s is None
                else (s.swapaxes(0, 1) if self.op.layout else s)[which].astype(self.dtype, "C")
                for s in states
            )
            functions = tuple(each.function for each in found)
            r = self.r[which].reshape(shape[0], self.gates, self.hidden, self.hidden)
            yield _Directions(which, functions, r.transpose(1, 0, 3, 2), state)

    def biases(self, b: Array | None) -> tuple[Array, Array]:
        """Return the biases of inputs and states [directions, gates * hidden]."""
        size = self.w.shape[1]
        shape = (self.directions, 2 * size)
        both = np.zeros(shape, self.dtype) if b is None else self.wide(b)
        return both[:, :size], both[:, size:]

    def run(self, layer: _Directions, bias: Array, step: Step) -> None:
        """Run some directions.

        Args:
            layer: the directions.
            bias: added to the input part of the gates [all directions, gates * hidden].
            step: computes one step of these directions.
        """
        which, state = layer.which, layer.state
        y = self.y[:, which]
        for t, share in enumerate(self._shares(which, bias)):
            if self.lengths is None:
                step(share)
                np.copyto(y[t], state[0])
                continue
            before = [s.copy() for s in state]
            step(share)
            alive = (t < self.lengths)[:, np.newaxis]
            np.copyto(y[t], state[0], where=alive)
            for new, old in zip(state, before, strict=True):
                np.copyto(new, old, where=~alive)
        for direction in range(which.start, which.stop):
            if self._is_backward(direction):
                self.y[:, direction] = self._reversed(self.y[:, direction])
        self.last.append(state)

    def _shares(self, which: slice, bias: Array) -> Array:
        """Return the input part of the gates [time, gates, directions, batch, hidden]."""
        count = which.stop - which.start
        x = self.x.reshape(self.time * self.batch, self.x.shape[2])
        found = np.empty((self.time, self.gates, count, self.batch, self.hidden), self.dtype)
        for i in range(which.start, which.stop):
            share = multiply(x, self.w[i].T)
            np.add(share, bias[i], out=share)
            share = share.reshape(self.time, self.batch, self.gates, self.hidden)
            share = self._reversed(share) if self._is_backward(i) else share
            np.copyto(found[:, :, i - which.start], share.swapaxes(1, 2))
        return found

    def _is_backward(self, direction: int) -> bool:
        return direction == 1 or self.op.direction == "reverse"

    def _reversed(self, x: Array) -> Array:
        """Return [time, batch, ..] reversed within each sequence."""
        if self.lengths is None:
            return x[::-1].copy()
        steps, ends = np.arange(self.time)[:, np.newaxis], self.lengths
        order = np.where(steps < ends, ends - 1 - steps, steps)
        return np.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), 0)

    def results(self) -> tuple[Array, ...]:
        """Return y and the last states in the requested layout."""
        y, states = self.y, [np.concatenate(parts) for parts in zip(*self.last, strict=True)]
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
    of_input, of_state = sequences.biases(b)
    for layer in sequences.layers(("Tanh",), [initial_h]):
        sequences.run(layer, of_input + of_state, _rnn_step(layer))
    return sequences.results()


def _product(state: Array, r: Array) -> tuple[Array, Callable[[], object]]:
    """Return the buffer of the gates of state @ r, and the call that computes it."""
    found = np.empty((len(r), *state.shape), r.dtype)
    return found, recorded(state[np.newaxis], r, found, is_fixed=True)


def _rnn_step(layer: _Directions) -> Step:
    (h,), (f,) = layer.state, layer.functions
    (gate,), multiply = _product(h, layer.r)

    def step(share: Array) -> None:
        multiply()
        np.add(gate, share[0], gate)
        f(gate, h)

    return step


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
    of_input, of_state = sequences.biases(b)
    bias = of_input + of_state
    if op.linear_before_reset:  # the recurrent bias is reset together with the product
        bias[..., 2 * sequences.hidden :] = of_input[..., 2 * sequences.hidden :]
    for layer in sequences.layers(("Sigmoid", "Tanh"), [initial_h]):
        if op.linear_before_reset:
            step = _gru_linear_step(layer, of_state[layer.which, 2 * sequences.hidden :])
        else:
            step = _gru_step(layer)
        sequences.run(layer, bias, step)
    return sequences.results()


def _gru_step(layer: _Directions) -> Step:
    """Reset the state before its product."""
    (h,), (f, g) = layer.state, layer.functions
    reset = np.empty_like(h)
    gates, multiply = _product(h, layer.r[:2])
    (new,), multiply_reset = _product(reset, layer.r[2:])
    z, k = gates

    def step(share: Array) -> None:
        multiply()
        np.add(gates, share[:2], gates)
        f(gates, gates)
        np.multiply(k, h, reset)
        multiply_reset()
        np.add(new, share[2], new)
        g(new, new)
        _mix(h, new, z)

    return step


def _gru_linear_step(layer: _Directions, bias: Array) -> Step:
    """Reset the state's product and its bias [directions, hidden]."""
    (h,), (f, g) = layer.state, layer.functions
    shift = np.empty_like(h)
    np.copyto(shift, bias[:, np.newaxis])
    found, multiply = _product(h, layer.r)
    gates, (z, k, new) = found[:2], found

    def step(share: Array) -> None:
        multiply()
        np.add(gates, share[:2], gates)
        f(gates, gates)
        np.add(new, shift, new)
        np.multiply(new, k, new)
        np.add(new, share[2], new)
        g(new, new)
        _mix(h, new, z)

    return step


def _mix(h: Array, new: Array, z: Array) -> None:
    """Compute new + z * (h - new) into h."""
    np.subtract(h, new, h)
    np.multiply(h, z, h)
    np.add(h, new, h)


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
    of_input, of_state = sequences.biases(b)
    for layer in sequences.layers(("Sigmoid", "Tanh", "Tanh"), [initial_h, initial_c]):
        peepholes = None if p is None else sequences.wide(p)[layer.which, np.newaxis]
        step = _lstm_step(layer, peepholes, bool(op.input_forget))
        sequences.run(layer, of_input + of_state, step)
    return sequences.results()


def _lstm_step(layer: _Directions, peepholes: Array | None, input_forget: bool) -> Step:
    """Compute three gates and the new cell; without peepholes, all gates at once.

    Args:
        layer: the directions.
        peepholes: from the cell to input, output and forget gate [directions, 1, 3 * hidden].
        input_forget: whether the forget gate is 1 minus the input gate.
    """
    (hidden, cell), (f, g, h) = layer.state, layer.functions
    size, spare = cell.shape[-1], np.empty_like(cell)
    gates, multiply = _product(hidden, layer.r)
    (i, o, k, new), together = gates, gates[:3]
    # With sigmoid(x) = tanh(x / 2) / 2 + 1/2, all four gates are one hyperbolic tangent.
    are_usual = f is _sigmoid and g is np.tanh
    half = _HALF[gates.dtype]

    def activate() -> None:
        if are_usual:
            np.multiply(together, half, together)
            np.tanh(gates, gates)
            np.multiply(together, half, together)
            np.add(together, half, together)
        else:
            f(together, together)
            g(new, new)

    def update() -> None:
        """Compute the new cell from the gates."""
        if input_forget:
            np.subtract(1, i, k)
        np.multiply(cell, k, cell)
        np.multiply(i, new, spare)
        np.add(cell, spare, cell)

    def step(share: Array) -> None:
        multiply()
        np.add(gates, share, gates)
        activate()
        update()
        h(cell, spare)
        np.multiply(o, spare, hidden)

    def step_with_peepholes(share: Array) -> None:
        multiply()
        np.add(gates, share, gates)
        for gate, weight in ((i, pi), (k, pf)):
            np.multiply(weight, cell, spare)
            np.add(gate, spare, gate)
            f(gate, gate)
        g(new, new)
        update()
        np.multiply(po, cell, spare)
        np.add(o, spare, o)
        f(o, o)
        h(cell, spare)
        np.multiply(o, spare, hidden)

    if peepholes is None:
        return step
    pi, po, pf = (peepholes[..., n * size : (n + 1) * size] for n in range(3))
    return step_with_peepholes
