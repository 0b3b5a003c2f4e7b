"""Samples of operators on bytes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tercet.runtime.ir import dtypes

from .samples import Draw, Sample

Rng = np.random.Generator
Array = np.ndarray


def kind(rng: Rng) -> type:
    return np.uint8 if rng.random() < 0.6 else np.int8


def bytes_of(rng: Rng, dtype: type, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def scale(rng: Rng, *shape: int) -> Array:
    return np.asarray(rng.uniform(0.005, 0.1, shape), np.float32)


def point(rng: Rng, dtype: type, *shape: int) -> Array:
    return np.asarray(bytes_of(rng, dtype, *shape) // 2, dtype)


def perhaps(rng: Rng, x: Array, chance: float = 0.7) -> Array | None:
    return x if rng.random() < chance else None


def shape_of(rng: Rng, least: int = 1, most: int = 4) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, 7, rng.integers(least, most + 1)))


def constants(inputs: Mapping[str, Array | None], *data: str) -> tuple[str, ...]:
    return tuple(name for name in inputs if name not in data)


def binary(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        dtype, shape = kind(rng), shape_of(rng)
        other = tuple(n if rng.random() < 0.8 else 1 for n in shape)[rng.integers(len(shape)) :]
        inputs = {
            "A": bytes_of(rng, dtype, *shape),
            "A_scale": scale(rng),
            "A_zero_point": point(rng, dtype),
            "B": bytes_of(rng, dtype, *other),
            "B_scale": scale(rng),
            "B_zero_point": point(rng, dtype),
            "C_scale": scale(rng),
            "C_zero_point": point(rng, dtype),
        }
        return Sample(name, inputs, constants=constants(inputs, "A", "B"), steps=1)

    return draw


def unary(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        dtype = kind(rng)
        inputs = {
            "X": bytes_of(rng, dtype, *shape_of(rng)),
            "X_scale": scale(rng),
            "X_zero_point": perhaps(rng, point(rng, dtype)),
            "Y_scale": scale(rng),
            "Y_zero_point": point(rng, dtype),
        }
        attributes = {"alpha": 0.3} if name == "QLinearLeakyRelu" and rng.random() < 0.7 else {}
        return Sample(name, inputs, attributes, constants=constants(inputs, "X"), steps=1)

    return draw


def where(rng: Rng) -> Sample:
    dtype, shape = kind(rng), shape_of(rng)
    other = tuple(n if rng.random() < 0.8 else 1 for n in shape)
    inputs = {
        "condition": rng.random(shape) < 0.5,
        "X": bytes_of(rng, dtype, *shape),
        "x_scale": scale(rng),
        "x_zero_point": point(rng, dtype),
        "Y": bytes_of(rng, dtype, *other),
        "y_scale": scale(rng),
        "y_zero_point": point(rng, dtype),
        "z_scale": scale(rng),
        "z_zero_point": point(rng, dtype),
    }
    return Sample(
        "QLinearWhere", inputs, constants=constants(inputs, "condition", "X", "Y"), steps=1
    )


def concat(rng: Rng) -> Sample:
    dtype, shape = kind(rng), shape_of(rng)
    axis = int(rng.integers(-len(shape), len(shape)))
    inputs: dict[str, Array | None] = {"Y_scale": scale(rng), "Y_zero_point": point(rng, dtype)}
    data = []
    for i in range(rng.integers(1, 4)):
        size = list(shape)
        size[axis] = int(rng.integers(1, 4))
        data.append(f"x{i}")
        inputs[f"x{i}"] = bytes_of(rng, dtype, *size)
        same = rng.random() < 0.3
        inputs[f"s{i}"] = inputs["Y_scale"] if same else scale(rng)
        inputs[f"z{i}"] = inputs["Y_zero_point"] if same else point(rng, dtype)
    return Sample(
        "QLinearConcat", inputs, {"axis": axis}, constants=constants(inputs, *data), steps=1
    )


def softmax(rng: Rng) -> Sample:
    """The softmax of one element is 256/256, which onnxruntime's table wraps to 0."""
    dtype, shape = kind(rng), [int(n) + 1 for n in shape_of(rng, 2)]
    inputs = {
        "X": bytes_of(rng, dtype, *shape),
        "X_scale": scale(rng),
        "x_zero_point": perhaps(rng, point(rng, dtype)),
        "y_scale": np.array(rng.choice([1 / 256, 1 / 255, 0.0035, 0.0061, 0.9]), np.float32),
        "y_zero_point": np.array(0 if dtype is np.uint8 else -128, dtype),
    }
    attributes = {
        "axis": int(rng.integers(-len(shape), len(shape))),
        "opset": int(rng.choice([11, 13])),
    }
    return Sample("QLinearSoftmax", inputs, attributes, constants=constants(inputs, "X"), steps=1)


def pool(rng: Rng) -> Sample:
    dtype, spatial, last = kind(rng), int(rng.integers(1, 4)), int(rng.random() < 0.4)
    sizes = [int(n) for n in rng.integers(4, 9, spatial)]
    shape = (2, *sizes, 3) if last else (2, 3, *sizes)
    kernel = [int(n) for n in rng.integers(1, 4, spatial)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "channels_last": last}
    attributes["strides"] = [int(n) for n in rng.integers(1, 3, spatial)]
    if rng.random() < 0.6:
        attributes["pads"] = [int(rng.integers(0, k)) for k in kernel * 2]
    attributes["count_include_pad"] = int(rng.random() < 0.4)
    inputs = {
        "X": bytes_of(rng, dtype, *shape),
        "x_scale": scale(rng),
        "x_zero_point": point(rng, dtype),
        "y_scale": scale(rng),
        "y_zero_point": point(rng, dtype),
    }
    return Sample(
        "QLinearAveragePool", inputs, attributes, constants=constants(inputs, "X"), steps=1
    )


def global_pool(rng: Rng) -> Sample:
    dtype, last = kind(rng), int(rng.random() < 0.5)
    inputs = {
        "X": bytes_of(rng, dtype, 2, *(int(n) for n in rng.integers(2, 7, 3))),
        "x_scale": scale(rng),
        "x_zero_point": point(rng, dtype),
        "y_scale": scale(rng),
        "y_zero_point": point(rng, dtype),
    }
    attributes = {"channels_last": last}
    return Sample(
        "QLinearGlobalAveragePool", inputs, attributes, constants=constants(inputs, "X"), steps=1
    )


def convolution(rng: Rng) -> Sample:
    dtype, group, last = np.uint8, int(rng.choice([1, 1, 2])), int(rng.random() < 0.6)
    wide = kind(rng)
    channels, filters = 2 * group, 3 * group
    sizes = [int(n) for n in rng.integers(4, 8, 2)]
    by_filter = rng.random() < 0.5
    each = (filters,) if by_filter else ()
    inputs = {
        "x": bytes_of(rng, dtype, 2, *((*sizes, channels) if last else (channels, *sizes))),
        "x_scale": scale(rng),
        "x_zero_point": point(rng, dtype),
        "w": bytes_of(rng, wide, filters, channels // group, 3, 2),
        "w_scale": scale(rng, *each),
        "w_zero_point": np.full(each, 0 if wide is np.int8 else 120, wide),
        "y_scale": np.array(rng.uniform(0.1, 0.5), np.float32),
        "y_zero_point": point(rng, dtype),
        "B": perhaps(rng, rng.integers(-999, 999, filters).astype(np.int32)),
    }
    attributes: dict[str, Any] = {"channels_last": last, "group": group}
    if rng.random() < 0.5:
        attributes["pads"] = [1, 0, 1, 1]
    if rng.random() < 0.5:
        attributes["strides"] = [2, 1]
    return Sample("QLinearConv", inputs, attributes, constants=constants(inputs, "x"), steps=1)


#: Dtypes that onnxruntime's own twins of ONNX's operators take.
WHOLE = (np.int8, np.uint8, np.int16, np.uint16, dtypes.int4, dtypes.uint4)
RANGES = {dtypes.int4: (-8, 8), dtypes.uint4: (0, 16)}


def whole(rng: Rng, dtype: Any, *shape: int) -> Array:
    low, high = RANGES.get(dtype) or (np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
    return np.asarray(rng.integers(low, high, shape)).astype(dtype)


def linear(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        # No array of four bits comes out of onnxruntime, nor goes into it but as a constant.
        count = len(WHOLE) - (2 if name == "QuantizeLinear" else 0)
        dtype = WHOLE[rng.integers(count)]
        shape = shape_of(rng, 2)
        axis = int(rng.integers(-len(shape), len(shape)))
        by_axis = rng.random() < 0.5
        each = (shape[axis],) if by_axis else ()
        x = whole(rng, dtype, *shape)
        if name == "QuantizeLinear":
            x = (rng.standard_normal(shape) * 3).astype(np.float32)
        zero = whole(rng, dtype, *each)
        optional = dtype is np.uint8 or name == "DequantizeLinear"
        inputs = {
            "x": x,
            "scale": scale(rng, *each),
            "zero": perhaps(rng, zero) if optional else zero,
        }
        return Sample(
            name,
            inputs,
            {"axis": axis} if by_axis else {},
            constants=("scale", "zero", *(("x",) if dtype in RANGES else ())),
            steps=1,
        )

    return draw


def product(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        left, right = np.uint8 if rng.random() < 0.7 else np.int8, np.int8
        if left is np.uint8:
            right = kind(rng)
        k, n = (int(x) for x in rng.integers(1, 20, 2))
        lead = shape_of(rng, 1, 3)
        each = (n,) if rng.random() < 0.5 else ()
        a = bytes_of(rng, left, *lead, k)
        weights = bytes_of(rng, right, k, n)
        zero = perhaps(rng, point(rng, right, *each))
        bias = perhaps(rng, rng.standard_normal(n).astype(np.float32), 0.5)
        if name == "DynamicQuantizeMatMul":
            x = rng.standard_normal((*lead, k)).astype(np.float32)
            inputs = {
                "A": x,
                "B": weights,
                "b_scale": scale(rng, *each),
                "b_zero": zero,
                "bias": bias,
            }
        else:
            inputs = {
                "A": a,
                "B": weights,
                "a_scale": scale(rng),
                "b_scale": scale(rng, *each),
                "a_zero": perhaps(rng, point(rng, left)),
                "b_zero": zero,
                "bias": bias,
            }
        return Sample(name, inputs, constants=constants(inputs, "A"), loose=3)

    return draw


def gemm(rng: Rng) -> Sample:
    left = np.uint8 if rng.random() < 0.7 else np.int8
    right = kind(rng) if left is np.uint8 else np.int8
    m, k, n = (int(x) for x in rng.integers(1, 20, 3))
    transposed = [int(rng.random() < 0.4) for _ in range(2)]
    each = (n,) if rng.random() < 0.5 else ()
    quantized = rng.random() < 0.6
    shapes = ((n,), (1, n), (m, 1), (m, n), (1,))
    c = rng.integers(-500, 500, shapes[rng.integers(len(shapes))]).astype(np.int32)
    inputs = {
        "A": bytes_of(rng, left, *((k, m) if transposed[0] else (m, k))),
        "a_scale": scale(rng),
        "a_zero_point": point(rng, left),
        "B": bytes_of(rng, right, *((n, k) if transposed[1] else (k, n))),
        "b_scale": scale(rng, *each),
        "b_zero_point": point(rng, right, *each),
        "C": perhaps(rng, c),
        "y_scale": np.array(rng.uniform(0.5, 2), np.float32) if quantized else None,
        "y_zero_point": point(rng, left) if quantized else None,
    }
    attributes: dict[str, Any] = {"transA": transposed[0], "transB": transposed[1]}
    if rng.random() < 0.4:
        attributes["alpha"] = 0.5
    return Sample("QGemm", inputs, attributes, constants=constants(inputs, "A"), steps=1, loose=3)


def gather(rng: Rng) -> Sample:
    dtype = (dtypes.int4, dtypes.uint4, np.uint8, np.uint8)[rng.integers(4)]
    bits, block = int(rng.choice([2, 4, 8])) if dtype is np.uint8 else 4, int(rng.choice([16, 32]))
    width, rank = int(rng.integers(1, 4)) * block, int(rng.integers(2, 4))
    if dtype is not np.uint8 and rng.random() < 0.3:
        width -= int(rng.integers(1, block))
    each = 8 // bits if dtype is np.uint8 else 1
    lead = [int(n) for n in rng.integers(2, 7, rank - 1)]
    axis = 0 if dtype is np.uint8 else int(rng.integers(0, rank))
    blocks = -(-width // block)
    data = whole(rng, dtype, *lead, width // each)
    size = width if axis == rank - 1 else lead[axis]
    scales = scale(rng, *lead, blocks)
    zero = whole(rng, dtype, *lead, -(-blocks // each))
    indices = rng.integers(-size, size, shape_of(rng, 1, 2))
    inputs = {
        "data": data,
        "indices": indices.astype((np.int32, np.int64)[rng.integers(2)]),
        "scales": scales.astype(np.float16) if rng.random() < 0.3 else scales,
        "zero_points": perhaps(rng, zero, 0.5),
    }
    attributes = {"block_size": block, "gather_axis": axis, "quantize_axis": rank - 1}
    if dtype is np.uint8:
        attributes["bits"] = bits
    return Sample(
        "GatherBlockQuantized", inputs, attributes, constants=constants(inputs, "indices")
    )


DRAWS: dict[str, Draw] = {
    "QLinearAdd": binary("QLinearAdd"),
    "QLinearMul": binary("QLinearMul"),
    "QLinearSigmoid": unary("QLinearSigmoid"),
    "QLinearLeakyRelu": unary("QLinearLeakyRelu"),
    "QLinearWhere": where,
    "QLinearConcat": concat,
    "QLinearSoftmax": softmax,
    "QLinearAveragePool": pool,
    "QLinearGlobalAveragePool": global_pool,
    "QLinearConv": convolution,
    "DequantizeLinear": linear("DequantizeLinear"),
    "QuantizeLinear": linear("QuantizeLinear"),
    "DynamicQuantizeMatMul": product("DynamicQuantizeMatMul"),
    "MatMulIntegerToFloat": product("MatMulIntegerToFloat"),
    "QGemm": gemm,
    "GatherBlockQuantized": gather,
}
