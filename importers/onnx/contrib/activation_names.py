"""Activations named by attributes, with their parameters."""

from __future__ import annotations

from collections.abc import Sequence

from ....runtime.errors import did_you_mean
from .builder import NodeBuilder

#: Parameters of activations in onnxruntime's order; others have ONNX's defaults.
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "Gelu": (),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}


def activated(b: NodeBuilder, x: str, name: str, given: Sequence[float | None]) -> str:
    """Return `x` after an activation; None stands for omitted parameters."""
    values = list(given)
    if name == "Clip":
        low, high = (*values, None, None)[:2]
        bounds = (None if v is None else b.number(v, x) for v in (low, high))
        return b.Clip(x, *bounds)
    if name not in _PARAMETERS:
        known = [*_PARAMETERS, "Clip"]
        raise b.unsupported(
            f"activation '{name}'{did_you_mean(name, known)}",
            f"known are {', '.join(sorted(known))}; save the model again without fusions",
        )
    parameters = dict(zip(_PARAMETERS[name], values, strict=False))
    return getattr(b, name)(x, **parameters)
