"""Samples of products with weights of a few bits."""

import numpy as np

from .samples import Draw, Sample

Rng = np.random.Generator


def packed(rng: Rng, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape).astype(np.uint8)


def rows(rng: Rng, k: int, dtype: str) -> np.ndarray:
    lead = [int(rng.integers(1, 5)) for _ in range(rng.integers(1, 4))]
    return rng.standard_normal((*lead, k)).astype(dtype)


def nbits(rng: Rng) -> Sample:
    dtype = str(rng.choice(["float32", "float32", "float16"]))
    bits, block = int(rng.choice([2, 4, 4, 8])), int(rng.choice([16, 32, 64]))
    k, n = int(rng.integers(1, 150)), int(rng.integers(1, 40))
    blocks = -(-k // block)
    kind = str(rng.choice(["none", "packed", "packed", "floats"]))
    if bits == 8 and kind == "floats":
        kind = "packed"  # onnxruntime's CPU has no others for eight bits
    zeros = {
        "none": None,
        "packed": packed(rng, n, -(-blocks * bits // 8)),
        "floats": (rng.random((n, blocks)) * (1 << bits)).astype(dtype),
    }
    # With g_idx, onnxruntime's CPU forgets the zero points.
    grouped = bits == 4 and kind == "none" and rng.random() < 0.5
    group = rng.integers(0, blocks, k).astype(np.int32) if grouped else None
    bias = rng.standard_normal(n).astype(dtype) if rng.random() < 0.4 else None
    inputs = {
        "A": rows(rng, k, dtype),
        "B": packed(rng, n, blocks, block * bits // 8),
        "scales": (rng.random((n, blocks)) / 8).astype(dtype),
        "zero_points": zeros[kind],
        "g_idx": group,
        "bias": bias,
    }
    attributes = {"K": k, "N": n, "block_size": block}
    if bits != 4 or rng.random() < 0.5:
        attributes["bits"] = bits
    # Level 4 lets onnxruntime round A to eight bits, which other runtimes need not.
    level = int(rng.choice([0, 1, 4]))
    if level:
        attributes["accuracy_level"] = level
    loose = 1000 if level == 4 else 2
    constants = tuple(inputs)[1:]
    return Sample(
        "MatMulNBits", inputs, attributes, constants=constants, wide=dtype != "float32", loose=loose
    )


def bnb4(rng: Rng) -> Sample:
    dtype = str(rng.choice(["float32", "float32", "float16"]))
    block = int(rng.choice([16, 32, 64]))
    k, n = int(rng.integers(1, 100)), int(rng.integers(1, 40))
    size = k * n
    inputs = {
        "A": rows(rng, k, dtype),
        "B": packed(rng, -(-size // 2)),
        "absmax": rng.random(-(-size // block)).astype(dtype),
    }
    attributes = {"K": k, "N": n, "block_size": block, "quant_type": int(rng.integers(2))}
    if rng.random() < 0.3:
        attributes["training_mode"] = 1
    return Sample(
        "MatMulBnb4", inputs, attributes, constants=("B", "absmax"), wide=dtype != "float32"
    )


def blob(rng: Rng) -> Sample:
    """Blocks of a scale, perhaps a zero point, and 32 elements."""
    k, n, kind = int(rng.integers(1, 150)), int(rng.integers(1, 40)), int(rng.integers(2))
    blocks = -(-k // 32)
    scales = (rng.random((n, blocks, 1)) / 8).astype(np.float32).view(np.uint8)
    zeros = rng.integers(0, 16, (n, blocks, kind)).astype(np.uint8)
    inputs = {
        "A": rows(rng, k, "float32"),
        "B": np.concatenate([scales, zeros, packed(rng, n, blocks, 16)], 2).reshape(-1),
        "B_shape": np.array([k, n], np.int64),
    }
    how = {} if kind and rng.random() < 0.5 else {"blk_quant_type": kind}
    return Sample("MatMulFpQ4", inputs, how, constants=("B", "B_shape"))


DRAWS: dict[str, Draw] = {"MatMulNBits": nbits, "MatMulBnb4": bnb4, "MatMulFpQ4": blob}
