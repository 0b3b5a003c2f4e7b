"""Networks whose classifiers hold hundreds of megabytes, made slim."""

from __future__ import annotations

from onnx import ModelProto

from tercet.tools.workshop.light_models import light_model

#: Those that have layers of 4096 units; the smallest of them is tested whole, too.
WHOLE = "bvlc_alexnet"
LARGE = (WHOLE, "vgg19", "zfnet512")


def slim_model(name: str) -> ModelProto:
    """A light model; of the large ones with 256 instead of 4096 units in each inner layer."""
    return light_model(name, units={4096: 256} if name in LARGE else None)
