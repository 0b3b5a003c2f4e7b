"""ResNet-50 and GoogLeNet as torchvision has them, written here node by node, with random weights.

They differ from the models of the same names in the `onnx` package: this ResNet-50 (v1.5) has its
stride of two in the 3x3 convolution of a block, this GoogLeNet has batch normalizations (folded
into the convolutions) instead of local response normalization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import ModelProto

from .generated_models import Sheet, image

#: Blocks, inner and outer width, and the first block's stride, of each stage of ResNet-50.
_STAGES = ((3, 64, 256, 1), (4, 128, 512, 2), (6, 256, 1024, 2), (3, 512, 2048, 2))

#: Filters of GoogLeNet's modules: 1x1; 3x3 reduced, 3x3; second 3x3 reduced, its 3x3; after the
#: pool. None is a pooling of this window with a stride of 2.
_MODULES: tuple[tuple[int, ...] | int, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    3,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    2,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def _resnet50(seed: int) -> ModelProto:
    """Return ResNet-50 v1.5: 16 blocks of 1x1, 3x3 and 1x1 convolutions with a shortcut."""
    sheet = Sheet("resnet50_v15", seed)

    def active(x: str) -> str:
        return sheet.node("Relu", x)

    x, before = active(sheet.conv("input", (3, 64), 7, 2)), 64
    x = sheet.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for depth, inner, outer, first in _STAGES:
        for i in range(depth):
            stride = first if i == 0 else 1
            y = active(sheet.conv(x, (before, inner), 1))
            y = active(sheet.conv(y, (inner, inner), 3, stride))
            # Batch norms keep the sum of sixteen branches small; here the weights do.
            y = sheet.conv(y, (inner, outer), 1, gain=0.5)
            if i == 0:
                x = sheet.conv(x, (before, outer), 1, stride, gain=0.5)
            x, before = active(sheet.node("Add", y, x)), outer
    x = sheet.node("Flatten", sheet.node("GlobalAveragePool", x), axis=1)
    return sheet.model(image(), (sheet.gemm(x, before, 1000), ("batch", 1000)), 17)


def _googlenet(seed: int) -> ModelProto:
    """Return GoogLeNet: nine modules of four branches that are joined along the channels."""
    sheet = Sheet("googlenet", seed)

    def active(x: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        return sheet.node("Relu", sheet.conv(x, channels, kernel, stride))

    def pool(x: str, window: int, stride: int, pad: int = 0) -> str:
        return sheet.node(
            "MaxPool", x, kernel_shape=[window] * 2, strides=[stride] * 2, pads=[pad] * 4,
            ceil_mode=1,
        )  # fmt: skip

    x = pool(active("input", (3, 64), 7, 2), 3, 2)
    x = active(active(x, (64, 64), 1), (64, 192), 3)
    x, before = pool(x, 3, 2), 192
    for module in _MODULES:
        if isinstance(module, int):
            x = pool(x, module, 2)
            continue
        one, reduced, three, small, last, pooled = module
        branches = (
            active(x, (before, one), 1),
            active(active(x, (before, reduced), 1), (reduced, three), 3),
            active(active(x, (before, small), 1), (small, last), 3),
            active(pool(x, 3, 1, 1), (before, pooled), 1),
        )
        x, before = sheet.node("Concat", *branches, axis=1), one + three + last + pooled
    x = sheet.node("Flatten", sheet.node("GlobalAveragePool", x), axis=1)
    return sheet.model(image(), (sheet.gemm(x, before, 1000), ("batch", 1000)), 17)


#: By name: a function of the seed of the weights.
MAKERS: Mapping[str, Callable[[int], ModelProto]] = {
    "googlenet": _googlenet,
    "resnet50_v15": _resnet50,
}
