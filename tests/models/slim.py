"""Networks whose classifiers hold hundreds of megabytes, made slim."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

import tercet
from tercet.tools.verdict.float64_reference import Oracle
from tercet.tools.workshop.light_models import light_file, light_inputs, light_model

#: Those that have layers of 4096 units; the smallest of them is tested whole, too.
WHOLE = "bvlc_alexnet"
LARGE = (WHOLE, "vgg19", "zfnet512")


#: Units of their inner layers, and how many these have here.
MANY, FEW = 4096, 256


def slim_model(name: str) -> ModelProto:
    """A light model; of the large ones with 256 instead of 4096 units in each inner layer."""
    return light_model(name, units={MANY: FEW} if name in LARGE else None)


def slim_file(name: str) -> ModelProto:
    """The same, as it is shipped: nodes make its weights, all of them equal."""
    model = onnx.load(light_file(name))
    for tensor in model.graph.initializer:
        sizes = numpy_helper.to_array(tensor)
        if name in LARGE and MANY in sizes:
            tensor.CopyFrom(
                numpy_helper.from_array(np.where(sizes == MANY, FEW, sizes), tensor.name)
            )
    return model


@cache
def exact_logits(name: str) -> np.ndarray[Any, Any]:
    """Return what a slim model makes of `light_inputs`, computed in float64."""
    proto = slim_model(name)
    with tercet.load(proto, stop_at=0) as model:
        oracle = Oracle(model.imported)
    (exact,) = oracle.run(light_inputs(proto)).values()
    oracle.close()
    return exact
