"""`tercet compress`: pruned and shared weights, in models that other runtimes load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from onnxruntime import InferenceSession

import tercet as api
from tercet.tools.compress.codec import (
    gaps_of,
    huffman_bytes,
    huffman_lengths,
    pruned,
    shared,
)
from tercet.tools.demo.demo import DEMO, Sample

from .conftest import Tercet

Array = np.ndarray[Any, Any]


# ── the code ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "positions",
    [[], [0], [300], [0, 255], [0, 256], [5, 5 + 510], [5, 5 + 511], [0, 1, 1000, 1001, 5000]],
    ids=str,
)
def test_running_sums_of_gaps_are_positions(positions: list[int]) -> None:
    """A gap over 255 takes fillers, as few as can be."""
    gaps, is_weight = gaps_of(np.array(positions, np.int64))
    assert gaps.dtype == np.uint8
    found = np.cumsum(gaps, dtype=np.int64)
    assert found[is_weight].tolist() == positions
    assert len(set(found.tolist())) == len(found)
    steps = np.diff([0, *positions])
    assert len(gaps) == sum(1 if step == 0 else -(-step // 255) for step in steps.tolist())


def test_gaps_of_any_density() -> None:
    rng = np.random.default_rng(0)
    for density in (0.001, 0.01, 0.1, 0.9):
        positions = np.flatnonzero(rng.random(20_000) < density)
        gaps, is_weight = gaps_of(positions)
        np.testing.assert_array_equal(np.cumsum(gaps, dtype=np.int64)[is_weight], positions)


@pytest.mark.parametrize("kinds", [1, 2, 3, 20, 256])
def test_huffman_codes_are_the_shortest(kinds: int) -> None:
    """Kraft's sum is 1, and the mean is within a bit of the entropy."""
    rng = np.random.default_rng(kinds)
    symbols = np.floor(kinds * rng.random(10_000) ** 3).astype(np.uint8)
    lengths = huffman_lengths(symbols)
    _, counts = np.unique(symbols, return_counts=True)
    shares = counts / counts.sum()
    entropy = float(-(shares * np.log2(shares)).sum())
    mean = float(np.dot(shares, list(lengths.values())))
    assert sum(2.0**-n for n in lengths.values()) == (0.5 if len(lengths) == 1 else 1)
    assert entropy <= mean + 1e-9
    assert mean <= entropy + 1
    assert huffman_bytes(symbols) == -(-round(mean * len(symbols)) // 8) + len(counts)


def test_shared_values() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000).astype(np.float32)
    errors = []
    for clusters in (2, 8, 32, 256):
        codes, codebook = shared(values, clusters)
        assert codes.dtype == np.uint8
        assert codebook.dtype == np.float32
        assert codes.max() < len(codebook) <= clusters
        chosen = np.abs(values - codebook[codes])
        nearest = np.abs(values[:, None] - codebook).min(1)
        np.testing.assert_array_equal(chosen, nearest)
        low, high = values.min(), values.max()
        steps = np.linspace(low, high, clusters, dtype=np.float32)
        uniform = np.abs(values[:, None] - steps).min(1)
        assert np.square(chosen).sum() <= np.square(uniform).sum()
        errors.append(float(np.square(chosen).sum()))
    assert errors == sorted(errors, reverse=True)


def test_few_values_are_kept_exactly() -> None:
    values = np.random.default_rng(0).choice(np.array([-1, 0.25, 3], np.float16), 100)
    codes, codebook = shared(values, 8)
    np.testing.assert_array_equal(codebook[codes], values)


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 1])
def test_the_smallest_are_pruned(share: float) -> None:
    w = np.random.default_rng(0).standard_normal((20, 50)).astype(np.float32)
    found = pruned(w, share)
    assert np.count_nonzero(found) == round((1 - share) * w.size)
    kept = found != 0
    np.testing.assert_array_equal(found[kept], w[kept])
    if 0 < share < 1:
        assert np.abs(w[~kept]).max() <= np.abs(w[kept]).min()


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def network(folder: Path, dtype: type = np.float32) -> Path:
    """Write a Conv, a Gemm and a small MatMul; return the file."""
    kind = "float" if dtype is np.float32 else "float16"
    text = f"""
        <ir_version: 8, opset_import: ["": 17]>
        g ({kind}[1, 8, 6, 6] x) => (y) {{
            c = Conv <pads = [1, 1, 1, 1]> (x, conv_w)  r = Relu (c)  f = Flatten (r)
            h = Gemm (f, gemm_w)  y = MatMul (h, small_w)
        }}"""
    model = parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("conv_w", (32, 8, 3, 3)), ("gemm_w", (1152, 20)), ("small_w", (20, 3))):
        w = rng.standard_normal(shape).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(w, name))
    onnx.save(model, folder / "network.onnx")
    return folder / "network.onnx"


def decoded(file: Path) -> dict[str, Array]:
    """Return the weights that layers of a compressed model multiply with, by layer."""
    with api.load(file) as model:
        dense = [node for node in model.graph.nodes if node.kind in ("Conv", "Gemm", "MatMul")]
        return {node.kind: np.asarray(node.distinct_reads[1].data) for node in dense}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "chosen", [{"sparsity": 0.95}, {"bits": 4}, {"sparsity": 0.9, "bits": 5}, {"sparsity": 1.0}]
)
def test_other_runtimes_load_it(chosen: dict[str, Any], dtype: type, folder: Path) -> None:
    """onnxruntime gives the same for it as for a model with these weights written out."""
    source = network(folder, dtype)
    found = api.compress(source, folder / "small.onnx", **chosen)
    weights = decoded(folder / "small.onnx")
    plain = onnx.load(source)
    for tensor, kind in zip(plain.graph.initializer, ("Conv", "Gemm", "MatMul"), strict=True):
        tensor.CopyFrom(numpy_helper.from_array(weights[kind], tensor.name))
    x = {"x": np.random.default_rng(1).standard_normal((1, 8, 6, 6)).astype(dtype)}
    sources = (str(folder / "small.onnx"), plain.SerializeToString())
    results = [InferenceSession(each).run(None, x)[0] for each in sources]
    np.testing.assert_array_equal(results[0], results[1])
    by_name = {each.name: each for each in found.weights}
    assert set(by_name) == {"conv_w", "gemm_w"}
    for name, kind in (("conv_w", "Conv"), ("gemm_w", "Gemm")):
        w, each = weights[kind], by_name[name]
        assert each.density == np.count_nonzero(w) / w.size <= 1 - chosen.get("sparsity", 0) + 1e-3
        if "bits" in chosen:
            assert len(set(w.ravel().tolist())) <= each.values <= 2 ** chosen["bits"]
        assert each.after < each.before
        original = numpy_helper.to_array(
            next(i for i in onnx.load(source).graph.initializer if i.name == name)
        ).astype(np.float64)
        apart = np.linalg.norm(w.reshape(original.shape) - original) / np.linalg.norm(original)
        assert each.error == pytest.approx(apart, rel=1e-3)
    stored = sum(len(i.SerializeToString()) for i in onnx.load("small.onnx").graph.initializer)
    assert found.after <= stored < found.after + 1000


def test_figures_by_name(tercet: Tercet, folder: Path) -> None:
    network(folder)
    chosen = ("--sparsity", "0.5", "--sparsity", "gemm_w=0.9", "--bits", "Conv=3")
    found = tercet("compress", "network.onnx", "small.onnx", *chosen, "--json").json
    by_name = {each["name"]: each for each in found["weights"]}
    assert by_name["conv_w"]["density"] == pytest.approx(0.5, abs=0.01)
    assert by_name["gemm_w"]["density"] == pytest.approx(0.1, abs=0.01)
    assert by_name["conv_w"]["values"] == 8
    assert by_name["gemm_w"]["values"] == 0
    sizes = found["constants"]
    assert sizes["huffman"] <= sizes["after"] < sizes["before"]
    assert found["outputs"][0]["error"] > 0
    done = tercet("compress", "network.onnx", "small.onnx", *chosen, "--min-elements", "1")
    assert done.code == 0
    assert "small_w" in done.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "give sparsity, the share of weights to prune, or bits"),
        ("--sparsity 1.5", "--sparsity 1.5: expected a share of the weights, from 0 to 1"),
        ("--sparsity gemm_w=2", "--sparsity gemm_w=2.0: expected a share"),
        ("--sparsity much", "--sparsity much: expected a number"),
        ("--bits 9", "0 to 8 bits"),
        ("--bits 2.5", "--bits 2.5: expected a whole number"),
        ("--bits gem_w=4", "did you mean 'gemm_w'"),
        ("--sparsity 0.5 network.onnx", ""),
    ],
)
def test_wrong_usage(options: str, said: str, tercet: Tercet, folder: Path) -> None:
    network(folder)
    done = tercet("compress", "network.onnx", "small.onnx", *options.split())
    assert done.code == 2
    assert said in done.err
    assert not Path("small.onnx").exists()


def test_weights_that_are_all_too_small(tercet: Tercet, folder: Path) -> None:
    network(folder)
    chosen = ("--bits", "4", "--min-elements", "1000000")
    done = tercet("compress", "network.onnx", "small.onnx", *chosen)
    assert done.code == 0
    assert "nothing compressed" in done.out


def test_a_trained_network_bears_it() -> None:
    """Half of the weights and 32 values a layer: the digits of the demonstration are still read."""
    sample = Sample.read(DEMO / "digits.npz")
    chosen = {"sparsity": 0.5, "bits": 5, "min_elements": 100}
    found = api.compress(DEMO / "digits.onnx", None, [sample.image], **chosen)
    assert found.after < found.before / 3
    assert found.outputs[0].top1 >= 0.9
