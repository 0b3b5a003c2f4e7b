"""Samples of products, convolutions and what is fused to them."""

from typing import Any

import numpy as np

from .draws_simple import DTYPES, Rng, floats, perhaps
from .samples import Draw, Sample

Inputs = dict[str, np.ndarray | None]
ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": (0.3,),
    "Clip": (-0.5, 0.7),
    "HardSigmoid": (0.25, 0.4),
}


def _operand(
    rng: Rng, batch: list[int], rows: int, columns: int, transposed: int, moved: int
) -> list[int]:
    """Return a shape that is batch, rows and columns once it is arranged."""
    shape = [*batch, columns, rows] if transposed else [*batch, rows, columns]
    if moved:
        shape = [shape[-2], *shape[:-2], shape[-1]]
    return shape


def fused_matmul(rng: Rng) -> Sample:
    dtype = str(rng.choice(["float32", "float32", "float64", "float16"]))
    batch = [int(rng.integers(1, 4)) for _ in range(rng.integers(0, 3))]
    n, k, m = (int(rng.integers(1, 6)) for _ in range(3))
    names = ("transA", "transB", "transBatchA", "transBatchB")
    how = {name: int(rng.integers(2)) for name in names}
    if not batch:
        how["transBatchA"] = how["transBatchB"] = 0
    a = _operand(rng, batch, n, k, how["transA"], how["transBatchA"])
    b = _operand(rng, batch, k, m, how["transB"], how["transBatchB"])
    inputs: Inputs = {"a": floats(rng, *a, dtype=dtype), "b": floats(rng, *b, dtype=dtype)}
    alpha = {"alpha": float(rng.choice([1.0, 0.5, -2.0]))} if rng.random() < 0.7 else {}
    return Sample("FusedMatMul", inputs, how | alpha, wide=dtype == "float16")


def transpose_matmul(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    n, k, m, batch = (int(rng.integers(1, 6)) for _ in range(4))
    how: dict[str, Any] = {"transA": int(rng.integers(2)), "transB": int(rng.integers(2))}
    how["alpha"] = 0.5
    a = _operand(rng, [batch], n, k, how["transA"], 0)
    b = _operand(rng, [], k, m, how["transB"], 0)
    inputs: Inputs = {"a": floats(rng, *a, dtype=dtype), "b": floats(rng, *b, dtype=dtype)}
    return Sample("TransposeMatMul", inputs, how, wide=dtype == "float16")


def fused_gemm(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    n, k, m = (int(rng.integers(1, 6)) for _ in range(3))
    how: dict[str, Any] = {"transA": int(rng.integers(2)), "transB": int(rng.integers(2))}
    a = _operand(rng, [], n, k, how["transA"], 0)
    b = _operand(rng, [], k, m, how["transB"], 0)
    c = [(n, m), (m,), (1, m), (n, 1)][rng.integers(4)]
    inputs: Inputs = {
        "a": floats(rng, *a, dtype=dtype),
        "b": floats(rng, *b, dtype=dtype),
        "c": perhaps(rng, floats(rng, *c, dtype=dtype), 0.7),
    }
    name = str(rng.choice([each for each in ACTIVATIONS if each != "Clip"]))
    how["activation"] = name
    parameters = ("activation_alpha", "activation_beta")
    how |= dict(zip(parameters, ACTIVATIONS[name], strict=False))
    if rng.random() < 0.4:
        how |= {"alpha": 0.5, "beta": 2.0}
    return Sample("FusedGemm", inputs, how, wide=dtype == "float16")


def fused_conv(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    n, inner, outer, group = (int(rng.integers(1, 3)) for _ in range(4))
    c, m = inner * group, outer * group
    h, w = (int(rng.integers(4, 8)) for _ in range(2))
    kernel = [int(rng.integers(1, 4)) for _ in range(2)]
    pads = [int(rng.integers(0, 2)) for _ in range(4)]
    strides = [int(rng.integers(1, 3)) for _ in range(2)]
    out = [
        (size + pads[i] + pads[i + 2] - kernel[i]) // strides[i] + 1
        for i, size in enumerate((h, w))
    ]
    inputs: Inputs = {
        "x": floats(rng, n, c, h, w, dtype=dtype),
        "w": floats(rng, m, inner, *kernel, dtype=dtype),
        "bias": perhaps(rng, floats(rng, m, dtype=dtype)),
        "z": perhaps(rng, floats(rng, n, m, *out, dtype=dtype)),
    }
    how: dict[str, Any] = {"group": group, "kernel_shape": kernel, "pads": pads}
    how["strides"] = strides
    names = list(ACTIVATIONS) if inputs["z"] is None else ["Relu"]
    if rng.random() < 0.8 or inputs["z"] is not None:
        how["activation"] = str(rng.choice(names))
        if ACTIVATIONS[how["activation"]]:
            how["activation_params"] = list(ACTIVATIONS[how["activation"]])
    constants = ("w", "bias") if rng.random() < 0.7 else ()
    return Sample("FusedConv", inputs, how, constants=constants, wide=dtype == "float16", loose=2)


def nhwc_max_pool(rng: Rng) -> Sample:
    dtype = str(rng.choice(["int8", "uint8"]))
    shape = [int(rng.integers(1, 4)), *(int(rng.integers(4, 8)) for _ in range(2)), 3]
    x = rng.integers(0, 100, shape).astype(dtype)
    how: dict[str, Any] = {"kernel_shape": [int(rng.integers(1, 4)) for _ in range(2)]}
    how["strides"] = [int(rng.integers(1, 3)) for _ in range(2)]
    if rng.random() < 0.5 and min(how["kernel_shape"]) > 1:
        how["pads"] = [int(rng.integers(0, 2)) for _ in range(4)]
    if rng.random() < 0.3:
        how["ceil_mode"] = 1
    return Sample("NhwcMaxPool", {"x": x}, how)


def embedding(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, s, h = (int(rng.integers(1, 5)) for _ in range(3))
    h *= 4
    segments = rng.random() < 0.6
    ids = [rng.integers(0, top, (b, s)).astype(np.int32) for top in (10, 2, 8)]
    ids[2] = ids[2][: int(rng.choice([1, b]))]
    if len(ids[2]) not in (1, b):
        ids[2] = ids[2][:1]
    inputs: Inputs = {
        "input_ids": ids[0],
        "segment_ids": perhaps(rng, ids[1], 0.8) if segments else None,
        "word": floats(rng, 10, h, dtype=dtype),
        "position": floats(rng, 8, h, dtype=dtype),
        "segment": floats(rng, 2, h, dtype=dtype) if segments else None,
        "gamma": floats(rng, h, dtype=dtype),
        "beta": floats(rng, h, dtype=dtype),
        "mask": perhaps(rng, rng.integers(0, 2, (b, s)).astype(np.int32)),
        "position_ids": perhaps(rng, ids[2], 0.4),
    }
    # onnxruntime does not load the node without the output that counts the mask.
    outputs = [(True,), (True, True), (True, True, True)][rng.integers(1, 3)]
    how = {"epsilon": 1e-3} if rng.random() < 0.5 else {}
    return Sample("EmbedLayerNormalization", inputs, how, outputs, wide=dtype == "float16")


def last(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1)


def wide(x: np.ndarray | None) -> Any:
    return None if x is None else x.astype(np.float64)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def group_norm(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        dtype = str(rng.choice(DTYPES))
        n, groups, h, w = (int(rng.integers(1, 4)) for _ in range(4))
        c = groups * int(rng.integers(1, 4))
        channels_last = int(rng.integers(2))
        act = int(rng.integers(2))
        whole = (n, h, w, c) if channels_last else (n, c, h, w)
        narrow = (n, 1, 1, c) if channels_last else (n, c, 1, 1)
        skips = [whole, narrow, (n, c)]
        scale = str(rng.choice([dtype, "float32"]))
        inputs: Inputs = {
            "x": floats(rng, *whole, dtype=dtype),
            "gamma": floats(rng, c, dtype=scale),
            "beta": floats(rng, c, dtype=scale),
        }
        if name == "SkipGroupNorm":
            inputs["skip"] = floats(rng, *skips[rng.integers(3)], dtype=dtype)
            inputs["bias"] = perhaps(rng, floats(rng, c, dtype=dtype))

        def instead(x: Any, gamma: Any, beta: Any, skip: Any = None, bias: Any = None) -> list:
            s = wide(x)
            if skip is not None:
                s = s + wide(skip.reshape(narrow) if skip.ndim == 2 else skip)
            if bias is not None:
                s = s + wide(bias if channels_last else bias[:, None, None])
            t = np.moveaxis(s, -1, 1) if channels_last else s
            t = t.reshape(n, groups, -1)
            t = (t - t.mean(-1, keepdims=True)) / np.sqrt(t.var(-1, keepdims=True) + 1e-5)
            t = t.reshape(n, c, h, w) * wide(gamma)[:, None, None] + wide(beta)[:, None, None]
            t = silu(t) if act else t
            results = [last(t) if channels_last else t, s]
            return [each.astype(dtype) for each in results[: 1 if skip is None else 2]]

        outputs = (True, True) if name == "SkipGroupNorm" else (True,)
        how = {"groups": groups, "activation": act, "channels_last": channels_last}
        return Sample(name, inputs, how, outputs, instead=instead, loose=4)

    return draw


def bias_add(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    n, s, c = (int(rng.integers(1, 5)) for _ in range(3))
    inputs: Inputs = {
        "x": floats(rng, n, s, c, dtype=dtype),
        "bias": floats(rng, c, dtype=dtype),
        "skip": floats(rng, n, s, c, dtype=dtype),
    }
    return Sample("BiasAdd", inputs, instead=lambda x, bias, skip: [x + bias + skip])


def bias_split_gelu(rng: Rng) -> Sample:
    from math import erf

    dtype = str(rng.choice(DTYPES))
    n, s, c = (int(rng.integers(1, 5)) for _ in range(3))
    inputs: Inputs = {
        "x": floats(rng, n, s, 2 * c, dtype=dtype),
        "bias": floats(rng, 2 * c, dtype=dtype),
    }

    def instead(x: Any, bias: Any) -> list:
        left, right = np.split(wide(x) + wide(bias), 2, -1)
        gelu = 0.5 * right * (1 + np.vectorize(erf)(right / np.sqrt(2)))
        return [(left * gelu).astype(dtype)]

    return Sample("BiasSplitGelu", inputs, instead=instead, loose=2)


def gemm_fast_gelu(rng: Rng) -> Sample:
    n, k, m = (int(rng.integers(1, 6)) for _ in range(3))
    inputs: Inputs = {"x": floats(rng, n, k), "w": floats(rng, k, m), "bias": floats(rng, m)}

    def instead(x: Any, w: Any, bias: Any) -> list:
        s = wide(x) @ wide(w) + wide(bias)
        inner = np.sqrt(2 / np.pi) * (s + 0.044715 * s**3)
        return [(0.5 * s * (1 + np.tanh(inner))).astype(np.float32)]

    return Sample("GemmFastGelu", inputs, instead=instead)


def matmul_activation(rng: Rng) -> Sample:
    plain = fused_matmul(rng)
    how = dict(plain.attributes)
    name, parameter = [("Relu", None), ("LeakyRelu", 0.3), ("Softmax", None)][rng.integers(3)]
    how["activation"] = name
    if parameter:
        how["activation_alpha"] = parameter

    def instead(*_: Any) -> list:
        from .samples import expected

        ((y,),) = expected([plain])
        if name == "Softmax":
            e = np.exp(y - y.max(-1, keepdims=True))
            return [e / e.sum(-1, keepdims=True)]
        return [np.where(y < 0, y * (parameter or 0), y).astype(y.dtype)]

    return Sample("FusedMatMulActivation", plain.inputs, how, instead=instead, loose=2)


def nhwc(name: str) -> Draw:
    """Draw a convolution whose channels come last, from one whose channels come first."""

    def draw(rng: Rng) -> Sample:
        from .samples import expected

        plain = fused_conv(rng)
        x, w, bias, z = plain.inputs.values()
        assert x is not None
        assert w is not None
        ours: Inputs = {"x": last(x), "w": w, "bias": bias, "z": None if z is None else last(z)}
        how = dict(plain.attributes)
        if name == "NhwcConv":
            ours = {"x": last(x), "w": last(w), "bias": bias}
            how = {n: v for n, v in how.items() if "activation" not in n}
            inputs = {"x": x, "w": w, "bias": bias}
            plain = Sample("Conv", inputs, how, domain="", wide=plain.wide)

        def instead(*_: Any) -> list:
            return [last(expected([plain])[0][0]).astype(x.dtype)]

        return Sample(name, ours, how, constants=plain.constants, instead=instead, loose=3)

    return draw


DRAWS: dict[str, Draw] = {
    "FusedMatMul": fused_matmul,
    "TransposeMatMul": transpose_matmul,
    "FusedGemm": fused_gemm,
    "FusedConv": fused_conv,
    "NhwcMaxPool": nhwc_max_pool,
    "EmbedLayerNormalization": embedding,
    "GroupNorm": group_norm("GroupNorm"),
    "SkipGroupNorm": group_norm("SkipGroupNorm"),
    "BiasAdd": bias_add,
    "FusedMatMulActivation": matmul_activation,
    "GemmFastGelu": gemm_fast_gelu,
    "BiasSplitGelu": bias_split_gelu,
    "NhwcConv": nhwc("NhwcConv"),
    "NhwcFusedConv": nhwc("NhwcFusedConv"),
}
