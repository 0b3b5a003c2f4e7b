"""Faults in files: what an exporter, a converter or a hand gets wrong, one node at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from .networks import Array, network

Edit = Callable[[ModelProto, NodeProto], None]


@dataclass(frozen=True)
class Fault:
    """A change of one node of a network.

    Attributes:
        network: its name.
        node: the node's name.
        what: in a word.
        edit: makes it.
    """

    network: str
    node: str
    what: str
    edit: Edit

    def __str__(self) -> str:
        return f"{self.network}-{self.node}-{self.what}"

    def planted(self) -> ModelProto:
        """Return the network with the fault in it."""
        model = ModelProto()
        model.CopyFrom(network(self.network))
        node = next(node for node in model.graph.node if node.name == self.node)
        self.edit(model, node)
        return model


def attribute(**changes: Any) -> Edit:
    """Set attributes; None removes one."""

    def edit(model: ModelProto, node: NodeProto) -> None:
        kept = [entry for entry in node.attribute if entry.name not in changes]
        del node.attribute[:]
        node.attribute.extend(kept)
        for name, value in changes.items():
            if value is not None:
                node.attribute.append(helper.make_attribute(name, value))

    return edit


def swapped(one: int = 0, other: int = 1) -> Edit:
    """Exchange two inputs."""

    def edit(model: ModelProto, node: NodeProto) -> None:
        node.input[one], node.input[other] = node.input[other], node.input[one]

    return edit


def dropped(at: int) -> Edit:
    """Leave out the inputs from one on."""

    def edit(model: ModelProto, node: NodeProto) -> None:
        del node.input[at:]

    return edit


def instead(operator: str) -> Edit:
    """Put another operator of the same attributes in its place."""

    def edit(model: ModelProto, node: NodeProto) -> None:
        node.op_type = operator

    return edit


def reads(at: int, name: str) -> Edit:
    """Let an input be another tensor."""

    def edit(model: ModelProto, node: NodeProto) -> None:
        node.input[at] = name

    return edit


def constant(at: int, change: Callable[[Array], Array]) -> Edit:
    """Change the constant that it reads, for this node alone."""

    def edit(model: ModelProto, node: NodeProto) -> None:
        held = next(t for t in model.graph.initializer if t.name == node.input[at])
        data = change(numpy_helper.to_array(held))
        name = f"{held.name}/changed"
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(data), name))
        node.input[at] = name

    return edit


def narrowed(at: int = 1) -> Edit:
    """Round a constant to bfloat16."""
    return constant(at, lambda data: data.astype(ml_dtypes.bfloat16).astype(np.float32))


def one_element(data: Array) -> Array:
    """Return the constant with its first element 5 % off."""
    changed = data.copy()
    changed.flat[0] *= 1.05
    return changed


def gates(data: Array) -> Array:
    """Return recurrent weights with two gates exchanged, as other frameworks have them."""
    parts = np.split(data, 4, axis=1)
    return np.concatenate([parts[1], parts[0], *parts[2:]], axis=1)


def transposed(data: Array) -> Array:
    """Return a kernel with height and width exchanged."""
    return data.swapaxes(2, 3)


FAULTS = (
    Fault("classifier", "conv1", "pads", attribute(pads=[0, 0, 2, 2])),
    Fault("classifier", "conv2", "flipped-kernel", constant(1, lambda w: w[:, :, ::-1, ::-1])),
    Fault("classifier", "conv2", "transposed-kernel", constant(1, transposed)),
    Fault("classifier", "conv2", "swapped-channels", constant(1, lambda w: w.swapaxes(0, 1))),
    Fault("classifier", "conv3", "dropped-bias", dropped(2)),
    Fault("classifier", "conv3", "dilation", attribute(dilations=[2, 2], pads=[2, 2, 2, 2])),
    Fault("classifier", "norm1", "epsilon", attribute(epsilon=1e-5)),
    Fault("classifier", "norm2", "swapped-statistics", swapped(1, 3)),
    Fault("classifier", "norm3", "swapped-parameters", swapped(1, 2)),
    Fault("classifier", "relu2", "leaky", instead("LeakyRelu")),
    Fault("classifier", "pool", "average", instead("AveragePool")),
    Fault("classifier", "pool", "stride", attribute(strides=[1, 1])),
    Fault("classifier", "depthwise", "stride", attribute(strides=[2, 1])),
    Fault("classifier", "depthwise", "wrong-weight", constant(1, one_element)),
    Fault("classifier", "leaky", "slope", attribute(alpha=0.01)),
    Fault("classifier", "average", "count-pad", attribute(count_include_pad=1)),
    Fault("classifier", "lrn", "size", attribute(size=5)),
    Fault("classifier", "mean", "most", instead("GlobalMaxPool")),
    Fault("classifier", "dense", "transposed", attribute(transB=0)),
    Fault("classifier", "dense", "dropped-bias", dropped(2)),
    Fault("classifier", "classes", "axis", attribute(axis=0)),
    Fault("transformer", "q_product", "transposed", constant(1, np.transpose)),
    Fault("transformer", "k_bias", "wrong-bias", reads(1, "bq")),
    Fault("transformer", "scaled", "swapped-inputs", swapped()),
    Fault("transformer", "scaled", "scale", constant(1, lambda data: data * 2)),
    Fault("transformer", "weights", "axis", attribute(axis=-2)),
    Fault("transformer", "mixed", "wrong-input", reads(0, "scaled")),
    Fault("transformer", "residual", "swapped-inputs", swapped()),
    Fault("transformer", "norm", "epsilon", attribute(epsilon=1e-1)),
    Fault("transformer", "norm", "dropped-shift", dropped(2)),
    Fault("transformer", "gelu_add", "subtracted", instead("Sub")),
    Fault("transformer", "wide", "bfloat16", narrowed()),
    Fault("transformer", "narrow", "wrong-weight", constant(1, one_element)),
    Fault("recurrent", "lstm", "reverse", attribute(direction="bidirectional", clip=0.5)),
    Fault("recurrent", "lstm", "gates", constant(1, gates)),
    Fault("recurrent", "lstm", "dropped-bias", dropped(3)),
    Fault("recurrent", "gru", "reset-gate", attribute(linear_before_reset=1)),
    Fault("recurrent", "gru", "direction", attribute(direction="reverse")),
    Fault("recurrent", "time_mean", "axis", reads(1, "last")),
    Fault("recurrent", "apart", "swapped-inputs", swapped()),
    Fault("recurrent", "running", "exclusive", attribute(exclusive=1)),
    Fault("detector", "clip", "bounds", swapped(1, 2)),
    Fault("detector", "padded", "mode", attribute(mode="edge")),
    Fault(
        "detector", "larger", "coordinates", attribute(coordinate_transformation_mode="asymmetric")
    ),
    Fault("detector", "larger", "mode", attribute(mode="nearest")),
    Fault("detector", "joined", "swapped-inputs", swapped()),
    Fault("detector", "head", "wrong-bias", constant(2, one_element)),
    Fault("detector", "gate", "hard", instead("HardSigmoid")),
    Fault("detector", "slice", "off-by-one", constant(1, lambda data: data - 1)),
    Fault("detector", "picked", "order", constant(1, lambda data: data[::-1])),
    Fault("detector", "space", "mode", attribute(mode="CRD")),
    Fault("detector", "norm", "order", attribute(p=1)),
    Fault("quantized", "quantize", "zero-point", constant(2, lambda data: data + np.uint8(1))),
    Fault("quantized", "qconv", "scale", constant(1, lambda data: data * np.float32(1.02))),
    Fault("quantized", "qconv", "zero-point", constant(2, lambda data: data + np.uint8(1))),
    Fault("quantized", "dequantize", "scale", constant(1, lambda data: data * np.float32(1.01))),
    Fault("quantized", "again", "zero-point", constant(2, lambda data: data + np.uint8(1))),
    Fault("quantized", "iconv", "transposed", constant(1, lambda w: w[::-1])),
    Fault("digits", "conv2", "pads", attribute(pads=[0, 0, 2, 2])),
    Fault("digits", "fc", "bfloat16", narrowed()),
    Fault("squeezenet", "n0", "stride", attribute(strides=[2, 1])),
    Fault("squeezenet", "n3", "dropped-bias", dropped(2)),
    Fault("squeezenet", "n9", "swapped-inputs", swapped()),
    Fault("squeezenet", "n14", "transposed-kernel", constant(1, transposed)),
)
