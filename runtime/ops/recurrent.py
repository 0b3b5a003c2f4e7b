"""Recurrent layers: one step per position, with weights shared by all positions.

Weights are stacked by direction and, within one, by gate: w [directions, gates * hidden, input], r
[directions, gates * hidden, hidden], b [directions, 2 * gates * hidden] (that of w, then that of
r). `layout` 1 puts the batch first in x, y and the states only. Sequences shorter than x
(`sequence_lens`) give zeros in y; the reverse direction starts at each sequence's own end.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.op import Op, op, op_base
from ..ir.types import Dim, Shape, TensorType
from .shapes import (
    dim,
    need_choice,
    need_rank,
    need_vector,
    quotient,
    same_dim,
    same_dtype,
    same_shape,
    shape_text,
    times,
)

ACTIVATIONS = (
    "Relu",
    "Tanh",
    "Sigmoid",
    "Affine",
    "LeakyRelu",
    "ThresholdedRelu",
    "ScaledTanh",
    "HardSigmoid",
    "Elu",
    "Softsign",
    "Softplus",
)


@op_base
class RecurrentOp(Op):
    """The attributes and the shape rule of recurrent layers.

    Attributes:
        gates: number of gates, whose weights are stacked.
        functions: number of activations of one direction.
    """

    dense = True
    outputs: ClassVar[tuple[int, int | None]] = (0, 2)
    gates: ClassVar[int]
    functions: ClassVar[int]
    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    activations: tuple[str, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType | None = None,
        sequence_lens: TensorType | None = None,
        initial_h: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        return self._results(x, w, r, b, sequence_lens, {"initial_h": initial_h})

    @property
    def directions(self) -> int:
        """Number of directions, 1 or 2."""
        return 2 if self.direction == "bidirectional" else 1

    def _check(self) -> None:
        need_choice(self.direction, "direction", "forward", "reverse", "bidirectional")
        if self.layout not in (0, 1):
            raise ShapeError(f"layout={self.layout}; ONNX has 0 and 1")
        for name in self.activations or ():
            need_choice(name, "activations", *ACTIVATIONS)
        wanted = self.functions * self.directions
        if self.activations is not None and len(self.activations) < wanted:
            raise ShapeError(
                f"activations={self.activations}; {type(self).__name__} needs {wanted}"
            )

    def _results(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType | None,
        sequence_lens: TensorType | None,
        states: dict[str, TensorType | None],
    ) -> tuple[TensorType, TensorType]:
        """Check the inputs, and return the types of the results and of one state."""
        self._check()
        same_dtype(x, w, r, b, *states.values())
        for name, type_ in (("x", x), ("w", w), ("r", r), *states.items()):
            need_rank(type_, 3, name)
        need_rank(b, 2, "b")
        for name, type_ in (("w", w), ("r", r), ("b", b)):
            what = f"first axis of {name} {type_} and number of directions"
            same_dim(dim(type_, 0), self.directions, what)
        hidden = self._hidden(w, r, b)
        same_dim(dim(x, 2), dim(w, 2), f"input sizes of x {x} and w {w}")
        length, batch = (dim(x, 1), dim(x, 0)) if self.layout else (dim(x, 0), dim(x, 1))
        need_vector(sequence_lens, batch, "sequence_lens")
        state = self._ordered(batch, (self.directions,), hidden)
        for name, type_ in states.items():
            what = f"{name} {type_} and the state {shape_text(state)}"
            same_shape(type_ and type_.shape, state, what)
        leading: Shape = (batch, length) if self.layout else (length,)
        rest: Shape = (self.directions,) if self.layout else (self.directions, batch)
        return x.with_shape((*leading, *rest, hidden)), x.with_shape(state)

    def _hidden(self, w: TensorType, r: TensorType, b: TensorType | None) -> Dim:
        if self.hidden_size is not None and self.hidden_size < 1:
            raise ShapeError(f"hidden_size={self.hidden_size}; it must be 1 or more")
        hidden = same_dim(self.hidden_size, dim(r, 2), f"hidden_size and last axis of r {r}")
        for name, type_, rows in (("w", w, 1), ("r", r, 1), ("b", b, 2)):
            what = f"second axis of {name} {type_} by {rows * self.gates}"
            stacked = quotient(dim(type_, 1), rows * self.gates, what)
            hidden = same_dim(stacked, hidden, f"{what} and the hidden size")
        return hidden

    def _ordered(self, batch: Dim, directions: Shape, hidden: Dim) -> Shape:
        return (batch, *directions, hidden) if self.layout else (*directions, batch, hidden)


@op
class RNN(RecurrentOp):
    """h' = f(w x + r h + bw + br), f being Tanh by default (ONNX 22)."""

    gates: ClassVar = 1
    functions: ClassVar = 1
    activations: tuple[str, ...] | None = ("Tanh", "Tanh")


@op
class GRU(RecurrentOp):
    """h' = (1 - z) * g(w x + r (k * h) + b) + z * h, with gates z and k = f(w x + r h + b).

    Gates are stacked z, k (ONNX's r), h; f is Sigmoid, g Tanh. With `linear_before_reset` the
    candidate is g(w x + bw + k * (r h + br)) (ONNX 22).
    """

    gates: ClassVar = 3
    functions: ClassVar = 2
    linear_before_reset: int = 0


@op
class LSTM(RecurrentOp):
    """c' = f * c + i * g(w x + r h + b) and h' = o * h(c'), with gates i, o, f (ONNX 22).

    Gates are stacked i, o, f, c; their function is Sigmoid, g and h are Tanh. Peepholes p
    [directions, 3 * hidden] add p * c to i and f, p * c' to o. `input_forget` makes f = 1 - i.
    """

    outputs: ClassVar[tuple[int, int | None]] = (0, 3)
    gates: ClassVar = 4
    functions: ClassVar = 3
    input_forget: int = 0

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType | None = None,
        sequence_lens: TensorType | None = None,
        initial_h: TensorType | None = None,
        initial_c: TensorType | None = None,
        p: TensorType | None = None,
    ) -> tuple[TensorType, TensorType, TensorType]:
        states = {"initial_h": initial_h, "initial_c": initial_c}
        y, state = self._results(x, w, r, b, sequence_lens, states)
        need_rank(p, 2, "p")
        same_dtype(x, p)
        same_dim(dim(p, 0), self.directions, f"first axis of p {p} and number of directions")
        hidden = None if y.shape is None else y.shape[-1]
        same_dim(dim(p, 1), times(3, hidden), f"second axis of p {p} and 3 * hidden")
        return y, state, state
