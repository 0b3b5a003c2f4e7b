"""Networks that take hundreds of megabytes or seconds, made slim."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto

import tercet
from tercet.tools.verdict.float64_reference import Oracle
from tercet.tools.workshop.light_models import light_inputs, light_model, light_shapes

#: The smallest of them is tested whole, too.
WHOLE = "bvlc_alexnet"
#: Sizes of weights by network, and what they are here.
SIZES: dict[str, dict[int, int]] = {
    WHOLE: {4096: 256},
    "resnet50": {512: 64, 1024: 128, 2048: 256},
    "zfnet512": {4096: 256},
    "vgg19": {4096: 256, 128: 32, 256: 64, 512: 64, 512 * 49: 64 * 49},
}


def slim_model(name: str) -> ModelProto:
    """A light model; of the large ones with fewer units in inner layers."""
    return light_model(name, units=SIZES.get(name))


def slim_file(name: str) -> ModelProto:
    """The same, as it is shipped: nodes make its weights, all of them equal."""
    return light_shapes(name, SIZES.get(name, {}))


@cache
def exact_logits(name: str) -> np.ndarray[Any, Any]:
    """Return what a slim model makes of `light_inputs`, computed in float64."""
    proto = slim_model(name)
    with tercet.load(proto, stop_at=0) as model:
        oracle = Oracle(model.imported)
    (exact,) = oracle.run(light_inputs(proto)).values()
    oracle.close()
    return exact
