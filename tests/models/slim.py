"""Networks whose classifiers hold half a gigabyte, made slim: one of them stays whole."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, numpy_helper

from tercet.tools.workshop.light_models import light_model

#: What half a gigabyte of weights can show, bvlc_alexnet shows.
LARGE = ("vgg19", "zfnet512")


def slim_model(name: str) -> ModelProto:
    """A light model; of the large ones with 256 of the 4096 units of each inner layer."""
    proto = light_model(name)
    if name in LARGE:
        for tensor in proto.graph.initializer:
            if 4096 in tensor.dims:
                data = numpy_helper.to_array(tensor)
                part = data[tuple(slice(256 if size == 4096 else None) for size in data.shape)]
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(part), tensor.name))
    return proto
