"""Recurrent layers: one product for the inputs of a whole sequence, then a small one per step.

In a plan, a layer is prepared once for its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import prod
from typing import TypeVar

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ....runtime.ops.recurrent import GRU, LSTM, RNN
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.apply import record_kernel
from ..engine.chain import Chain
from ..engine.registry import KERNELS, builder, kernel
from ..engine.step import Bound, HostStep, ScratchLayout, Tape
from ..numerics.products import COLUMNS, is_small, recorded, sums
from .movement import need_lengths
from .recurrent_activations import HALF, Function, activations, sigmoid
from .recurrent_steps import Cell, CellWeights, Step, gru_step, linear_gru_step, lstm_step, rnn_step

T = TypeVar("T")

#: Minimum elements of a gate for which products of several sequences have all gates at once: calls
#: on slices of fewer take longer.
FEWEST = 32
#: Maximum weights for which a vector's product takes less time by columns: others are not cached.
LARGEST = 1 << 19
#: Default activations.
USUAL = {RNN: ("Tanh",), GRU: ("Sigmoid", "Tanh"), LSTM: ("Sigmoid", "Tanh", "Tanh")}


@record
class _Layer:
    """Directions with equal activations, which are stepped together.

    Attributes:
        which: the directions.
        step: computes the next h [directions, batch, hidden].
        halves: how many gates at first are given times 1/2.
        states: h at first, and the other states, which steps overwrite.
        given: what these are in the beginning; None for zeros.
        shares: the input part of the gates [time, gates, directions, batch, hidden].
        y: every h in the order of the steps [time, directions, batch, hidden].
        steps: for each step the pieces of its share that it reads (see `Cell`), and its h.
        is_direct: whether `y` is a view of the result.
    """

    which: slice
    step: Step
    halves: int
    states: tuple[Array, ...]
    given: tuple[Array | None, ...]
    shares: Array
    y: Array
    steps: Sequence[tuple[Sequence[Array], Array]]
    is_direct: bool


class _Sequences:
    """A layer on fixed arrays: a run computes results from what is in them.

    Args:
        op: the operator.
        inputs: its inputs, floats in the dtype of the sums.
        scratch: returns an array for what a run leaves behind.
        y: where the first result goes; a new array if None, or if the layout is another one.
        pack: returns constant recurrent weights of some directions and gates, those of so many
            gates times 1/2 (see `CellWeights`); None if weights or biases are not constant.
    """

    def __init__(
        self,
        op: LSTM | GRU | RNN,
        inputs: Sequence[Array | None],
        scratch: Callable[[tuple[int, ...], DType], Array],
        y: Array | None = None,
        pack: Callable[[slice, int, slice], Array] | None = None,
    ) -> None:
        x, w, r, b, lengths, *states = (*inputs, *(None,) * (8 - len(inputs)))
        x, w, r = _needed(x), _needed(w), _needed(r)
        self.op, self.w, self.r, self.b, self.lengths, self.pack = op, w, r, b, lengths, pack
        self.x = x.swapaxes(0, 1) if op.layout else x
        self.time, self.batch, size = self.x.shape
        self.directions, rows, self.hidden = r.shape
        self.gates = op.gates
        shape = (self.time, self.directions, self.batch, self.hidden)
        self.shape = shape
        self.y = scratch(shape, x.dtype) if y is None or op.layout else y
        shape = (self.time * self.batch, size)
        self.is_plain = self.x.flags.c_contiguous
        self.rows = self.x.reshape(shape) if self.is_plain else scratch(shape, x.dtype)
        self.sums = scratch((self.directions, len(self.rows), rows), x.dtype)
        self.bias = np.empty((self.directions, self.gates, 1, self.hidden), x.dtype)
        self.products = [
            recorded(self.rows, each.T, total, is_fixed=pack is not None)
            for each, total in zip(w, self.sums, strict=True)
        ]
        count = 2 if isinstance(op, LSTM) else 1
        given = [s if s is None or not op.layout else s.swapaxes(0, 1) for s in states[:count]]
        self.layers = list(self._layers(given, states[2], scratch))
        if pack is not None:
            self._add_biases()

    @property
    def is_linear(self) -> bool:
        """Whether products of h are reset, with their bias."""
        return isinstance(self.op, GRU) and bool(self.op.linear_before_reset)

    def _layers(
        self,
        states: Sequence[Array | None],
        peepholes: Array | None,
        scratch: Callable[[tuple[int, ...], DType], Array],
    ) -> Iterator[_Layer]:
        first, dtype = 0, self.r.dtype
        for found, group in groupby(activations(self.op, USUAL[type(self.op)], self.directions)):
            which = slice(first, first + len(list(group)))
            first, count = which.stop, which.stop - which.start
            functions = tuple(each.function for each in found)
            of_gate = (count, self.gates, self.hidden, self.hidden)
            weights = CellWeights(
                functions,
                self.r[which].reshape(of_gate).transpose(1, 0, 3, 2),
                None if peepholes is None else peepholes[which, np.newaxis],
                self.batch,
                *self._columns(which, functions, peepholes is None),
            )
            cell = self._step(weights)
            beginning = tuple(None if s is None else s[which] for s in states)
            h = np.zeros(weights.shape, dtype)
            shares = scratch((self.time, self.gates + self.is_linear, *weights.shape), dtype)
            # Steps write their results where these go, unless some are in another order.
            y, is_direct = self.y[:, which], self.lengths is None and count == 1
            if not is_direct:
                y = scratch((self.time, *weights.shape), dtype)
            elif self._is_backward(which.start):
                y = y[::-1]
            pairs = zip(shares, y, strict=True)
            steps = [([share[at] for at in cell.pieces], after) for share, after in pairs]
            every = (h, *cell.states)
            yield _Layer(
                which, cell.step, weights.halves, every, beginning, shares, y, steps, is_direct
            )

    def _columns(
        self, which: slice, functions: tuple[Function, ...], is_plain: bool
    ) -> tuple[Callable[[slice], Array] | None, int]:
        """Return what gives columns of constant weights, and how many gates are halved in them."""
        if self.pack is None or not self._is_one_product():
            return None, 0
        is_usual = is_plain and functions[:2] == (sigmoid, np.tanh)
        halves = self.gates - 1 if is_usual else 0
        return partial(self.pack, which, halves), halves

    def _is_one_product(self) -> bool:
        """Whether a copy of constant weights pays, by which a product has all gates at once."""
        rows = self.gates * self.hidden
        if self.batch == 1:
            return rows * self.hidden <= LARGEST
        each, together = (is_small(self.batch, self.hidden, n) for n in (self.hidden, rows))
        return self.hidden >= FEWEST and each == together

    def _step(self, weights: CellWeights) -> Cell:
        if isinstance(self.op, LSTM):
            return lstm_step(weights, bool(self.op.input_forget))
        if isinstance(self.op, RNN):
            return rnn_step(weights)
        return linear_gru_step(weights) if self.is_linear else gru_step(weights)

    def _add_biases(self) -> None:
        """Add those of inputs and states, except for that which is reset."""
        self.bias.fill(0)
        if self.b is None:
            return
        of_input, of_state = self._biases(self.b).swapaxes(0, 1)
        np.add(of_input, of_state, self.bias)
        if self.is_linear:
            np.copyto(self.bias[:, 2], of_input[:, 2])

    def _biases(self, b: Array) -> Array:
        return b.reshape(self.directions, 2, self.gates, 1, self.hidden)

    def _is_backward(self, direction: int) -> bool:
        return direction == 1 or self.op.direction == "reverse"

    def run(self) -> None:
        """Compute the results."""
        lengths = None
        if self.lengths is not None:
            need_lengths(self.lengths, self.time)
            lengths = None if (self.lengths == self.time).all() else self.lengths
        if self.pack is None:
            self._add_biases()
        if not self.is_plain:
            np.copyto(self.rows.reshape(self.x.shape), self.x)
        for multiply in self.products:
            multiply()
        for layer in self.layers:
            self._start(layer, lengths)
            if lengths is None:
                before = layer.states[0]
                for share, after in layer.steps:
                    layer.step(share, before, after)
                    before = after
            else:
                self._run_some(layer, lengths)
            self._finish(layer, lengths)

    def _start(self, layer: _Layer, lengths: Array | None) -> None:
        """Fill the shares and the states."""
        for i in range(layer.which.start, layer.which.stop):
            total = self.sums[i].reshape(self.time, self.batch, self.gates, self.hidden)
            total = self._reversed(total, lengths) if self._is_backward(i) else total
            source, bias = total.swapaxes(1, 2), self.bias[i]
            target = layer.shares[:, :, i - layer.which.start]
            if self.is_linear:  # the candidate's is first, to be added later than the others
                np.add(source[:, :2], bias[:2], target[:, 1:3])
                np.add(source[:, 2], bias[2], target[:, 0])
                np.copyto(target[:, 3], 0 if self.b is None else self._biases(self.b)[i, 1, 2])
            else:
                np.add(source, bias, target)
        if layer.halves:
            some = layer.shares[:, self.is_linear :][:, : layer.halves]
            np.multiply(some, HALF[some.dtype], some)
        for state, given in zip(layer.states, layer.given, strict=True):
            if given is None:
                state.fill(0)
            else:
                np.copyto(state, given)

    def _run_some(self, layer: _Layer, lengths: Array) -> None:
        """Run the steps of sequences of different lengths: those that have ended keep states."""
        h, *others = layer.states
        after = np.empty_like(h)
        for t, (share, _) in enumerate(layer.steps):
            old = [state.copy() for state in others]
            layer.step(share, h, after)
            alive = (t < lengths)[:, np.newaxis]
            layer.y[t].fill(0)
            for target in (layer.y[t], h):
                np.copyto(target, after, where=alive)
            for state, kept in zip(others, old, strict=True):
                np.copyto(state, kept, where=~alive)

    def _finish(self, layer: _Layer, lengths: Array | None) -> None:
        """Put what the steps left in its place."""
        if lengths is None and self.time:
            np.copyto(layer.states[0], layer.y[-1])
        if layer.is_direct:
            return
        for i in range(layer.which.start, layer.which.stop):
            found = layer.y[:, i - layer.which.start]
            found = self._reversed(found, lengths) if self._is_backward(i) else found
            np.copyto(self.y[:, i], found)

    def _reversed(self, x: Array, lengths: Array | None) -> Array:
        """Return [time, batch, ..] reversed within each sequence."""
        if lengths is None:
            return x[::-1]
        steps = np.arange(self.time)[:, np.newaxis]
        order = np.where(steps < lengths, lengths - 1 - steps, steps)
        return np.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), 0)

    def leave(self, y: Array | None, *states: Array | None) -> None:
        """Copy y and the last states into arrays in the requested layout, unless they are there."""
        order = (2, 0, 1, 3) if self.op.layout else (0, 1, 2, 3)
        if y is not None and y is not self.y:
            np.copyto(y, self.y.transpose(order), casting="unsafe")
        for i, target in enumerate(states):
            if target is not None:
                place = target.swapaxes(0, 1) if self.op.layout else target
                for layer in self.layers:
                    np.copyto(place[layer.which], layer.states[i], casting="unsafe")


@kernel(RNN, GRU, LSTM)
def recurrent(op: LSTM | GRU | RNN, *inputs: Array | None) -> tuple[Array, ...]:
    """Return y and the last states."""
    given = _needed(inputs[0]).dtype
    wide = [x.astype(sums(given)) if x is not None and x.dtype == given else x for x in inputs]
    layer = _Sequences(op, wide, np.empty)
    layer.run()
    shape, ends = layer.shape, layer.shape[1:]
    if op.layout:
        shape, ends = (shape[2], *shape[:2], shape[3]), (ends[1], ends[0], ends[2])
    count = len(layer.layers[0].states)
    found = tuple(np.empty(each, given) for each in (shape, *(ends,) * count))
    layer.leave(*found)
    return found


@builder(RNN, GRU, LSTM)
def recurrent_step(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Prepare the layer when the step is bound; half floats are converted in every run."""
    node, op = chain.head, chain.head.op
    assert isinstance(op, RNN | GRU | LSTM)
    x, w, r, *rest = node.inputs
    x, w, r = _needed(x), _needed(w), _needed(r)
    dtype = x.tensor.dtype
    if sums(dtype) != dtype:
        plain = KERNELS[type(op)]
        return HostStep(node.kind, site, lambda bound: [record_kernel(node, plain, bound)])
    is_fixed = all(v is None or v.is_constant for v in (w, r, *rest[:1], *rest[4:]))
    directions, each = w.tensor.dims[0], prod(x.tensor.dims[:2]) * r.tensor.dims[2]
    rows, most = directions * each, ScratchLayout()
    apart = (each * (op.gates + 1), each) * directions  # of layers of one direction
    for count in (x.tensor.size, rows * op.gates, rows * op.layout, *apart):
        most.take(count, dtype)

    def record(bound: Bound) -> list[Tape]:
        used = ScratchLayout()

        def scratch(shape: tuple[int, ...], dtype: DType) -> Array:
            return bound.scratch(used.take(prod(shape), dtype), shape)

        def pack(which: slice, halves: int, gates: slice) -> Array:
            layout = ("columns of gates", which.start, which.stop, halves, gates.start, gates.stop)
            return bound.packed((r,), layout, partial(_columns, op.gates, which, halves, gates))

        arrays = [bound.get(v) for v in node.inputs]
        targets = [bound.get(v) for v in node.outputs]
        layer = _Sequences(op, arrays, scratch, targets[0], pack if is_fixed else None)
        return [[layer.run, partial(layer.leave, *targets)]]

    return HostStep(node.kind, site, record, own=most.nbytes)


def _columns(count: int, which: slice, halves: int, gates: slice, r: Array) -> Array:
    """Return the weights of some directions and gates; see `CellWeights.columns`."""
    directions, rows, hidden = r[which].shape
    found = r[which].reshape(directions, count, rows // count, hidden).copy()
    np.multiply(found[:, :halves], HALF[r.dtype], found[:, :halves])
    columns = found[:, gates].reshape(directions, -1, hidden).swapaxes(1, 2)
    missing = -columns.shape[2] % COLUMNS
    return np.ascontiguousarray(np.pad(columns, ((0, 0), (0, 0), (0, missing))))


def _needed(x: T | None) -> T:
    assert x is not None
    return x
