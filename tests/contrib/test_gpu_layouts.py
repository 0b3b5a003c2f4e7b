"""Weights that onnxruntime-genai's builder packs for GPUs are those that it packs otherwise.

packed_orders.npz has what its `pack_weights_for_cuda_mixed_gemm` (0.18) returns for random bytes,
by bits, architecture, columns and terms.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tercet
from tercet.importers.onnx.upgrading.gpu_layouts import in_order
from tercet.runtime.ir.types import Array

from .samples import Sample, feeds_of, model_of

FILE = Path(__file__).with_name("packed_orders.npz")
COUNT, HIDDEN, INNER, ROWS = 3, 128, 64, 5


def packed(bits: int, arch: int, columns: int, terms: int) -> tuple[Array, Array]:
    """Weights as documented, and as the builder packs them."""
    rng = np.random.default_rng([bits, columns, terms])
    plain = rng.integers(0, 256, (columns, terms * bits // 8), np.uint8)
    with np.load(FILE) as file:
        return plain, file[f"{bits}_{arch}_{columns}_{terms}"]


@pytest.mark.parametrize(("bits", "arch"), [(2, 80), (4, 80), (8, 80), (4, 90), (8, 90)])
def test_weights_of_products(bits: int, arch: int) -> None:
    plain, moved = packed(bits, arch, 32, 128)
    assert (in_order(moved, 32, 128, bits, turns=arch == 80) == plain).all()
    x = np.random.default_rng(0).standard_normal((3, 128)).astype(np.float32)
    scales = np.random.default_rng(1).random(32 * 2).astype(np.float32)
    attributes = {"K": 128, "N": 32, "block_size": 64, "bits": bits}

    def run(weights: Array, **more: int) -> Array:
        inputs = {"A": x, "B": weights.reshape(32, 2, -1), "scales": scales}
        sample = Sample("MatMulNBits", inputs, attributes | more, constants=("B", "scales"))
        with tercet.load(model_of(sample)) as model:
            return model.run(feeds_of(sample))[model.outputs[0].name]

    assert (run(moved, weight_prepacked=2 if arch == 90 else 1) == run(plain)).all()


def experts(layers: dict[str, tuple[Array, Array]], **attributes: object) -> Array:
    """Run experts with weights and scales by layer."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((ROWS, HIDDEN)).astype(np.float32)
    router = rng.standard_normal((ROWS, COUNT)).astype(np.float32)
    inputs: dict[str, Array | None] = {"x": x, "router": router}
    for name, (weights, scales) in layers.items():
        inputs |= {name: weights, f"{name}.scales": scales, f"{name}.bias": None}
    rest = dict.fromkeys(("w3", "s3", "b3", "z1", "z2", "z3", "given"))
    if "quant_type" in attributes:
        factors = np.array([1, 2, 0.5], np.float32)
        inputs |= {**rest, "fc1.factor": factors, "fc2.factor": factors[::-1].copy()}
    held = tuple(name for name, data in inputs.items() if data is not None)[2:]
    given = {"k": 2, "activation_type": "silu", **attributes}
    sample = Sample("QMoE", inputs, given, constants=held)
    with tercet.load(model_of(sample)) as model:
        return model.run(feeds_of(sample))[model.outputs[0].name]


@pytest.mark.parametrize("more", [{}, {"weights_prepacked": 1}])
def test_weights_of_experts(more: dict[str, int]) -> None:
    """The middle axis is that of the terms, whether the file says so or not."""
    layers: list[dict[str, tuple[Array, Array]]] = [{}, {}]
    for name, columns, terms in (("fc1", INNER, HIDDEN), ("fc2", HIDDEN, INNER)):
        scales = np.random.default_rng(terms).random((COUNT, columns, terms // 32)) / terms
        for to, data in zip(layers, packed(4, 80, columns, terms), strict=True):
            form = (columns, terms // 2) if to is layers[0] else (terms, columns // 2)
            weights = np.stack([data.reshape(form)] * COUNT)
            to[name] = weights, scales.astype(np.float32)
    wanted = experts(layers[0], block_size=32, weights_prepacked=0)
    assert (experts(layers[1], block_size=32, **more) == wanted).all()


@pytest.mark.parametrize("is_moved", [True, False])
@pytest.mark.parametrize(
    ("kind", "block", "dtype"),
    [("fp4", 32, ml_dtypes.float8_e8m0fnu), ("nvfp4", 16, ml_dtypes.float8_e4m3fn)],
)
def test_experts_of_floats_of_four_bits(kind: str, block: int, dtype: type, is_moved: bool) -> None:
    """Against integers of eight bits, that have the same values times their scales."""
    rng = np.random.default_rng(3)
    fours: dict[str, tuple[Array, Array]] = {}
    eights: dict[str, tuple[Array, Array]] = {}
    for name, columns, terms, factors in (
        ("fc1", INNER, HIDDEN, (1, 2, 0.5)),
        ("fc2", HIDDEN, INNER, (0.5, 2, 1)),
    ):
        codes = rng.integers(0, 16, (COUNT, columns, terms), np.uint8)
        scales = (2.0 ** rng.integers(-9, -4, (COUNT, columns, terms // block))).astype(dtype)
        rows = codes.transpose(0, 2, 1) if is_moved else codes
        fours[name] = rows[..., ::2] | rows[..., 1::2] << 4, scales
        values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        wide = scales.astype(np.float32) * np.reshape(factors, (-1, 1, 1)) / 2
        eights[name] = (128 + 2 * values).astype(np.uint8), wide.astype(np.float32)
    wanted = experts(eights, block_size=block, expert_weight_bits=8)
    assert np.abs(wanted).max() > 0.1
    assert (experts(fours, quant_type=kind, block_size=block) == wanted).all()
