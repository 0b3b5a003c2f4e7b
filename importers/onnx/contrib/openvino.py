"""Operators of OpenVINO's ONNX frontend: what NNCF wrote of quantized networks of PyTorch.

https://docs.openvino.ai, operation set 1, defines them.
"""

from __future__ import annotations

from .builder import NodeBuilder
from .catalogue import OPENVINO
from .declaration import T, contrib


@contrib("FakeQuantize", domain=OPENVINO)
def fake_quantize(
    b: NodeBuilder,
    x: T,
    input_low: T,
    input_high: T,
    output_low: T,
    output_high: T,
    *,
    levels: int,
) -> str:
    """The nearest of `levels` places in the input range, as a number of the output range."""
    if levels < 2:
        raise b.error(f"levels={levels}; expected 2 or more")
    steps = b.number(levels - 1, x)
    place = b.Div(b.Sub(x, input_low), b.Sub(input_high, input_low))
    share = b.Div(b.Round(b.Mul(place, steps)), steps)
    y = b.Add(b.Mul(share, b.Sub(output_high, output_low)), output_low)
    y = b.Where(b.Greater(x, b.Max(input_low, input_high)), output_high, y)
    return b.Where(b.LessOrEqual(x, b.Min(input_low, input_high)), output_low, y)
