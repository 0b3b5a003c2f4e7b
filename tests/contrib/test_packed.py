"""Weights of a few bits stay packed, and what onnxruntime's CPU has not is right, too."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet
from tercet.backends.numpy.ops import packed_columns

from .samples import Sample, feeds_of, model_of

SIZE, LAYERS = 512, 6


def _layers() -> tuple[onnx.ModelProto, int]:
    """Return layers of int4 weights, and the bytes of these."""
    rng, total, nodes, held = np.random.default_rng(0), 0, [], []
    for i in range(LAYERS):
        weights = rng.integers(0, 256, (SIZE, SIZE // 32, 16)).astype(np.uint8)
        scales = (rng.random((SIZE, SIZE // 32)) / SIZE).astype(np.float32)
        total += weights.nbytes + scales.nbytes
        held += [
            numpy_helper.from_array(weights, f"w{i}"),
            numpy_helper.from_array(scales, f"s{i}"),
        ]
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                [f"x{i}", f"w{i}", f"s{i}"],
                [f"x{i + 1}"],
                domain="com.microsoft",
                K=SIZE,
                N=SIZE,
                block_size=32,
            )
        )
    ends = [
        helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["n", SIZE]) for i in (0, LAYERS)
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), total


def test_weights_stay_packed() -> None:
    """A model holds what its file does, and a part of a megabyte for each thread."""
    model, total = _layers()
    with tercet.load(model) as loaded:
        loaded.run({"x0": np.ones((4, SIZE), np.float32)})
        memory = loaded.memory()
    assert memory.weights["cpu"] <= 1.01 * total
    assert memory.activations["cpu"] < 1 << 16
    assert memory.workspace["cpu"] <= 8 << 20


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("more", [False, True])
def test_constants_are_columns_unless_they_are_large(
    more: bool, bits: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both against float64, with zero points and a bias or without; neither is a second copy.

    K is no multiple of a block, N none of the rows that are unpacked together, and 40 rows are
    multiplied by scaled weights.
    """
    rng, n, k, block = np.random.default_rng(bits), 1030, 520, 32
    blocks = -(-k // block)
    packed = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = (rng.random((n, blocks)) / 100).astype(dtype)
    zeros = rng.integers(0, 1 << bits, (n, blocks)).astype(dtype)
    bias = rng.standard_normal(n).astype(dtype) if more else np.zeros(n, dtype)
    codes = (packed[..., np.newaxis] >> np.arange(0, 8, bits)) & ((1 << bits) - 1)
    points = zeros if more else np.full_like(zeros, 1 << (bits - 1))
    weights = codes.reshape(n, blocks, block) - points[..., np.newaxis].astype(float)
    weights = (weights * scales[..., np.newaxis]).reshape(n, -1)[:, :k]
    a = rng.standard_normal((40, k)).astype(dtype)
    held: dict[str, np.ndarray | None] = {"B": packed, "scales": scales}
    if more:
        held |= {"zero_points": zeros, "g_idx": None, "bias": bias}
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    sample = Sample("MatMulNBits", {"A": a, **held}, attributes, constants=tuple(held))
    exact, totals = a.astype(float) @ weights.T + bias, []
    bound = (2e-6 if dtype == np.float32 else 1e-3) * np.abs(exact).max()
    for most in (packed.nbytes, packed.nbytes + 1):
        monkeypatch.setattr(packed_columns, "LARGE", most)
        with tercet.load(model_of(sample, symbolic=True)) as model:
            for some in (slice(0, 3), slice(1, 2), slice(0, 40)):
                (found,) = model.run({"A": a[some]}).values()
                np.testing.assert_allclose(found, exact[some], rtol=0, atol=bound)
            totals.append(model.memory().weights["cpu"])
    assert totals[1] <= totals[0] + 4 * (scales.size + more * zeros.size)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_model_holds_packed_weights_once(bits: int) -> None:
    """Its arrays are the columns that products read: one allocation of as many bytes."""
    n, k, block = 512, 1024, 32
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (n, k // block, block * bits // 8)).astype(np.uint8)
    scales = rng.random((n, k // block), np.float32)
    inputs = {"A": rng.standard_normal((1, k)).astype(np.float32), "B": packed, "scales": scales}
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block}
    sample = Sample("MatMulNBits", inputs, sizes, constants=("B", "scales"))
    model = model_of(sample)
    with tercet.load(model) as warm:
        warm.run(feeds_of(sample))  # imports what it needs
    tracemalloc.start()
    try:
        with tercet.load(model) as loaded:
            before, _ = tracemalloc.get_traced_memory()
            loaded.run(feeds_of(sample))
            after, _ = tracemalloc.get_traced_memory()
            workspace = loaded.memory().workspace["cpu"]
            held = loaded.graph.values
            constants = [v.data for v in held.values() if v.data is not None]
    finally:
        tracemalloc.stop()
    assert after - before < workspace + packed.nbytes // 2
    for given in (packed, scales):
        assert any(np.array_equal(data, given) for data in constants)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zero_points_of_floats(bits: int) -> None:
    """Against the formula: onnxruntime's CPU has them for two and four bits only."""
    rng, n, k, block = np.random.default_rng(bits), 5, 40, 16
    codes = rng.integers(0, 1 << bits, (n, 3 * block))
    each = 8 // bits
    shifts = np.arange(each) * bits
    packed = (codes.reshape(n, -1, each) << shifts).sum(-1).astype(np.uint8).reshape(n, 3, -1)
    scales, zeros = rng.random((2, n, 3)).astype(np.float32)
    weights = (codes - np.repeat(zeros, block, 1)) * np.repeat(scales, block, 1)
    a = rng.standard_normal((2, k)).astype(np.float32)
    inputs = {"A": a, "B": packed, "scales": scales, "zero_points": zeros}
    sample = Sample("MatMulNBits", inputs, {"K": k, "N": n, "bits": bits, "block_size": block})
    with tercet.load(model_of(sample)) as model:
        (found,) = model.run(inputs).values()
    np.testing.assert_allclose(found, a @ weights[:, :k].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 90, 100, 130])
def test_rows_of_all_counts(rows: int, bits: int, dtype: type) -> None:
    """Against float64: sums are scaled for few rows, transposed weights for some or many.

    K is no multiple of a block, and N none of the rows that are unpacked at a time.
    """
    rng, n, k, block = np.random.default_rng(rows), 300, 2000, 128
    codes = rng.integers(0, 1 << bits, (n, -(-k // block) * block))
    zeros = rng.integers(0, 1 << bits, (n, codes.shape[1] // block))
    scales = (rng.random(zeros.shape) / 100).astype(dtype)
    shifts = np.arange(8 // bits) * bits

    def packed(integers: np.ndarray) -> np.ndarray:
        return (integers.reshape(n, -1, 8 // bits) << shifts).sum(-1).astype(np.uint8)

    weights = (codes - np.repeat(zeros, block, 1)) * np.repeat(scales.astype(float), block, 1)
    a, bias = rng.standard_normal((rows, k)).astype(dtype), rng.standard_normal(n).astype(dtype)
    inputs = {
        **{"A": a, "B": packed(codes).reshape(n, zeros.shape[1], -1), "scales": scales},
        **{"zero_points": packed(zeros), "g_idx": None, "bias": bias},
    }
    sample = Sample("MatMulNBits", inputs, {"K": k, "N": n, "bits": bits, "block_size": block})
    with tercet.load(model_of(sample)) as model:
        (found,) = model.run(feeds_of(sample)).values()
    exact = a.astype(float) @ weights[:, :k].T + bias
    bound = 2e-6 if dtype == np.float32 else 1e-3
    assert np.abs(found - exact).max() <= bound * np.abs(exact).max()


def test_groups_have_their_zero_points() -> None:
    """onnxruntime's CPU takes 8 for all of them where there is a g_idx."""
    group = np.array([1, 0] * 16, np.int32)
    inputs = {
        "A": np.eye(32, dtype=np.float32),
        "B": np.zeros((1, 2, 8), np.uint8),
        "scales": np.array([[1, 10]], np.float32),
        "zero_points": np.array([[0x53]], np.uint8),
        "g_idx": group,
    }
    model = model_of(Sample("MatMulNBits", inputs, {"K": 32, "N": 1, "block_size": 16}))
    (found,) = tercet.load(model).run(inputs).values()
    np.testing.assert_array_equal(found[:, 0], np.where(group, -50, -3))


def test_groups_of_two_bits() -> None:
    """onnxruntime's CPU takes four bits for each weight where there is a g_idx."""
    group = np.array([1, 0] * 16, np.int32)
    inputs = {
        "A": np.eye(32, dtype=np.float32),
        "B": np.full((1, 2, 4), 0b11_10_01_00, np.uint8),
        "scales": np.array([[1, 10]], np.float32),
        "zero_points": None,
        "g_idx": group,
    }
    sample = Sample("MatMulNBits", inputs, {"K": 32, "N": 1, "block_size": 16, "bits": 2})
    (found,) = tercet.load(model_of(sample)).run(feeds_of(sample)).values()
    wanted = np.tile([-2, -1, 0, 1], 8) * np.where(group, 10, 1)
    np.testing.assert_array_equal(found[:, 0], wanted)


def test_the_other_way_around() -> None:
    """MatMulBnb4 with transB=0, which onnxruntime's CPU does not have."""
    rng, n, k = np.random.default_rng(1), 4, 6
    a = rng.standard_normal((3, n)).astype(np.float32)
    inputs = {
        "A": np.eye(k, dtype=np.float32),
        "B": rng.integers(0, 256, n * k // 2).astype(np.uint8),
        "absmax": rng.random(2).astype(np.float32),
    }
    attributes = {"K": k, "N": n, "block_size": 16, "quant_type": 1}
    (transposed,) = (
        tercet.load(model_of(Sample("MatMulBnb4", inputs, attributes))).run(inputs).values()
    )
    inputs["A"], attributes["transB"] = a, 0
    (found,) = tercet.load(model_of(Sample("MatMulBnb4", inputs, attributes))).run(inputs).values()
    np.testing.assert_allclose(found, a @ transposed.T, rtol=1e-5, atol=1e-6)


def test_prepacked_weights_are_refused_with_a_recipe() -> None:
    inputs = {
        "A": np.ones((1, 32), np.float32),
        "B": np.zeros((4, 1, 16), np.uint8),
        "scales": np.ones(4, np.float32),
    }
    attributes = {"K": 32, "N": 4, "block_size": 32, "weight_prepacked": 2}
    model = model_of(Sample("MatMulNBits", inputs, attributes))
    with pytest.raises(tercet.UnsupportedError, match=r"weight_prepacked=2.*quantize the model"):
        tercet.load(model).run(inputs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": 3}, "bits=3; expected 2, 4 or 8"),
        ({"block_size": 24}, "block_size=24; expected a power of two"),
        ({"K": 64}, "expected 128 elements"),
        ({"N": 0}, "N=0; expected at least 1"),
    ],
)
def test_what_contradicts_itself(change: dict[str, int], said: str) -> None:
    inputs = {
        "A": np.ones((1, 32), np.float32),
        "B": np.zeros((4, 1, 16), np.uint8),
        "scales": np.ones(4, np.float32),
    }
    attributes = {"K": 32, "N": 4, "block_size": 32, **change}
    with pytest.raises(tercet.ModelError, match=said):
        tercet.load(model_of(Sample("MatMulNBits", inputs, attributes)))
