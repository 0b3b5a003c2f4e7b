"""Optimizer steps and gradients: ai.onnx.preview.training.

The inputs after `r` (learning rate) and `t` (step) are lists: all tensors to optimize, then their
gradients, then each kind of state, in the same order; the outputs are the new tensors and states.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.op import Op, op
from ..ir.types import TensorType, ValueType
from .shapes import need_choice, same_dtype, same_shape

DOMAIN = "ai.onnx.preview.training"


def _step(name: str, kinds: int, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Return the types of the new tensors and states, given those of tensors, gradients, states.

    Args:
        name: the operator, for messages.
        kinds: number of lists among the inputs.
        inputs: the lists, concatenated.
    """
    count, rest = divmod(len(inputs), kinds)
    if rest or not count:
        raise ShapeError(f"{name} takes {kinds} inputs per tensor after r and t, not {len(inputs)}")
    for i, x in enumerate(inputs):
        like = inputs[i % count]
        same_dtype(like, x)
        same_shape(like.shape, x.shape, f"shapes of tensor {i % count}, its gradient and states")
    kept = (*inputs[:count], *inputs[2 * count :])
    return tuple(x.without_value() for x in kept)


def _need_scalars(r: TensorType, t: TensorType) -> None:
    for name, x in (("r", r), ("t", t)):
        if x.shape not in (None, (), (1,)):
            raise ShapeError(f"{name} must be a scalar, not {x}")


@op
class Adagrad(Op):
    """h += g**2; x -= r / (1 + t * decay_factor) * g / (sqrt(h) + epsilon) (version 1).

    g is the gradient plus norm_coefficient * x. Lists: tensors, gradients, h.
    """

    domain: ClassVar = DOMAIN
    outputs: ClassVar = (1, None)
    decay_factor: float = 0.0
    epsilon: float = 1e-6
    norm_coefficient: float = 0.0

    def infer(
        self, r: TensorType, t: TensorType, inputs: TensorType, *rest: TensorType
    ) -> tuple[TensorType, ...]:
        _need_scalars(r, t)
        return _step("Adagrad", 3, (inputs, *rest))


@op
class Adam(Op):
    """v = alpha*v + (1-alpha)*g; h = beta*h + (1-beta)*g**2; x -= r' * v / (sqrt(h) + epsilon).

    r' = r * sqrt(1 - beta**t) / (1 - alpha**t), r for t = 0; g is the gradient plus
    norm_coefficient * x, and the new x is multiplied by 1 - norm_coefficient_post (version 1).
    Lists: tensors, gradients, v, h.
    """

    domain: ClassVar = DOMAIN
    outputs: ClassVar = (1, None)
    alpha: float = 0.9
    beta: float = 0.999
    epsilon: float = 1e-6
    norm_coefficient: float = 0.0
    norm_coefficient_post: float = 0.0

    def infer(
        self, r: TensorType, t: TensorType, inputs: TensorType, *rest: TensorType
    ) -> tuple[TensorType, ...]:
        _need_scalars(r, t)
        return _step("Adam", 4, (inputs, *rest))


@op
class Momentum(Op):
    """v = alpha*v + beta'*g; x -= r*v, or r*(g + alpha*v) with the `mode` "nesterov" (version 1).

    g is the gradient plus norm_coefficient * x; beta' is beta, and 1 for t = 0. Lists: tensors,
    gradients, v.
    """

    domain: ClassVar = DOMAIN
    outputs: ClassVar = (1, None)
    alpha: float
    beta: float
    mode: str
    norm_coefficient: float

    def infer(
        self, r: TensorType, t: TensorType, inputs: TensorType, *rest: TensorType
    ) -> tuple[TensorType, ...]:
        need_choice(self.mode, "mode", "standard", "nesterov")
        _need_scalars(r, t)
        return _step("Momentum", 3, (inputs, *rest))


@op
class Gradient(Op):
    """Derivatives of the graph's tensor `y` with respect to those named `xs` (version 1).

    The inputs are the values at which to differentiate: first those of `xs`, then those of `zs`.
    """

    domain: ClassVar = DOMAIN
    outputs: ClassVar = (1, None)
    xs: tuple[str, ...]
    y: str
    zs: tuple[str, ...] | None = None

    def infer(self, inputs: ValueType, *rest: ValueType) -> tuple[ValueType, ...]:
        values = (inputs, *rest)
        named = len(self.xs) + len(self.zs or ())
        if not self.xs or len(values) != named:
            raise ShapeError(f"xs and zs name {named} tensors; there are {len(values)} inputs")
        return tuple(
            x.without_value() if isinstance(x, TensorType) else x for x in values[: len(self.xs)]
        )
