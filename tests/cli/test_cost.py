"""What networks of the literature cost, as `inspect --cost` counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper

from tercet.tools.inspect.inspection import Inspection, inspect
from tercet.tools.workshop.light_models import light_model

from . import models


class Network:
    """A network that is being written, with zeros for weights."""

    def __init__(self, pixels: int) -> None:
        self.nodes: list[NodeProto] = []
        self.held: dict[str, np.ndarray] = {}
        self.size = [1, 3, pixels, pixels]

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.held)}"
        self.held[name] = np.zeros(shape, np.float32)
        return name

    def conv(
        self, x: str, before: int, after: int, kernel: int, stride: int, group: int = 1
    ) -> str:
        """A convolution without a bias, as those in front of a batch-norm are."""
        w = self.weight(after, before // group, kernel, kernel)
        pads = [kernel // 2] * 4
        y = self.node("Conv", x, w, pads=pads, strides=[stride] * 2, group=group)
        return self.node("Relu", y)

    def classes(self, x: str, features: int) -> ModelProto:
        """A thousand of them, from the mean of each channel."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        y = self.node("Gemm", flat, self.weight(features, 1000), self.weight(1000))
        ends = [models.tensor("x", self.size)], [models.tensor(y, [1, 1000])]
        return models.model_of(self.nodes, *ends, self.held)


def mobilenet(width: float, pixels: int) -> ModelProto:
    """MobileNet (Howard et al. 2017), table 1, with a width multiplier."""
    net = Network(pixels)
    channels = round(32 * width)
    x = net.conv("x", 3, channels, 3, 2)
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    plan += [(512, 1)] * 5 + [(1024, 2), (1024, 1)]
    for wide, stride in plan:
        after = round(wide * width)
        x = net.conv(x, channels, channels, 3, stride, group=channels)
        x = net.conv(x, channels, after, 1, 1)
        channels = after
    return net.classes(x, channels)


def resnet18() -> ModelProto:
    """ResNet-18 (He et al. 2015), table 1."""
    net = Network(224)
    x = net.conv("x", 3, 64, 7, 2)
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    before = 64
    for after in (64, 128, 256, 512):
        for first in (True, False):
            stride = 2 if first and after != 64 else 1
            y = net.conv(net.conv(x, before, after, 3, stride), after, after, 3, 1)
            x = net.conv(x, before, after, 1, stride) if before != after else x
            x, before = net.node("Add", x, y), after
    return net.classes(x, 512)


def cost(model: ModelProto, folder: Path) -> Inspection:
    return inspect(models.write(model, folder / "network.onnx"), cost=True)


@pytest.mark.parametrize(
    ("network", "macs", "parameters"),
    [
        (mobilenet(1, 224), 569e6, 4.21e6),
        (mobilenet(0.5, 160), 76e6, 1.32e6),
        (resnet18(), 1.82e9, 11.69e6),
    ],
    ids=["mobilenet", "half a mobilenet", "resnet18"],
)
def test_networks(network: ModelProto, macs: float, parameters: float, folder: Path) -> None:
    found = cost(network, folder)
    assert found.macs == pytest.approx(macs, rel=0.01)
    assert found.constants.parameters == pytest.approx(parameters, rel=0.01)


def test_vgg16_and_how_much_less_a_mobilenet_is(folder: Path) -> None:
    large, small = cost(models.vgg16(), folder), cost(mobilenet(1, 224), folder)
    assert (large.macs, large.constants.parameters) == (15_470_264_320, 138_357_544)
    assert large.macs / small.macs == pytest.approx(27, abs=0.5)


def test_googlenet_and_squeezenet(folder: Path) -> None:
    """SqueezeNet has 0.35 G, and not the 1.7 G that a table in the MobileNet paper says."""
    googlenet = cost(light_model("inception_v1"), folder)
    assert googlenet.macs == pytest.approx(1.5e9, rel=0.05)
    assert googlenet.constants.parameters == pytest.approx(6.99e6, rel=0.01)
    squeezenet = cost(light_model("squeezenet"), folder)
    assert squeezenet.constants.parameters == pytest.approx(1.235e6, rel=0.01)
    assert 0.3e9 < squeezenet.macs < 0.9e9


def test_the_command_shows_it(tercet: Any, folder: Path) -> None:
    models.write(mobilenet(0.5, 160), folder / "m.onnx")
    out = tercet("inspect", "m.onnx", "--cost").out
    assert "[1,512,5,5]" in out
