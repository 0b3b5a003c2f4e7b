"""Products of float32 operands in halves: recipes, and emulated kernels against float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.attention import flash
from tercet.backends.cuda.attention.flash_f16x3 import HopperShape
from tercet.backends.cuda.attention.flash_mma import WarpShape
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen.copies import into_halves
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm import in_halves
from tercet.backends.cuda.gemm.tables.f16x3 import HALVES
from tercet.backends.cuda.gemm.tile import Config, TimedConfig
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Gelu
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.plan.format import Format
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_nothing_spills
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS
from .test_f16x3 import FLOAT32_MAX, assert_product, powers, spots, zeros

#: Kernels that this module compiles, and samples.py has not.
COMPILES = {"gemm/halves.cu", "gemm/pack_halves.cu"}
WAYS: dict[str, Any] = {"algorithms": {"MatMul": "in_halves", "Gemm": "in_halves"}}
COLUMNS = powers(-6, 6, 128)
NORMS = {"LayerNormalization": LayerNormalization, "RMSNormalization": RMSNormalization}


def force(patch: pytest.MonkeyPatch, name: str) -> None:
    """Compute every product with this tile."""
    config = Config.parse(name, HALVES)
    patch.setattr(in_halves, "ways_of", lambda *_, **__: (TimedConfig(0.0, config),))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (normal(20, 128), normal(128, 11)),
        (np.maximum(normal(70, 192), 0), normal(192, 72)),
        (normal(20, 128) * COLUMNS, normal(128, 20) / COLUMNS[:, None]),
        (normal(20, 128) * powers(-100, 100, 20, 1), normal(128, 20)),
        (normal(20, 128), normal(128, 20) * powers(-50, 50, 1, 20)),
        (normal(20, 128) * np.float32(1e-30), normal(128, 20)),
        (normal(20, 128) * np.float32(1e37), normal(128, 20) * np.float32(0.05)),
        (np.full((9, 64), FLOAT32_MAX * np.float32(1 - 2**-21)), np.eye(64, dtype=np.float32)),
        (zeros(20, 128), normal(128, 20)),
        (spots(20, 128), normal(128, 20)),
        (np.abs(normal(16, 1216)), np.abs(normal(1216, 8))),
        (normal(3, 9, 64), normal(64, 40)),
    ],
)
def test_products(a: Array, b: Array, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result against float64, relative to the products that it is the sum of."""
    force(monkeypatch, "w64x64")
    assert_product(a, b, hopper, replace(OPTIONS, **WAYS))


def layers(*widths: int, rows: int, norm: str = "", residual: bool = False) -> Graph:
    """Return linear layers with Gelu in between, of [2, rows, widths[0]], perhaps after a norm."""
    graph = Graph("layers")
    x = graph.add_input("x", TensorType(float32, (2, rows, widths[0])))
    value = x
    if norm:
        scales = [graph.constant(normal(widths[0]), f"{norm}{i}") for i in range(2)]
        given = scales if norm == "LayerNormalization" else scales[:1]
        value = graph.insert(NORMS[norm](axis=-1), [value, *given], 1, name="norm").output
    first = value
    for i, (k, n) in enumerate(pairwise(widths)):
        b = graph.constant(normal(k, n) / np.float32(k**0.5), f"b{i}")
        value = graph.insert(MatMul(), [value, b], 1, name=f"product{i}").output
        bias = graph.constant(normal(n), f"c{i}")
        value = graph.insert(Add(), [value, bias], 1, name=f"bias{i}").output
        if i + 2 < len(widths):
            value = graph.insert(Gelu(), [value], 1, name=f"gelu{i}").output
    if residual:
        value = graph.insert(Add(), [value, first], 1, name="sum").output
    graph.set_outputs({"y": value})
    infer(graph)
    return graph


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("norm", ["", "LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize(
    ("name", "width", "residual"),
    [
        ("w64x64", 192, False),
        ("w64x64", 320, True),  # a row of a norm has two warps, the second of which is half full
        ("w128x128 split 3", 192, False),
    ],  # the emulator runs clusters twice
)
def test_layers(
    norm: str,
    name: str,
    width: int,
    residual: bool,
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Norms and products store what the next product reads in halves, and sums read floats."""
    force(monkeypatch, name)
    graph = layers(width, 256, width, rows=37, norm=norm, residual=residual)
    x = normal(2, 37, width) * powers(-20, 20, 2, 37, 1) if norm else normal(2, 37, width)
    options = replace(OPTIONS, **WAYS)
    with Model(graph.clone(), [hopper], options, evaluate) as model:
        (got,) = model.run({"x": x}).values()
    with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        (want,) = model.run({"x": x}).values()
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


def attended(rows: int, *, read_elsewhere: bool) -> tuple[Graph, dict[str, Array]]:
    """Return a product of an attention with two heads of 64, and its inputs."""
    graph = Graph("attention")
    feeds = {"q": normal(2, rows, 128), "k": normal(2, rows + 1, 128)}
    feeds["v"] = normal(2, rows + 1, 128) * powers(-20, 20, 2, 1, 128)
    q, k, v = (graph.add_input(n, TensorType(float32, x.shape)) for n, x in feeds.items())
    op = Attention(q_num_heads=2, kv_num_heads=2)
    seen = graph.insert(op, [q, k, v], 1, name="attention").output
    b = graph.constant(normal(128, 72), "b")
    y = graph.insert(MatMul(), [seen, b], 1, name="product").output
    graph.set_outputs({"y": y, "seen": seen} if read_elsewhere else {"y": y})
    infer(graph)
    return graph, feeds


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("shape", [HopperShape(1, 64, 3), WarpShape(1, 2, 2, 32)], ids=str)
@pytest.mark.parametrize("read_elsewhere", [False, True])
def test_attention(
    shape: HopperShape | WarpShape,
    read_elsewhere: bool,
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attention stores halves for the product after it."""
    force(monkeypatch, "w64x64")
    monkeypatch.setattr(flash, "choose", lambda *_: shape)
    graph, feeds = attended(37, read_elsewhere=read_elsewhere)
    with Model(graph.clone(), [hopper], replace(OPTIONS, **WAYS), evaluate) as model:
        got = model.run(feeds)
        formats = [s.format for row in model.prepare().rows for s in row.outputs]
        assert formats.count(Format.HALVES) == 1
        assert "reformat" not in {row.kind for row in model.prepare().rows}
    with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run(feeds)
    for name, expected in want.items():
        assert np.linalg.norm(got[name] - expected) <= 1e-6 * np.linalg.norm(expected)


def cut_heads() -> tuple[Graph, dict[str, Array]]:
    """Return an attention to 49 rows (PVT), which layers of few rows compute, and its inputs."""
    graph, feeds = Graph("few rows"), {"x": normal(1, 196, 320), "z": normal(1, 49, 320)}
    x, z = (graph.add_input(n, TensorType(float32, data.shape)) for n, data in feeds.items())
    q, kv = (
        graph.insert(MatMul(), [rows, graph.constant(normal(320, n) / np.float32(18))]).output
        for rows, n in ((x, 320), (z, 640))
    )
    parts = graph.insert(Split(axis=2, num_outputs=2), [kv], 2).outputs
    op = Attention(q_num_heads=5, kv_num_heads=5)
    graph.set_outputs({"y": graph.insert(op, [q, *parts]).output})
    infer(graph)
    return graph, feeds


def test_products_of_few_rows_that_store_halves_compile(cache: Path) -> None:
    """Of as few rows as these, three products of TF32 would be faster, but cut nothing."""
    graph, _ = cut_heads()
    products = [x for x in launches(planned(graph)) if x.file == "gemm/swap_f16x3.cu"]
    assert len(products) == 2
    assert all("#define IN_HALVES 1" in launch.code for launch in products)
    all_compile([launch.source for launch in products], H200, cache)


@pytest.mark.slow
@needs_compiler
def test_products_of_few_rows_store_halves(hopper: CudaBackend) -> None:
    graph, feeds = cut_heads()
    with Model(graph.clone(), [hopper], OPTIONS, evaluate) as model:
        (got,) = model.run(feeds).values()
    with Model(graph.clone(), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        (want,) = model.run(feeds).values()
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)


@pytest.mark.parametrize("both", [False, True])
def test_views_of_rows_stay_in_halves(both: bool) -> None:
    """A Reshape to a matrix, before a Gemm, needs no kernel."""
    graph = Graph("view")
    x = graph.add_input("x", TensorType(float32, (32, 197, 768)))
    scales = [graph.constant(normal(768), f"s{i}") for i in range(2)]
    norm = LayerNormalization(axis=-1)
    rows = graph.insert(norm, [x, *scales], 1, name="norm").output
    shape = graph.constant(np.array([32 * 197, 768]), "shape")
    matrix = graph.insert(Reshape(), [rows, shape], 1, name="view").output
    b = graph.constant(normal(768, 3072), "b")
    y = graph.insert(Gemm(), [matrix, b], 1, name="product").output
    graph.set_outputs({"y": y, "rows": rows} if both else {"y": y})
    infer(graph)
    layout = planned(graph)
    norm_row = next(row for row in layout.rows if "normalize" in row.kernel)
    formats = [slot.format for slot in norm_row.outputs]
    assert formats == [Format.CONTIGUOUS] * both + [Format.HALVES]
    assert "multiply_halves" in [launch.entry for launch in launches(layout)]
    assert "reformat" not in {row.kind for row in layout.rows}


@needs_compiler
def test_rows_of_an_image(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows along the last axis of a channels-last image are brought in C order first."""
    force(monkeypatch, "w64x64")
    graph = Graph("image")
    x = graph.add_input("x", TensorType(float32, (2, 8, 5, 64)))
    w, b = normal(8, 8, 1, 1), normal(64, 24)
    image = graph.insert(Conv(), [x, graph.constant(w, "w")], 1, name="conv").output
    rows = graph.insert(MatMul(), [image, graph.constant(b, "b")], 1, name="product").output
    graph.set_outputs({"y": rows})
    infer(graph)
    options = replace(OPTIONS, conv="tensor_cores", **WAYS)
    feeds = {"x": normal(2, 8, 5, 64)}
    with Model(graph, [hopper], options, evaluate) as model:
        (got,) = model.run(feeds).values()
    wide = [array.astype(np.float64) for array in (w[:, :, 0, 0], feeds["x"], b)]
    want = np.einsum("mc,nchw->nmhw", *wide[:2]) @ wide[2]
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_nothing_spills(cache: Path) -> None:
    """Of any tile, whole or split; of those with the most sums per thread with halves, too."""
    compiler, widest = Compiler(H200, cache), dict[int, int]()
    for tile in HALVES:
        widest[tile.bm] = max(tile.bn, widest.get(tile.bm, 0))
    sources = dict[KernelSource, None]()
    for number, tile in enumerate(HALVES):
        with pytest.MonkeyPatch.context() as patch:
            force(patch, str(Config(tile, 1 + number % 2)))
            widths = (512, 512, 512) if tile.bn == widest[tile.bm] else (512, 512)
            found = launches(planned(layers(*widths, rows=512), **WAYS))
            sources.update((one.source, None) for one in found if one.file == "gemm/halves.cu")
    assert len(sources) == len(HALVES) + len(widest)
    assert_nothing_spills(sources, compiler)


@pytest.mark.slow
def test_what_stores_halves_compiles(cache: Path) -> None:
    """Norms and attention, in one format or both; and changes of format."""
    sources = list[KernelSource]()
    for residual in (False, True):
        graph = layers(256, 256, rows=1024, norm="LayerNormalization", residual=residual)
        sources += [one.source for one in launches(planned(graph, **WAYS))]
    for shape in (HopperShape(1, 64, 3), WarpShape(1, 2, 2, 32)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flash, "choose", lambda *_, shape=shape: shape)
            graph, _ = attended(600, read_elsewhere=True)
            sources += [one.source for one in launches(planned(graph, **WAYS))]
    sources += [
        into_halves(TensorType(float32, (70, 192)), back=back).source for back in (False, True)
    ]
    all_compile(sources, H200, cache, COMPILES)
