"""Nodes of old opsets, and what they compute."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tercet.runtime.ir.types import Array

from ..randomness import restarting


@dataclass(frozen=True)
class Case:
    """One node of an old opset; onnxruntime's answer is right unless `expected` gives another."""

    op: str
    opset: int
    inputs: tuple[Array, ...]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    expected: Callable[..., Array] | None = None
    outputs: int = 1
    fixed: tuple[int, ...] = ()
    """Inputs that are initializers."""

    def __str__(self) -> str:
        changed = ",".join(f"{k}={v}" for k, v in self.attributes.items())
        return f"{self.op}-{self.opset}({changed})"


RNG = restarting(0)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def scales(*values: float) -> Array:
    return np.array(values, np.float32)


def softmax(x: Array, axis: int) -> Array:
    """The softmax of opset 1 to 12."""
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
    power = np.exp(flat - flat.max(1, keepdims=True))
    return (power / power.sum(1, keepdims=True)).reshape(x.shape)


def channels(values: Array) -> Array:
    """Return one value per channel as something that broadcasts to an image."""
    return values.reshape(3, 1, 1)


def batch_norm(x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    deviation = np.sqrt(channels(variance) + 1e-5)
    return (x - channels(mean)) / deviation * channels(scale) + channels(bias)


def one_hot(indices: Array, depth: Array, values: Array) -> Array:
    """The one-hot encoding of opset 9, for values 0 and 1."""
    return (indices[:, None] == np.arange(depth.item())).astype(np.float32)


X = floats(2, 3, 4, 5)


A = X[0, 0]


VECTOR = floats(6)


CHANNELS = tuple(np.abs(floats(3)) for _ in range(4))


GRU = (floats(4, 2, 3), floats(1, 6, 3), floats(1, 6, 2))


ELEMENTS = tuple(np.abs(floats(3, 4, 5)) for _ in range(4))


CASES = [
    # arithmetic
    Case("Add", 1, (X, floats(3, 4)), {"broadcast": 1, "axis": 1}, lambda a, b: a + b[..., None]),
    Case(
        "Mul",
        6,
        (X, floats(2)),
        {"broadcast": 1, "axis": 0},
        lambda a, b: a * b[:, None, None, None],
    ),
    Case("Sub", 6, (X, floats(3)), {"broadcast": 1, "axis": -3}, lambda a, b: a - channels(b)),
    Case("Div", 6, (X, floats(5)), {"broadcast": 1}, lambda a, b: a / b),
    Case("Add", 6, (X, floats(1, 1)), {"broadcast": 1}, lambda a, b: a + b),
    Case("Pow", 1, (np.abs(X), floats(3, 4, 5)), {"broadcast": 1, "axis": 1}, np.power),
    Case("Less", 1, (X, floats(4, 5)), {"broadcast": 1, "axis": 2}, np.less),
    Case("PRelu", 6, (X, floats(3)), {}, lambda x, s: np.where(x < 0, x * channels(s), x)),
    Case("PRelu", 1, (X, floats(1)), {}, lambda x, s: np.where(x < 0, x * s, x)),
    Case("PRelu", 7, (X, floats(3, 1, 1))),
    Case("Clip", 6, (X,), {"min": -0.5, "max": 0.25}),
    Case("Clip", 6, (X,), {"max": 0.25}),
    Case("Clip", 6, (X,), {"min": 0.0}),
    Case("Clip", 6, (X,)),
    Case("Clip", 1, (X,), {"min": -0.5, "consumed_inputs": [0]}, lambda x: np.maximum(x, -0.5)),
    Case("Cast", 1, (X,), {"to": "INT32"}, lambda x: x.astype(np.int32)),
    Case("Selu", 1, (X,), {}, lambda x: 1.0507 * np.where(x > 0, x, 1.6732 * (np.exp(x) - 1))),
    Case("Relu", 1, (X,), {"consumed_inputs": [0]}, lambda x: np.maximum(x, 0)),
    Case("Gemm", 6, (A, A.T.copy(), floats(4)), {"broadcast": 1}, lambda a, b, c: a @ b + c),
    Case("Gemm", 9, (A, A, floats(1)), {"transB": 1, "alpha": 0.5}),
    # shapes
    Case("Concat", 1, (X, X), {}, lambda a, b: np.concatenate((a, b), 1)),
    Case("Reshape", 1, (X,), {"shape": [0, -1]}, lambda x: x.reshape(2, -1)),
    Case("Squeeze", 1, (floats(1, 3, 1),), {"axes": [2]}, lambda x: x[..., 0]),
    Case("Squeeze", 11, (floats(1, 3, 1),)),
    Case("Squeeze", 11, (floats(1, 3, 1),), {"axes": [-1]}),
    Case("Unsqueeze", 11, (floats(3),), {"axes": [-1, 0]}),
    Case("ReduceSum", 11, (X,), {"axes": [1, -1], "keepdims": 0}),
    Case("ReduceSum", 11, (X,)),
    Case("ReduceMean", 13, (X,), {"axes": [2, 3]}),
    Case("ReduceL2", 11, (X,), {"axes": [1]}),
    Case("ReduceMax", 12, (X,), {"axes": [0], "keepdims": 0}),
    Case("ReduceLogSumExp", 13, (X,), {"axes": [-1]}),
    Case("Split", 2, (X,), {"axis": 3, "split": [2, 3]}, outputs=2),
    Case("Split", 11, (X,), {"axis": -2}, outputs=2),
    Case("Split", 13, (X, ints(1, 3)), {"axis": 2}, outputs=2),
    Case("Split", 13, (X,), {"axis": 2}, outputs=2),
    Case("Split", 1, (X,), {"axis": 1, "split": [1, 2]}, lambda x: x[:, :1], outputs=2),
    Case("Split", 1, (X, scales(1, 2)), {"axis": 1}, lambda x, s: x[:, :1], outputs=2, fixed=(1,)),
    Case("Slice", 1, (X,), {"starts": [1, -2], "ends": [9, -1], "axes": [2, 3]}),
    Case("Slice", 1, (X,), {"starts": [0, 1], "ends": [1, 2]}),
    Case("Slice", 10, (X, ints(-1), ints(-9), ints(2), ints(-1))),
    Case("Pad", 2, (X,), {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "value": 1.5}),
    Case("Pad", 2, (X,), {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}),
    Case("Pad", 2, (X,), {"pads": [0, 0, -1, 2, 0, 0, 0, -1]}),
    Case("Pad", 1, (X,), {"paddings": [0] * 7 + [1]}, lambda x: np.insert(x, 5, 0, axis=3)),
    Case("Tile", 1, (X, scales(3), scales(1)), {}, lambda x, *_: np.hstack([x] * 3), fixed=(1, 2)),
    Case("Tile", 6, (X, ints(1, 2, 1, 2))),
    Case("Scatter", 9, (floats(3, 3), np.array([[1, 0, 2]], np.int64), floats(1, 3))),
    Case("OneHot", 9, (ints(0, 2, -1, 7), ints(3), scales(0, 1)), {}, one_hot),
    Case("OneHot", 11, (ints(0, 2, -1, 7), ints(3), scales(0, 1))),
    Case("TopK", 1, (VECTOR,), {"k": 2}, outputs=2),
    Case("TopK", 10, (VECTOR, ints(3)), outputs=2),
    Case("Dropout", 7, (X,), {"ratio": 0.3}),
    Case("Dropout", 10, (X,), {"ratio": 0.3}, lambda x: x, outputs=2),
    Case("Dropout", 1, (X,), {"is_test": 1, "consumed_inputs": [0]}, lambda x: x),
    # images
    Case("Upsample", 1, (X,), {"height_scale": 1.0, "width_scale": 3.0}, lambda x: x.repeat(3, 3)),
    Case("Upsample", 7, (X,), {"scales": [1.0, 1.0, 2.0, 1.5]}),
    Case("Upsample", 7, (X,), {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "linear"}),
    Case("Upsample", 9, (X, scales(1, 1, 3, 2)), fixed=(1,)),
    Case("Upsample", 9, (X, scales(1, 1, 3, 2))),
    Case("Resize", 10, (X, scales(1, 1, 0.6, 0.6)), fixed=(1,)),
    Case("Resize", 10, (X, scales(1, 1, 0.6, 2.5)), fixed=(1,)),
    Case("Resize", 10, (X, scales(1, 1, 0.6, 2.5))),
    Case("Resize", 10, (X, scales(1, 1, 2.5, 1)), {"mode": "linear"}),
    Case("Resize", 11, (X, scales(), scales(1, 1, 2, 2)), fixed=(1,)),
    Case("RoiAlign", 10, (X, scales(0, 0, 3, 3)[None], ints(1)), {"output_height": 2}),
    Case("GridSample", 16, (X, floats(2, 3, 3, 2)), {"mode": "bicubic"}),
    Case("GridSample", 16, (X, floats(2, 3, 3, 2))),
    Case("LpPool", 2, (X,), {"kernel_shape": [2, 2], "p": 3}),
    Case("AveragePool", 7, (X,), {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}),
    Case("MaxPool", 8, (X,), {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"}),
    # normalization
    *(Case("Softmax", 11, (X,), {"axis": axis}) for axis in (0, 1, 2, 3, -1)),
    Case("Softmax", 1, (X,), {}, lambda x: softmax(x, 1)),
    Case("Softmax", 9, (floats(2, 3, 1, 1),)),
    Case("LogSoftmax", 11, (X,), {"axis": 2}),
    Case("Hardmax", 11, (X,), {"axis": 1}),
    Case("BatchNormalization", 9, (X, *CHANNELS)),
    Case("BatchNormalization", 7, (X, *ELEMENTS), {"spatial": 0}),
    Case("BatchNormalization", 7, (X, *CHANNELS), {"spatial": 0}, batch_norm),
    Case("BatchNormalization", 7, (X[:, :, 0, 0], *CHANNELS), {"spatial": 0}),
    Case("BatchNormalization", 6, (X, *CHANNELS), {"is_test": 1}, batch_norm),
    Case("GroupNormalization", 18, (floats(2, 6, 4), floats(3), floats(3)), {"num_groups": 3}),
    # recurrence and signals
    Case("GRU", 7, GRU, {"hidden_size": 2}, outputs=2),
    Case("DFT", 17, (floats(2, 8, 1),), {"onesided": 1}),
    Case("DFT", 17, (floats(2, 8, 3, 1), np.array(5, np.int64)), {"axis": 2}),
]
