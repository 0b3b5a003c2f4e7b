"""Normalizations of groups of channels, channels last: who sums up what, and how exactly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.codegen import epilogue
from tercet.backends.cuda.norm import channel_groups
from tercet.backends.cuda.norm.channel_groups import Images, Slabs
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Split
from tercet.runtime.ops.norm import GroupNormalization, InstanceNormalization, RMSNormalization
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.session.model import Model

from .cubins import assert_plans_compile
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"norm/channel_groups.cu"}
RMS = -1


def images(
    shape: tuple[int, ...], groups: int, dtype: DType, *behind: str, offset: float = 0.0
) -> Sample:
    """Return a normalization of images of a convolution, which has them channels last.

    Args:
        shape: of the images.
        groups: 0 for one group per channel; RMS for channels that are divided by their own root
            mean square.
        dtype: of everything.
        behind: elementwise operators on the results.
        offset: added to the images.
    """
    graph, channels = Graph("images"), shape[1]
    x = graph.add_input("x", TensorType(dtype, shape))
    constants: list[Array] = [
        np.eye(channels).reshape(channels, channels, *(1,) * len(shape[2:])),
        np.full(channels, offset),
        *(normal(channels, n)[:, 0] for n in (2, 3)),
    ]
    w, b, scale, shift = (graph.constant(a.astype(dtype)) for a in constants)
    y = first = graph.insert(Conv(), [x, w, b]).output
    if groups == RMS:
        ones = graph.constant(np.ones(shape[2:], dtype))
        y = graph.insert(RMSNormalization(axis=2), [y, ones]).output
    else:
        op = GroupNormalization(num_groups=groups) if groups else InstanceNormalization()
        y = graph.insert(op, [y, scale, shift]).output
    for kind in behind:
        scales = graph.constant(normal(channels, 5)[:, :1, None].astype(dtype))
        more = {"Add": [first], "Mul": [scales], "Max": [scales]}.get(kind, [])
        y = graph.insert(OPERATORS["", kind](), [y, *more]).output
    graph.set_outputs({"y": graph.insert(Conv(), [y, w]).output})
    infer(graph)
    return Sample(graph, {"x": normal(*shape).astype(dtype)})


def divide(patch: pytest.MonkeyPatch, width: int, parts: int, pixels: int, **how: Any) -> None:
    """Divide all images in this way."""
    chunk = -(-pixels // parts)
    given = {"is_cluster": False, "kept": 0, **how}
    patch.setattr(channel_groups, "divided", lambda *_: Slabs(512, width, parts, chunk, **given))


@pytest.fixture(autouse=True)
def filling(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few channels images have, they are normalized in place."""
    monkeypatch.setattr(epilogue, "FILLING", 0)


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


def recipe(sample: Sample, target: Target = H200) -> list[str]:
    device = DryDevice(compiler=DryCompiler(target=target))
    found = launches(planned(sample.graph, device))
    return [each.entry for each in found if each.entry.startswith("channel_")]


@pytest.mark.parametrize(
    ("shape", "groups", "count"),
    [
        ((32, 64, 56, 56), 32, {"sm_90a": 1, "sm_80": 2}),
        ((32, 2048, 7, 7), 32, {"sm_90a": 1, "sm_80": 1}),
        ((1, 256, 56, 56), 32, {"sm_90a": 1, "sm_80": 2}),
        ((1, 64, 512, 512), 0, {"sm_90a": 2, "sm_80": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_one_launch_where_a_cluster_has_room(
    shape: tuple[int, ...], groups: int, count: dict[str, int], target: Target
) -> None:
    found = recipe(images(shape, groups, float16), target)
    assert len(found) == count[target.arch]


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (320, 32), (96, 0), (24, 8), (96, RMS)])
def test_no_format_changes_beside_a_norm(channels: int, groups: int, dtype: DType) -> None:
    """However few channels a group has."""
    layout = planned(images((8, channels, 28, 28), groups, dtype, "Relu").graph)
    at = [row.kernel.startswith("channel_groups") for row in layout.rows].index(True)
    assert [row.kind for row in layout.rows[at - 1 : at + 2]] == ["step"] * 3


def test_channels_divided_by_their_root_mean_square_are_scaled_at_once() -> None:
    """Filter response normalization: a scale and a limit for each channel."""
    layout = planned(images((2, 64, 28, 28), RMS, float16, "Mul", "Max").graph)
    assert [row.kind for row in layout.rows].count("step") == 3


@pytest.mark.parametrize(("batch", "in_place"), [(1, False), (32, True)])
def test_few_channels_are_divided_in_c_order(
    batch: int, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert bool(recipe(images((batch, 64, 28, 28), RMS, float16, "Max"))) == in_place


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("depth", [1, 3, 10, 64])
@pytest.mark.parametrize(("number", "pixels"), [(1, 1), (1, 70_000), (32, 49), (3, 784)])
def test_slabs_cover_images(number: int, pixels: int, depth: int, itemsize: int) -> None:
    """A slab has whole groups and whole words, and no part is without a pixel."""
    for target in (A100, H200):
        all_of_them = Images(number, pixels, 12 * depth, depth, itemsize)
        found = channel_groups.divided(all_of_them, target)
        assert found
        assert found.width % depth == found.width % all_of_them.vector == 0
        assert all_of_them.channels % found.width == 0
        assert (found.parts - 1) * found.chunk < pixels <= found.parts * found.chunk
        assert not found.is_cluster or (target.has_clusters and itemsize < 8 >= found.parts)


# ── on the host ──────────────────────────────────────────────────────────────────────────────────

FORMS: list[tuple[tuple[int, ...], int, DType, tuple[str, ...]]] = [
    ((2, 16, 5, 6), 8, float16, ("Relu",)),
    ((1, 40, 7, 9), 4, float16, ("Add", "Relu")),
    ((2, 24, 6, 5), 0, bfloat16, ("Mul", "Add")),
    ((2, 12, 9, 4), 3, float32, ("Swish",)),
    ((1, 64, 3, 3), 1, float32, ("Add",)),
    ((1, 3, 11, 7), 0, float32, ()),
    ((2, 8, 2, 3, 4), 2, float32, ("Relu",)),
    ((2, 8, 4, 4), 2, float64, ()),
    ((2, 16, 5, 6), RMS, float16, ("Mul", "Max")),
    ((1, 12, 9, 4), RMS, float32, ()),
    ((1, 3, 11, 7), RMS, float32, ("Max",)),
    ((2, 8, 2, 3, 4), RMS, float32, ("Relu",)),
]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("shape", "groups", "dtype", "behind"), FORMS, ids=str)
def test_groups(
    shape: tuple[int, ...],
    groups: int,
    dtype: DType,
    behind: tuple[str, ...],
    emulated: CudaBackend,
) -> None:
    compare(images(shape, groups, dtype, *behind), emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["", "Mul", "Max"])
@pytest.mark.parametrize("shape", [(2, 6, 9, 8), (3, 4, 5, 3, 2)], ids=str)
def test_channels_divided_by_their_root_mean_square_in_c_order(
    shape: tuple[int, ...], kind: str, emulated: CudaBackend
) -> None:
    graph = Graph("rms")
    x = graph.add_input("x", TensorType(float32, shape))
    y = graph.insert(RMSNormalization(axis=2), [x, graph.constant(np.ones(shape[2:], float32))])
    if kind:
        of_channels = normal(shape[1], 5)[:, :1].reshape(-1, *(1,) * len(shape[2:]))
        y = graph.insert(OPERATORS["", kind](), [y.output, graph.constant(of_channels)])
    graph.set_outputs({"y": y.output})
    infer(graph)
    assert len(launches(planned(graph))) == 1
    compare(Sample(graph, {"x": normal(*shape)}), emulated)


@pytest.mark.parametrize("shape", [(4, 32, 64), (4, 8, 16, 64)], ids=str)
def test_rows_divided_by_their_root_mean_square_stay_rows(shape: tuple[int, ...]) -> None:
    """Without a scale, and with a number for each place of a row behind."""
    graph = Graph("rows")
    x = graph.add_input("x", TensorType(float32, shape))
    y = graph.insert(RMSNormalization(), [x, graph.constant(np.ones(64, float32))]).output
    y = graph.insert(OPERATORS["", "Mul"](), [y, graph.constant(normal(64, 2)[:, 0])]).output
    graph.set_outputs({"y": y})
    infer(graph)
    assert [each.entry for each in launches(planned(graph))] == ["normalize_rows"]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "how", ["alone", "kept", "in two launches", "in a cluster", "kept in a cluster"]
)
@pytest.mark.parametrize(
    ("groups", "width", "dtype"),
    [(16, 8, float16), (4, 32, float16), (1, 32, float16), (8, 4, float32), (2, 16, float32)],
    ids=str,
)
def test_however_images_are_divided(
    how: str,
    groups: int,
    width: int,
    dtype: DType,
    h200: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = 1 if how in ("alone", "kept") else 3
    kept = 512 * 16 * 8 * how.startswith("kept")
    divide(monkeypatch, width, parts, 35, is_cluster="cluster" in how, kept=kept)
    sample = images((2, 32, 5, 7), groups, dtype, "Add", "Relu")
    entries = recipe(sample)
    assert entries == ["channel_moments"] * ("launches" in how) + ["channel_groups"]
    compare(sample, h200)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("parts", [1, 3])
def test_a_mean_far_from_zero(
    parts: int, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of squares would have no digit left of it."""
    divide(monkeypatch, 8, parts, 400, is_cluster=parts > 1)
    sample = images((1, 8, 20, 20), 4, float32, offset=3000.0)
    with Model(sample.graph.clone(), (h200,), OPTIONS, evaluate) as model:
        (got,) = (np.asarray(y) for y in model.run(sample.feeds).values())
    x = sample.feeds["x"].astype(float64).reshape(1, 4, 800) + 3000.0
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    scale, shift = (normal(8, n)[:, 0].reshape(8, 1) for n in (2, 3))
    want = want.reshape(8, 400) * scale + shift
    np.testing.assert_allclose(got.reshape(8, 400), want, rtol=0, atol=2e-3)


@pytest.mark.slow
@needs_compiler
def test_what_is_no_number_stays_in_its_group(h200: CudaBackend) -> None:
    sample = images((1, 16, 5, 5), 4, float32)
    sample.feeds["x"][0, 5, 2, 2] = np.nan
    with Model(sample.graph.clone(), (h200,), OPTIONS, evaluate) as model:
        (y,) = model.run(sample.feeds).values()
    assert np.isnan(np.asarray(y)).all()  # of every channel, by the last convolution


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    graphs = [
        images(shape, groups, dtype, *behind).graph
        for shape, groups, dtype, behind in (
            ((1, 64, 28, 28), 32, float16, ("Add", "Relu")),
            ((32, 64, 28, 28), 0, float32, ("Swish",)),
            ((1, 64, 512, 512), 8, float16, ()),
            ((1, 64, 28, 28), RMS, float16, ("Mul", "Max")),
        )
    ]
    assert_plans_compile(graphs, target, cache, COMPILES)


@needs_compiler
@pytest.mark.parametrize("parts", [1, 3])
def test_scales_and_shifts_of_each_image_are_halves_of_a_vector(
    parts: int, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read where a layer of the time computes them, as in a U-Net for diffusion."""
    divide(monkeypatch, 8, parts, 30)
    graph = Graph("halves")
    x = graph.add_input("x", TensorType(float32, (2, 16, 6, 5)))
    time = graph.add_input("time", TensorType(float32, (2, 24)))
    w, of_time = (graph.constant(normal(*shape)) for shape in ((16, 16, 1, 1), (24, 32)))
    scale, shift = (graph.constant(normal(16, 1)[:, 0]) for _ in range(2))
    norm = GroupNormalization(num_groups=4)
    y = graph.insert(norm, [graph.insert(Conv(), [x, w]).output, scale, shift]).output
    both = graph.insert(MatMul(), [time, of_time]).output
    both = graph.insert(Reshape(), [both, graph.constant(np.array([2, 32, 1, 1]))]).output
    by, more = graph.insert(Split(axis=1, num_outputs=2), [both], outputs=2).outputs
    for op, other in ((Mul(), by), (Add(), more)):
        y = graph.insert(op, [y, other]).output
    graph.set_outputs({"y": graph.insert(Conv(), [y, w]).output})
    infer(graph)
    entries = entries_of(graph)
    assert "channel_groups" in entries
    assert not {"split", "copy_strided"} & set(entries)
    compare(Sample(graph, {"x": normal(2, 16, 6, 5), "time": normal(2, 24)}), emulated)


@needs_compiler
def test_slices(emulated: CudaBackend) -> None:
    """What is normalized and its results are parts of tensors that are joined, as in a U-Net."""
    graph = Graph("slices")
    x = graph.add_input("x", TensorType(float16, (2, 16, 6, 5)))
    weights = (normal(16, 16, 1, 1), normal(16, 16, 1, 1), normal(8, 48, 1, 1))
    first, second, last = (graph.constant(w.astype(float16)) for w in weights)
    scale, shift = (graph.constant(normal(16, 1)[:, 0].astype(float16)) for _ in range(2))
    y, z = (graph.insert(Conv(), [x, w]).output for w in (first, second))
    norm = graph.insert(InstanceNormalization(), [y, scale, shift]).output
    whole = graph.insert(Concat(axis=1), [z, y, norm]).output
    graph.set_outputs({"y": graph.insert(Conv(), [whole, last]).output})
    infer(graph)
    entries = entries_of(graph)
    assert "channel_groups" in entries
    assert not {"concat", "copy_strided"} & set(entries)
    compare(Sample(graph, {"x": normal(2, 16, 6, 5).astype(float16)}), emulated)
