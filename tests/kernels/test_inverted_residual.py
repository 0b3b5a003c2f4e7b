"""Inverted residuals: which are one kernel, and their results against float64."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.conv import expanded_depthwise, residual_patches
from tercet.backends.cuda.conv import inverted_residual as fused
from tercet.backends.cuda.conv.pack_residual import window_pairs
from tercet.backends.cuda.conv.residual_forms import Form
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Clip, HardSwish, Mul, Relu
from tercet.runtime.ops.movement import Concat, Slice
from tercet.runtime.ops.pool import GlobalAveragePool
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS, on_numpy

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Kernels that this module compiles.
WIDE_FILES = {"conv/expanded_depthwise.cu"}
COMPILES = {"conv/inverted_residual.cu", "conv/expanded_depthwise.cu"}


@dataclass(frozen=True)
class Case:
    """An inverted residual; without expansion or projection if `hidden` or `filters` is 0.

    As a part, it reads half of the channels of an image, and stores some of another. A first layer
    has larger `windows`, two pixels apart, and may read float32 through a Cast.
    """

    shape: tuple[int, int, int, int]
    hidden: int
    filters: int
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    adds: bool = False
    bias: bool = True
    activation: Op = field(default_factory=Relu)
    is_part: bool = False
    windows: tuple[int, int] = (1, 1)
    casts: bool = False


CASES = {
    "residual": Case((2, 24, 9, 11), 144, 24, adds=True),
    "stride": Case((1, 16, 18, 15), 96, 24, strides=(2, 2)),
    "strides and pads": Case((1, 16, 14, 21), 64, 40, (5, 3), (1, 3), (0, 2, 3, 0)),
    "even windows": Case((1, 8, 12, 12), 40, 8, (4, 2), activation=HardSwish()),
    "large windows": Case((1, 8, 12, 12), 40, 8, (7, 7), pads=(3, 3, 3, 3)),
    "without padding": Case((1, 8, 9, 9), 48, 8, pads=(0, 0, 0, 0)),
    "far outside": Case((1, 8, 3, 3), 32, 8, pads=(2, 9, 11, 2)),
    "without expansion": Case((1, 72, 9, 10), 0, 104, bias=False),
    "without projection": Case((2, 40, 9, 13), 120, 0, (5, 5), (1, 2), (2, 2, 2, 2)),
    "part": Case((2, 48, 9, 11), 96, 40, is_part=True),
    "many channels": Case((2, 160, 7, 7), 320, 160, adds=True),
    "first layer": Case((2, 3, 19, 22), 32, 16, windows=(3, 3), casts=True),
    "first layer of few columns": Case(
        (1, 1, 20, 17), 40, 0, (3, 3), (2, 2), windows=(5, 2), bias=False
    ),
}
#: A form for every case, and more for one.
ANY = Form(7, 7, 32)
FORMS = (
    *(Form(8, 16, 48), Form(7, 14, 48), Form(8, 8, 96), Form(4, 8, 32), Form(2, 7, 48)),
    *(Form(4, 7, 48, 2), Form(7, 7, 32, 4)),
)
#: A cluster of more blocks than are portable.
LARGE = Form(7, 7, 32, 10)
#: Error of an expansion and a depthwise convolution of float32, below that of a sum in order.
FLOAT32_ERROR = 5e-7
#: Cases of these two, and their tiles.
PAIRS = {
    case: replace(CASES[case], filters=0, adds=False)
    for case in ("residual", "stride", "even windows", "without padding", "far outside")
}
SIDES = ((8, 16), (8, 14), (8, 8), (8, 7))


def graph_of(case: Case, dtype: DType, stored: DType) -> tuple[Graph, Array]:
    """Return the graph in one dtype, with numbers that another one can store."""
    graph = Graph()
    image = normal(*case.shape)
    if not case.casts:
        image = image.astype(stored).astype(dtype)
    x = graph.add_input("x", TensorType(image.dtype, case.shape))

    def add(op: Op, *inputs: Value | Array) -> Value:
        values = [
            v if isinstance(v, Value) else graph.constant(v.astype(stored).astype(dtype))
            for v in inputs
        ]
        y = graph.insert(op, values).output
        infer(graph)
        return y

    def conv(value: Value, filters: int, kernel: tuple[int, int], **how: Any) -> Value:
        channels = value.tensor.dims[1] // how.get("group", 1)
        w = normal(filters, channels, *kernel) / np.sqrt(channels * np.prod(kernel))
        return add(Conv(**how), value, *[w, normal(filters)][: 1 + case.bias])

    if case.is_part:
        channels = case.shape[1]
        bounds = (graph.constant(np.array([n])) for n in (channels // 2, channels, 1))
        x = graph.insert(Slice(), [conv(x, channels, (1, 1)), *bounds]).output
        infer(graph)
    first = {} if case.windows == (1, 1) else {"strides": (2, 2), "pads": (1, 0, 0, 1)}
    if case.casts:
        x = add(Cast(to=stored), x)
        x = x if dtype == stored else add(Cast(to=dtype), x)
    value = x
    if case.hidden:
        value = add(case.activation, conv(x, case.hidden, case.windows, **first))
    count = value.tensor.dims[1]
    value = conv(value, count, case.kernel, strides=case.strides, pads=case.pads, group=count)
    value = add(Clip(), value, np.array(0), np.array(6))
    value = conv(value, case.filters, (1, 1)) if case.filters else value
    value = add(Add(), x, value) if case.adds else value
    if case.is_part:
        value = conv(add(Concat(axis=1), value, conv(x, 8, (1, 1))), 16, (1, 1))
    graph.set_outputs({"y": value})
    infer(graph)
    return graph, image


def always(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every inverted residual have a form."""
    monkeypatch.setattr(fused, "forms", lambda p: [form])
    monkeypatch.setattr(residual_patches, "forms", lambda p: [])
    monkeypatch.setattr(fused, "MARGIN", inf)
    monkeypatch.setattr(fused, "MARGIN_WIDE", inf)


def always_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let expansions and depthwise convolutions of float32 be one kernel, and no projection."""
    monkeypatch.setattr(fused, "MARGIN_WIDE", -inf)
    monkeypatch.setattr(fused, "MARGIN_EXPANDED", inf)


def check(case: Case, dtype: DType, backend: CudaBackend, entry: str = "inverted_residual") -> None:
    """Compare with float64."""
    graph, image = graph_of(case, dtype, dtype)
    want = on_numpy(graph_of(case, float64, dtype)[0], {"x": image})["y"]
    with Model(graph, [backend], OPTIONS, evaluate) as model:
        assert f"{entry} " in str(model.placement())
        got = model.run({"x": image})["y"].astype(float64)
    error = FLOAT32_ERROR if entry == "expanded_depthwise" else ERROR[dtype]
    np.testing.assert_allclose(got, want, rtol=0, atol=error * np.abs(want).max())


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_results(case: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    always(ANY, monkeypatch)
    check(CASES[case], float16, hopper)


@needs_compiler
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_forms(form: Form, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles reach over the image's edges, and blocks of a cluster share the channels."""
    always(form, monkeypatch)
    check(CASES["residual"], float16, hopper)


@needs_compiler
@pytest.mark.parametrize(
    ("case", "form"),
    [
        ("residual", FORMS[-1]),
        *((case, ANY) for case in ("strides and pads", "many channels")),
        *((case, ANY) for case in ("without expansion", "without projection")),
        ("many channels", LARGE),
    ],
    ids=str,
)
def test_float32(
    case: str, form: Form, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(form, monkeypatch)
    check(CASES[case], float32, hopper)


@needs_compiler
@pytest.mark.parametrize("case", PAIRS)
def test_pairs_of_float32(case: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    always_in_pairs(monkeypatch)
    check(PAIRS[case], float32, hopper, "expanded_depthwise")


@needs_compiler
@pytest.mark.parametrize("side", SIDES, ids=str)
def test_tiles_of_pairs(
    side: tuple[int, int], hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_in_pairs(monkeypatch)
    monkeypatch.setattr(expanded_depthwise, "TILES", (side,))
    check(Case((2, 24, 19, 21), 72, 0, strides=(2, 2)), float32, hopper, "expanded_depthwise")


@needs_compiler
def test_pairs_of_any_magnitude(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels and filters have separate scales; infinities and NaN stay near their pixel."""
    always_in_pairs(monkeypatch)
    scales = np.exp2(np.arange(-96, 96, 12, dtype=np.float32)).reshape(1, 1, 4, 4)
    x = normal(1, 8, 12, 12) * np.tile(scales, (1, 1, 3, 3))
    x[0, 3, 2, 2], x[0, 1, 9, 9] = np.inf, np.nan
    w, windows = normal(32, 8, 1, 1), np.zeros((32, 1, 3, 3), np.float32)
    windows[:, :, 1, 1] = 1
    graph = Graph()
    value = graph.add_input("x", TensorType(float32, x.shape))
    for weights, how in ((w, {}), (windows, {"group": 32, "pads": (1, 1, 1, 1)})):
        value = graph.insert(Conv(**how), [value, graph.constant(weights)]).output
    graph.set_outputs({"y": value})
    infer(graph)
    with Model(graph, [hopper], OPTIONS, evaluate) as model:
        got = model.run({"x": x})["y"]
    exact = np.einsum("nchw,mc->nmhw", x.astype(float64), w[:, :, 0, 0].astype(float64))
    far = np.ones((12, 12), bool)
    far[1:4, 1:4] = far[8:11, 8:11] = False
    size = np.abs(x).max(1, keepdims=True)[..., far] * np.abs(w).max()
    assert (np.abs(got[..., far] - exact[..., far]) <= 2e-6 * size).all()
    assert not np.isfinite(got[0, :, [2, 9], [2, 9]]).any()


def test_pairs_of_three_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of large ones with strides in float32, the projection stays a separate layer."""
    always_in_pairs(monkeypatch)
    assert "expanded_depthwise" not in entries_of(graph_of(CASES["stride"], float32, float32)[0])
    monkeypatch.setattr(fused, "LARGE", 0)
    assert "expanded_depthwise" not in entries_of(graph_of(CASES["residual"], float32, float32)[0])
    found = entries_of(graph_of(CASES["stride"], float32, float32)[0])
    assert found.count("expanded_depthwise") == 1
    assert "depthwise" not in found
    assert "inverted_residual" not in found
    always(ANY, monkeypatch)
    found = entries_of(graph_of(CASES["stride"], float32, float32)[0])
    assert found.count("inverted_residual") == 1
    assert "expanded_depthwise" not in found


@needs_compiler
def test_bfloat16(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    always(ANY, monkeypatch)
    check(CASES["stride"], bfloat16, hopper)


@pytest.mark.parametrize("images", [1, 32])
def test_those_of_mobilenet_are_one_kernel(images: int) -> None:
    for size, strides in ((112, (2, 2)), (56, (1, 1))):
        case = Case((images, 24, size, size), 144, 24, strides=strides)
        found = entries_of(graph_of(case, float16, float16)[0])
        assert sum(found.count(one) for one in ("inverted_residual", "residual_patches")) == 1


@pytest.mark.parametrize(
    ("case", "fast"),
    [
        (Case((1, 24, 56, 56), 144, 24, adds=True), "7x14x48 split 3"),
        (Case((1, 32, 28, 28), 192, 32, adds=True), "2x7x48 split 4, 2x7x32 split 6"),
        (Case((1, 32, 28, 28), 192, 64, strides=(2, 2)), "2x7x32 split 6"),
        (Case((1, 64, 14, 14), 384, 64, adds=True), "2x7x64 split 6"),
        (Case((1, 96, 14, 14), 576, 96, adds=True), "2x7x96 split 6"),
        (Case((1, 160, 7, 7), 960, 160, adds=True), "2x7x64 split 15"),
    ],
    ids=lambda given: given if isinstance(given, str) else f"{given.hidden} channels",
)
def test_forms_are_among_the_fastest_measured(case: Case, fast: str) -> None:
    """Those within 0.2 us of the fastest of eight, each timed in the network on an H200."""
    (found,) = launches(planned(graph_of(case, float16, float16)[0]))
    assert found.note.partition(" Relu")[0] in fast.split(", ")


def test_large_clusters_start_together() -> None:
    """Tiles of few pixels are shared by more blocks than are portable, if there are few of them."""
    for images in (1, 16):
        graph, _ = graph_of(Case((images, 160, 7, 7), 960, 160, adds=True), float16, float16)
        found = [one.cluster[1] for one in launches(planned(graph))]
        assert (max(found) > 8) == (images == 1)


def test_what_is_something_else_stays_apart() -> None:
    """Channels that fill no words, algorithms by name, and too many channels."""
    case = CASES["residual"]
    half = graph_of(case, float16, float16)[0]
    many = Case((32, 960, 7, 7), 0, 320)
    odd = Case((32, 20, 56, 56), 120, 20)
    for found in (
        entries_of(half, conv="tensor_cores,depthwise"),
        *(entries_of(graph_of(each, float16, float16)[0]) for each in (many, odd)),
    ):
        assert "inverted_residual" not in found


def test_weights_that_halves_cannot_hold_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of a term whose weights are far below all others would lose bits in float16."""

    plain = normal

    def faint(*shape: int) -> Array:
        numbers = plain(*shape)
        if len(shape) == 4 and shape[1] > 1:
            numbers[:, 0] *= 1e-9
        return numbers

    case = CASES["residual"]
    assert "inverted_residual" in entries_of(graph_of(case, float32, float32)[0])
    monkeypatch.setattr(sys.modules[__name__], "normal", faint)
    assert "inverted_residual" not in entries_of(graph_of(case, float32, float32)[0])


def test_parts_of_images_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    always(ANY, monkeypatch)
    assert entries_of(graph_of(CASES["part"], float16, float16)[0]).count("inverted_residual") == 1
    rows = planned(graph_of(CASES["part"], float16, float16)[0]).rows
    moves = [
        row for row in rows if row.kind == "step" and isinstance(row.nodes[0].op, Slice | Concat)
    ]
    assert not moves


def test_a_result_that_is_read_elsewhere_is_stored() -> None:
    """As in squeeze-and-excite, the mean of the channels is read before the projection."""
    graph, _ = graph_of(Case((8, 16, 112, 112), 96, 0, strides=(2, 2)), float16, float16)
    filtered = graph.outputs["y"]
    mean = graph.insert(GlobalAveragePool(), [filtered]).output
    infer(graph)
    scaled = graph.insert(Mul(), [filtered, mean]).output
    infer(graph)
    w = graph.constant(normal(24, 96, 1, 1).astype(float16))
    graph.set_outputs({"y": graph.insert(Conv(), [scaled, w]).output})
    infer(graph)
    (found,) = (one for one in launches(planned(graph)) if one.entry == "inverted_residual")
    assert not dict(found.constants)["PROJECTS"]


def test_without_the_expansion_the_rest_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image has more channels than shared memory can hold."""
    monkeypatch.setattr(fused, "MARGIN", inf)
    graph, _ = graph_of(Case((32, 328, 56, 56), 64, 24), float16, float16)
    found = entries_of(graph)
    assert found.count("inverted_residual") == 1
    assert "depthwise" not in found


def test_without_a_wide_projection_the_rest_is_fused() -> None:
    graph, _ = graph_of(Case((1, 160, 7, 7), 960, 320), float16, float16)
    first, last = launches(planned(graph))
    assert first.entry == "inverted_residual"
    assert not dict(first.constants)["PROJECTS"]
    assert last.entry == "mma"


def test_a_first_layer_is_an_expansion_of_few_images() -> None:
    """What it casts is rounded as it is unfolded; in float32 it stays apart."""
    case = Case((1, 3, 224, 224), 32, 16, windows=(3, 3), casts=True)
    for dtype in (float16, bfloat16):
        (found,) = launches(planned(graph_of(case, dtype, dtype)[0]))
        assert found.entry == "inverted_residual"
        assert found.types[:2] == (("S", float32), ("T", dtype))
    apart = ["few_channels_wgmma", "inverted_residual"]
    assert entries_of(graph_of(replace(case, casts=False), float32, float32)[0]) == apart


@pytest.mark.parametrize("windows", [(7, 7), (1, 1)])
def test_first_layers_of_many_terms_or_none_stay_apart(
    windows: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    always(ANY, monkeypatch)
    graph, _ = graph_of(Case((1, 3, 40, 40), 32, 16, windows=windows, casts=True), float16, float16)
    found = [one for one in launches(planned(graph)) if one.entry == "inverted_residual"]
    assert not any(dict(one.constants)["UNFOLDED"] for one in found)


def test_an_image_that_is_cast_for_others_is_rounded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    always(ANY, monkeypatch)
    graph, _ = graph_of(CASES["first layer"], float16, float16)
    graph.set_outputs({**graph.outputs, "cast": graph.nodes[0].output})
    first, last = launches(planned(graph))
    assert (first.entry, last.entry) == ("elementwise", "inverted_residual")
    assert last.types[0] == ("S", float16)


def test_pairs_of_a_window() -> None:
    w = np.arange(1, 10, dtype=np.uint16).reshape(1, 3, 3).repeat(2, 0).view(np.float16)
    pairs = window_pairs(w, 4)
    assert pairs.shape == (5, 4, 2)
    assert pairs[:, 0].tolist() == [[1, 4], [2, 5], [3, 6], [7, 8], [9, 0]]
    assert (pairs[:, 1] == pairs[:, 0] << 16).all()
    assert not pairs[:, 2:].any()


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    found: list[Any] = []
    for form in (ANY, *FORMS):
        always(form, monkeypatch)
        for case, dtype in (
            ("residual", float16),
            ("without projection", bfloat16),
            ("without expansion", float32),
            ("first layer", bfloat16),
        ):
            found += launches(planned(graph_of(CASES[case], dtype, dtype)[0], device))
    found = [launch for launch in found if launch.entry == "inverted_residual"]
    assert len(found) == 4 * (1 + len(FORMS))
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES - WIDE_FILES)
    assert_arguments(found, target, cache)


def test_pairs_of_float32_compile(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    always_in_pairs(monkeypatch)
    found: list[Any] = []
    for side in SIDES:
        monkeypatch.setattr(expanded_depthwise, "TILES", (side,))
        for case in ("residual", "stride"):
            found += launches(planned(graph_of(PAIRS[case], float32, float32)[0]))
    found = [launch for launch in found if launch.entry == "expanded_depthwise"]
    assert len(found) == 2 * len(SIDES)
    all_compile({launch.source: None for launch in found}, H200, cache, WIDE_FILES)
    assert_arguments(found, H200, cache)
