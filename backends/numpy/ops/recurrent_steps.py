"""Steps of recurrent layers: a few calls on small arrays, most of whose time is overhead.

Gates are the first axis of what a step computes, so that each is contiguous: numpy takes several
times as long for calls on slices as for others of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ..numerics.calls import multiplying
from ..numerics.products import recorded
from .recurrent_activations import HALF, Function, sigmoid

#: Computes the next state h from the input part of its gates, in pieces, and the last h.
Step = Callable[[Sequence[Array], Array, Array], object]


@record
class Cell:
    """The steps of some directions.

    Attributes:
        step: computes a step.
        states: what it overwrites besides h.
        pieces: gates that it reads at once of the input part [gates, directions, batch, hidden].
    """

    step: Step
    states: tuple[Array, ...] = ()
    pieces: tuple[int | slice, ...] = (slice(None),)


@record
class CellWeights:
    """What the steps of some directions share.

    Attributes:
        functions: the activations.
        r: recurrent weights, ready for right products [gates, directions, hidden, hidden].
        peepholes: from LSTM's cell to three gates [directions, 1, 3 * hidden]; or None.
        batch: number of sequences.
        columns: returns constant weights of some gates [directions, hidden, gates * hidden], with
            those of the gates `halves` times 1/2 and columns of zeros behind; None for others.
        halves: how many gates at first are given times 1/2, as their sigmoid needs them.
    """

    functions: tuple[Function, ...]
    r: Array
    peepholes: Array | None
    batch: int
    columns: Callable[[slice], Array] | None
    halves: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a state."""
        return (self.r.shape[1], self.batch, self.r.shape[2])


def _product(
    weights: CellWeights, which: slice = slice(None)
) -> tuple[Array, Callable[[Array], object]]:
    """Return some gates of state @ r, and the call that computes them for a state."""
    matrix = weights.r[which]
    gates, _, hidden = matrix.shape[:3]
    state = np.empty((1, *weights.shape), matrix.dtype)
    product = found = np.empty((gates, *weights.shape), matrix.dtype)
    if weights.columns is not None:  # all gates at once
        matrix, state = weights.columns(which), state[0]
        product = np.empty((*weights.shape[:2], matrix.shape[2]), matrix.dtype)
        by_gate = product[..., : gates * hidden].reshape(*weights.shape[:2], gates, hidden)
        found = by_gate.transpose(2, 0, 1, 3)
    call = recorded(state, matrix, product, is_fixed=weights.columns is not None)
    if isinstance(call, partial) and call.func is np.matmul:
        return found, multiplying(state, matrix, product)

    def multiply(before: Array) -> None:
        np.copyto(state, before)
        call()

    return found, multiply


def _sigmoids(weights: CellWeights) -> Function:
    """Return the first activation for gates that may be given times 1/2."""
    if not weights.halves:
        return weights.functions[0]
    half = HALF[weights.r.dtype]

    def function(x: Array, out: Array) -> None:
        np.tanh(x, out)
        np.multiply(out, half, out)
        np.add(out, half, out)

    return function


def rnn_step(weights: CellWeights) -> Cell:
    """Compute f(w x + r h + b)."""
    (f,) = weights.functions
    (product,), multiply = _product(weights)
    gate = np.empty(weights.shape, weights.r.dtype)

    def step(share: Sequence[Array], before: Array, after: Array) -> None:
        multiply(before)
        np.add(product, share[0], gate)
        f(gate, after)

    return Cell(step, pieces=(0,))


def gru_step(weights: CellWeights) -> Cell:
    """Compute (1 - z) * g(candidate) + z * h, with h reset before its product."""
    f, (_, g) = _sigmoids(weights), weights.functions
    reset = np.empty(weights.shape, weights.r.dtype)
    product, multiply = _product(weights, slice(0, 2))
    (product_of_reset,), multiply_reset = _product(weights, slice(2, 3))
    work = np.empty((3, *weights.shape), weights.r.dtype)
    gates, (z, k, new) = work[:2], work

    def step(share: Sequence[Array], before: Array, after: Array) -> None:
        of_gates, of_new = share
        multiply(before)
        np.add(product, of_gates, gates)
        f(gates, gates)
        np.multiply(k, before, reset)
        multiply_reset(reset)
        np.add(product_of_reset, of_new, new)
        g(new, new)
        np.subtract(before, new, k)
        np.multiply(k, z, k)
        np.add(k, new, after)

    return Cell(step, pieces=(slice(2), 2))


def linear_gru_step(weights: CellWeights) -> Cell:
    """Reset h's product and its bias; shares are those of the candidate, z, k and this bias."""
    f, (_, g) = _sigmoids(weights), weights.functions
    product, multiply = _product(weights)
    work = np.empty((3, *weights.shape), weights.r.dtype)
    gates, (z, k, new) = work[:2], work

    def step(share: Sequence[Array], before: Array, after: Array) -> None:
        of_new, others = share
        multiply(before)
        np.add(product, others, work)
        f(gates, gates)
        np.multiply(new, k, new)
        np.add(new, of_new, new)
        g(new, new)
        np.subtract(before, new, k)
        np.multiply(k, z, k)
        np.add(k, new, after)

    return Cell(step, pieces=(0, slice(1, None)))


def lstm_step(weights: CellWeights, input_forget: bool) -> Cell:
    """Compute c = f * c + i * g(gates), h = o * h(c); without peepholes, all gates at once."""
    f, g, h = weights.functions
    product, multiply = _product(weights)
    # The new cell and the old one are adjacent, to be multiplied by two gates at once.
    work = np.empty((5, *weights.shape), weights.r.dtype)
    (i, o, k, new, cell), gates, together = work, work[:4], work[:3]
    factors, terms = work[0:3:2], work[3:]
    parts = np.empty((2, *weights.shape), weights.r.dtype)
    (first, second), spare = parts, parts[0]
    half = HALF[work.dtype]
    # With sigmoid(x) = tanh(x / 2) / 2 + 1/2, all four gates are one hyperbolic tangent.
    are_usual = f is sigmoid and g is np.tanh

    def activate() -> None:
        if are_usual:
            if not weights.halves:
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
        np.multiply(factors, terms, parts)
        np.add(second, first, cell)

    def step(share: Sequence[Array], before: Array, after: Array) -> None:
        multiply(before)
        np.add(product, share[0], gates)
        activate()
        update()
        h(cell, spare)
        np.multiply(o, spare, after)

    def step_with_peepholes(share: Sequence[Array], before: Array, after: Array) -> None:
        multiply(before)
        np.add(product, share[0], gates)
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
        np.multiply(o, spare, after)

    if weights.peepholes is None:
        return Cell(step, (cell,))
    size = weights.shape[2]
    pi, po, pf = (weights.peepholes[..., n * size : (n + 1) * size] for n in range(3))
    return Cell(step_with_peepholes, (cell,))
