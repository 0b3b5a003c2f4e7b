"""Activations, with the bias before them that onnxruntime's optimiser fuses."""

from __future__ import annotations

from .builder import Builder
from .declaration import T, contrib


@contrib("Gelu")
def gelu(b: Builder, x: T) -> str:
    """X Φ(x)."""
    return b.Gelu(x)


@contrib("BiasGelu")
def bias_gelu(b: Builder, a: T, bias: T) -> str:
    """Gelu of a + bias, a vector along the last axis."""
    _need_bias(b, a, bias)
    return b.Gelu(b.Add(a, bias))


@contrib("FastGelu")
def fast_gelu(b: Builder, x: T, bias: T | None = None) -> str:
    """Gelu by its approximation with tanh, of x or of x + bias."""
    if bias is not None:
        _need_bias(b, x, bias)
        x = b.Add(x, bias)
    return b.Gelu(x, approximate="tanh")


@contrib("QuickGelu")
def quick_gelu(b: Builder, x: T, *, alpha: float = 1.702) -> str:
    """X sigmoid(alpha x)."""
    return b.Swish(x, alpha=alpha)


def _need_bias(b: Builder, x: str, bias: str) -> None:
    b.need_shape(bias, "bias", b.dim(x, -1))
