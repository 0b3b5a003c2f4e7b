"""What a lecture on convolutional networks shows on its slides, on every backend.

Pictures: the classic vertical-edge and sharpening examples; the padded, strided one is from
Dumoulin and Visin, "A guide to convolution arithmetic for deep learning".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tercet


def f32(data: Any) -> np.ndarray:
    return np.array(data, np.float32)


EDGE_IMAGE = np.array(
    [[7, 2, 3, 3, 8], [4, 5, 3, 8, 4], [3, 3, 2, 8, 4], [2, 8, 7, 2, 7], [5, 4, 4, 5, 4]],
    np.float32,
)
EDGE = np.array([[1, 0, -1]] * 3, np.float32)
PHOTO = np.array(
    [
        [60, 113, 56, 139, 85],
        [73, 121, 54, 84, 128],
        [131, 99, 70, 129, 127],
        [80, 57, 115, 69, 134],
        [104, 126, 123, 95, 130],
    ],
    np.float32,
)
SHARPEN = np.array([[0, -1, 0], [-1, 5, -1], [0, -1, 0]], np.float32)
SHARPENED = [
    [114, 328, -26, 470, 158],
    [53, 266, -61, -30, 344],
    [403, 116, -47, 295, 244],
    [108, -135, 256, -128, 344],
    [314, 346, 279, 153, 421],
]
GUIDE_IMAGE = np.array(
    [[3, 3, 2, 1, 0], [0, 0, 1, 3, 1], [3, 1, 2, 2, 3], [2, 0, 0, 2, 2], [2, 0, 0, 0, 1]],
    np.float32,
)
GUIDE_KERNEL = np.array([[0, 1, 2], [2, 2, 0], [0, 1, 2]], np.float32)


def conv(image: np.ndarray, kernel: np.ndarray, backend: str, **attributes: Any) -> np.ndarray:
    """Convolve one single-channel picture [h, w]."""
    x, w = image[None, None], kernel[None, None]
    y: np.ndarray = tercet.run_op("Conv", x, w, backend=backend, **attributes)
    return y[0, 0]


def reference(node: onnx.NodeProto, **arrays: np.ndarray) -> np.ndarray:
    """Run one node in float64 on onnx's reference implementation."""
    feeds = {name: data.astype(np.float64) for name, data in arrays.items()}
    (result,) = ReferenceEvaluator(node).run(None, feeds)
    return np.asarray(result)


@pytest.mark.parametrize(
    ("image", "kernel", "attributes", "expected"),
    [
        (EDGE_IMAGE, EDGE, {}, [[6, -9, -8], [-3, -2, -3], [-3, 0, -2]]),
        (f32([[3, 4], [2, 1]]), f32([[1, 2], [1, 3]]), {}, [[16]]),
        (PHOTO, SHARPEN, {"pads": (1, 1, 1, 1)}, SHARPENED),
        (
            GUIDE_IMAGE,
            GUIDE_KERNEL,
            {"pads": (1, 1, 1, 1), "strides": (2, 2)},
            [[6, 17, 3], [8, 17, 13], [6, 4, 4]],
        ),
    ],
    ids=["edges", "multiply and sum", "zero padding", "padding and stride"],
)
def test_convolution_by_hand(
    image: np.ndarray, kernel: np.ndarray, attributes: dict[str, Any], expected: list, backend: str
) -> None:
    np.testing.assert_array_equal(conv(image, kernel, backend, **attributes), expected)


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ({}, 24),
        ({"pads": (2, 2, 2, 2)}, 28),
        ({"strides": (2, 2)}, 12),
        ({"pads": (2, 2, 2, 2), "strides": (2, 2)}, 14),
        ({"auto_pad": "SAME_UPPER", "strides": (2, 2)}, 14),
        ({"auto_pad": "SAME_LOWER", "strides": (2, 2)}, 14),
        ({"auto_pad": "VALID", "strides": (2, 2)}, 12),
    ],
    ids=["plain", "padding", "stride", "padding and stride", "SAME_UPPER", "SAME_LOWER", "VALID"],
)
def test_output_size(attributes: dict[str, Any], size: int, backend: str) -> None:
    image, kernel = np.ones((28, 28), np.float32), np.ones((5, 5), np.float32)
    assert conv(image, kernel, backend, **attributes).shape == (size, size)


def test_dilation(backend: str) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((1, 1, 7, 7), np.float32)
    w = rng.standard_normal((1, 1, 3, 3), np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[2, 2])
    exact = reference(node, x=x, w=w)
    y = tercet.run_op("Conv", x, w, dilations=(2, 2), backend=backend)
    assert exact.shape == (1, 1, 3, 3)
    assert np.linalg.norm(y - exact) <= 1e-6 * np.linalg.norm(exact)


@pytest.mark.parametrize("seed", range(20))
def test_channels_and_groups(seed: int, backend: str) -> None:
    rng = np.random.default_rng(seed)
    group = int(rng.choice([1, 1, 2, 3, 8]))
    c, m = group * int(rng.integers(1, 5)), group * int(rng.integers(1, 5))
    kernel = tuple(int(k) for k in rng.integers(1, 4, 2))
    attributes: dict[str, Any] = {
        "group": group,
        "strides": tuple(int(s) for s in rng.integers(1, 3, 2)),
        "pads": tuple(int(p) for p in rng.integers(0, 3, 4)),
        "dilations": tuple(int(d) for d in rng.integers(1, 3, 2)),
    }
    x = rng.standard_normal((int(rng.integers(1, 3)), c, 9, 11), np.float32)
    w = rng.standard_normal((m, c // group, *kernel), np.float32)
    b = rng.standard_normal(m, np.float32)
    lists: dict[str, Any] = {
        k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()
    }
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **lists)
    exact = reference(node, x=x, w=w, b=b)
    y = tercet.run_op("Conv", x, w, b, backend=backend, **attributes)
    assert np.linalg.norm(y - exact) <= 1e-5 * np.linalg.norm(exact)


def test_max_pooling(backend: str) -> None:
    x = f32([[1, 3, 2, 9], [7, 4, 1, 5], [8, 5, 2, 3], [4, 2, 1, 4]])[None, None]
    y = tercet.run_op("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2), backend=backend)
    np.testing.assert_array_equal(y[0, 0], [[7, 9], [8, 4]])


def test_average_pooling(backend: str) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    pads = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (3, 3), "backend": backend}
    corner = x[0, 0, :2, :2].sum()
    assert tercet.run_op("AveragePool", x, **pads)[0, 0, 0, 0] == corner / 4
    padded = tercet.run_op("AveragePool", x, count_include_pad=1, **pads)
    np.testing.assert_allclose(padded[0, 0, 0, 0], corner / 9, rtol=1e-6)
    mean = tercet.run_op("GlobalAveragePool", x, backend=backend)
    np.testing.assert_array_equal(mean, np.full((1, 1, 1, 1), 7.5, np.float32))


def test_batch_normalisation(backend: str) -> None:
    rng = np.random.default_rng(14)
    x = rng.standard_normal((2, 5, 4, 4), np.float32)
    scale, shift, mean = rng.standard_normal((3, 5)).astype(np.float32)
    var = rng.uniform(0.1, 2, 5).astype(np.float32)
    y = tercet.run_op("BatchNormalization", x, scale, shift, mean, var, backend=backend)
    s, b, m, v = (a.astype(np.float64).reshape(1, 5, 1, 1) for a in (scale, shift, mean, var))
    exact = s * (x - m) / np.sqrt(v + 1e-5) + b
    assert np.linalg.norm(y - exact) <= 1e-6 * np.linalg.norm(exact)


def erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf)(x)


ACTIVATIONS: dict[str, tuple[dict, Callable[[np.ndarray], np.ndarray]]] = {
    "Sigmoid": ({}, lambda x: 1 / (1 + np.exp(-x))),
    "Tanh": ({}, np.tanh),
    "Relu": ({}, lambda x: np.maximum(x, 0)),
    "LeakyRelu": ({"alpha": 0.1}, lambda x: np.where(x < 0, np.float64(np.float32(0.1)) * x, x)),
    "Elu": ({}, lambda x: np.where(x < 0, np.expm1(x), x)),
    "Gelu": ({}, lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2)))),
    "HardSwish": ({}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Swish": ({}, lambda x: x / (1 + np.exp(-x))),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, backend: str) -> None:
    attributes, exact = ACTIVATIONS[name]
    x = np.linspace(-8, 8, 4001, dtype=np.float32)
    y = tercet.run_op(name, x, backend=backend, **attributes)
    want = exact(x.astype(np.float64))
    # 4 ulp, or 4 ulp of 1 where the formula subtracts two numbers near 1
    ulp = np.maximum(np.spacing(np.abs(want).astype(np.float32)), np.finfo(np.float32).eps)
    assert np.max(np.abs(y - want) / ulp) <= 4


def test_maxout(backend: str) -> None:
    rng = np.random.default_rng(17)
    pieces = [rng.standard_normal((3, 4), np.float32) for _ in range(3)]
    y = tercet.run_op("Max", *pieces, backend=backend)
    np.testing.assert_array_equal(y, np.max(pieces, axis=0))


def test_softmax(backend: str) -> None:
    y = tercet.run_op("Softmax", f32([1, 2, 5, 2, 0]), backend=backend)
    np.testing.assert_allclose(y, [0.0163, 0.0443, 0.8892, 0.0443, 0.0060], atol=5e-5)
    assert abs(float(y.sum()) - 1) < 1e-6
    large = tercet.run_op("Softmax", f32([[1e4, 0, -1e4], [1e4, 1e4, 0]]), backend=backend)
    np.testing.assert_allclose(large, [[1, 0, 0], [0.5, 0.5, 0]], atol=1e-7)


@pytest.mark.parametrize("opset", [9, 13])
def test_softmax_before_and_after_opset_13(opset: int, backend: str) -> None:
    x = np.random.default_rng(19).standard_normal((2, 3, 4), np.float32)
    model = one_node_model(helper.make_node("Softmax", ["x"], ["y"], axis=1), x.shape, opset)
    (y,) = tercet.load(model, backend=backend)(x)
    rows = x.reshape(2, 12) if opset < 13 else np.moveaxis(x, 1, -1)
    e = np.exp(rows.astype(np.float64))
    exact = e / e.sum(-1, keepdims=True)
    exact = exact.reshape(x.shape) if opset < 13 else np.moveaxis(exact, -1, 1)
    np.testing.assert_allclose(y, exact, rtol=1e-6)


def one_node_model(node: onnx.NodeProto, shape: tuple[int, ...], opset: int) -> onnx.ModelProto:
    value = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in ("x", "y")]
    graph = helper.make_graph([node], "one", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def test_a_kernel_is_not_flipped(backend: str) -> None:
    """ONNX convolves without flipping (cross-correlation)."""
    image = np.zeros((3, 3), np.float32)
    image[0, 0] = 1
    kernel = np.arange(4, dtype=np.float32).reshape(2, 2)
    y = conv(image, kernel, backend, pads=(1, 1, 0, 0))
    np.testing.assert_array_equal(y, [[3, 2, 0], [1, 0, 0], [0, 0, 0]])


def test_one_convolution_takes_three_lines(backend: str) -> None:
    """What takes 200 lines with the library alone."""
    x = np.ones((1, 3, 8, 8), np.float32)
    w = np.ones((4, 3, 3, 3), np.float32)
    y = tercet.run_op("Conv", x, w, pads=(1, 1, 1, 1), backend=backend)
    assert y.shape == (1, 4, 8, 8)
    assert y[0, 0, 4, 4] == 27


def test_vector_addition(backend: str) -> None:
    """The first kernel of every course."""
    a = f32([1, 2, 3, 4])
    np.testing.assert_array_equal(tercet.run_op("Add", a, a, backend=backend), [2, 4, 6, 8])
