"""Convolutions: axes, strides, dilations, pads, groups, dtypes."""

from __future__ import annotations

from typing import Any

from .case import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Case, draw


def conv(
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    bias: bool = True,
    dtype: Any = FLOAT32,
    constants: tuple[int, ...] = (1, 2),
    op: str = "Conv",
    note: str = "",
    **attributes: Any,
) -> Case:
    filters = w[1] * attributes.get("group", 1) if op == "ConvTranspose" else w[0]
    inputs = [draw(1, x, dtype), draw(2, w, dtype)]
    inputs += [draw(3, (filters,), dtype)] if bias else []
    stored = tuple(i for i in constants if i < len(inputs))
    return Case(op, tuple(inputs), attributes, constants=stored, error=32, note=note)


def transposed(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Case:
    return conv(x, w, op="ConvTranspose", **options)


CASES = [
    # kernels and axes
    conv((1, 3, 8, 9), (4, 3, 1, 1)),
    conv((1, 3, 8, 9), (4, 3, 3, 3)),
    conv((1, 3, 8, 9), (4, 3, 3, 3), bias=False),
    conv((2, 3, 8, 9), (4, 3, 2, 5)),
    conv((2, 3, 17), (4, 3, 5), pads=[2, 1]),
    conv((1, 2, 5, 6, 7), (4, 2, 3, 2, 3), pads=[1, 0, 1, 0, 2, 1], strides=[1, 2, 2]),
    conv((2, 3, 1, 1), (4, 3, 1, 1)),
    conv((1, 3, 5, 5), (4, 3, 5, 5)),
    # strides, dilations and pads
    conv((1, 3, 9, 11), (4, 3, 1, 1), strides=[2, 3]),
    conv((1, 3, 9, 11), (4, 3, 1, 1), pads=[1, 1, 1, 1]),
    conv((1, 3, 9, 11), (4, 3, 3, 3), pads=[1, 1, 1, 1]),
    conv((2, 3, 9, 11), (4, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2]),
    conv((1, 3, 9, 11), (4, 3, 3, 2), pads=[0, 2, 3, 1], strides=[2, 3], dilations=[2, 1]),
    conv((1, 3, 4, 4), (4, 3, 3, 3), pads=[5, 5, 5, 5]),
    conv((1, 3, 9, 11), (4, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    conv((1, 3, 9, 11), (4, 3, 2, 2), auto_pad="SAME_LOWER"),
    conv((1, 3, 9, 11), (4, 3, 3, 3), auto_pad="VALID"),
    conv((1, 3, 16, 16), (4, 3, 3, 3), dilations=[3, 3], pads=[3, 3, 3, 3]),
    # groups
    conv((2, 8, 7, 7), (8, 1, 3, 3), group=8, pads=[1, 1, 1, 1], note="depthwise"),
    conv((2, 8, 7, 7), (16, 1, 3, 3), group=8, strides=[2, 2], note="depthwise"),
    conv((1, 8, 12), (8, 1, 5), group=8, pads=[2, 2], note="depthwise"),
    conv((2, 8, 4, 5, 6), (8, 1, 3, 3, 3), group=8, pads=[1] * 6, note="depthwise"),
    conv((1, 6, 5, 4, 6), (6, 1, 3, 2, 3), group=6, strides=[2, 1, 2], note="depthwise"),
    conv((2, 8, 7, 9), (6, 4, 3, 3), group=2, pads=[0, 1, 2, 1]),
    conv((2, 8, 7, 9), (6, 4, 1, 1), group=2),
    # large enough for several blocks and threads
    conv((1, 16, 64, 64), (64, 16, 3, 3), pads=[1, 1, 1, 1], note="blocks"),
    conv((1, 64, 64, 64), (32, 64, 1, 1), note="blocks"),
    conv((2, 256, 7, 7), (128, 256, 3, 3), pads=[1, 1, 1, 1], note="filters"),
    conv((1, 256, 56, 56), (256, 1, 3, 3), group=256, pads=[1, 1, 1, 1], note="groups"),
    conv((1, 64, 20000), (32, 64, 3), pads=[1, 1], note="blocks"),
    conv((1, 40, 30, 30), (320, 8, 3, 3), group=5, note="groups"),
    conv((1, 24, 30, 30), (288, 8, 3, 3), group=3, note="groups"),
    conv((3, 12, 20, 20), (128, 6, 1, 1), group=2, note="groups"),
    # dtypes, and weights that are computed
    conv((1, 3, 8, 9), (4, 3, 3, 3), dtype=FLOAT64, pads=[1, 1, 1, 1]),
    conv((2, 3, 8, 9), (4, 3, 3, 3), dtype=FLOAT16, pads=[1, 1, 1, 1]),
    conv((2, 4, 8, 9), (4, 2, 3, 3), dtype=BFLOAT16, group=2),
    conv((1, 3, 8, 9), (4, 3, 1, 1), dtype=FLOAT16, constants=()),
    conv((2, 3, 8, 9), (4, 3, 3, 3), constants=()),
    conv((2, 8, 8, 9), (8, 1, 3, 3), group=8, constants=()),
    conv((1, 3, 0, 6), (4, 3, 3, 3), pads=[2, 0, 2, 1], note="padding alone"),
    conv((2, 8, 5, 0), (8, 1, 3, 3), group=8, pads=[1, 2, 1, 3], strides=[1, 2], note="padding"),
    conv((1, 3, 0, 0), (4, 3, 2, 1), pads=[1, 1, 2, 1], constants=(), note="padding alone"),
    # transposed
    transposed((1, 3, 5, 6), (3, 4, 3, 3)),
    transposed((2, 3, 5, 6), (3, 4, 3, 3), bias=False, strides=[2, 3]),
    transposed((2, 3, 5, 6), (3, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    transposed((1, 3, 5, 6), (3, 4, 2, 2), strides=[2, 2], note="no overlap"),
    transposed((1, 3, 5, 6), (3, 4, 3, 3), strides=[2, 2], output_padding=[1, 1]),
    transposed((1, 3, 5, 6), (3, 4, 3, 3), strides=[3, 2], output_shape=[15, 11]),
    transposed((1, 3, 5, 6), (3, 4, 3, 2), dilations=[2, 3], pads=[0, 1, 2, 0]),
    transposed((1, 3, 5, 6), (3, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    transposed((1, 3, 5, 6), (3, 4, 3, 3), auto_pad="SAME_LOWER", strides=[2, 2]),
    transposed((2, 8, 5, 6), (8, 3, 3, 3), group=4, strides=[2, 1], pads=[1, 0, 0, 1]),
    transposed((1, 3, 9), (3, 4, 5), strides=[3]),
    transposed((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), strides=[2, 1, 2]),
    transposed((1, 3, 1, 1), (3, 4, 1, 1)),
    transposed((1, 3, 5, 6), (3, 4, 3, 3), dtype=FLOAT64),
    transposed((1, 3, 5, 6), (3, 4, 3, 3), dtype=FLOAT16, strides=[2, 2]),
    transposed((1, 3, 5, 6), (3, 4, 3, 3), constants=()),
]
