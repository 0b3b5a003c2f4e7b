"""Convolutions of images of few channels: their results against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.conv import few_channels_mma
from tercet.backends.cuda.conv.few_channels_mma import SQUARES, FewChannels, Tile
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Cast, Relu
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

TILES = FewChannels.tiles
#: Kernels that this module compiles.
WARPGROUPS = {"conv/few_channels_wgmma.cu"}
COMPILES = {
    "conv/few_channels.cu",
    "conv/few_channels_mma.cu",
    "conv/few_channels_wgmma.cu",
}
#: Shape of the image, that of the weights, and attributes.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "mobilenet": ((2, 3, 19, 37), (32, 3, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "resnet": ((1, 3, 30, 72), (64, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    "tiles": ((3, 3, 21, 70), (48, 3, 3, 5), {"strides": (1, 2), "pads": (1, 2, 1, 2)}),
    "vgg": ((2, 3, 19, 40), (64, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "grey": ((2, 1, 9, 5), (8, 1, 5, 5), {}),
    "uneven": ((1, 4, 17, 40), (72, 4, 2, 5), {"strides": (1, 3), "pads": (0, 2, 3, 0)}),
    "patches": ((1, 3, 24, 16), (96, 3, 4, 4), {"strides": (4, 4)}),
    "far outside": ((1, 2, 3, 3), (16, 2, 3, 3), {"pads": (4, 5, 6, 7)}),
}
#: The same of volumes.
AROUND = (1, 2, 2, 1, 2, 2)
VOLUMES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "frames": ((2, 3, 5, 17, 21), (16, 3, 1, 5, 5), {"strides": (2, 2, 2), "pads": (0, 2, 2) * 2}),
    "scan": ((2, 1, 6, 9, 13), (32, 1, 3, 3, 3), {"pads": (1,) * 6}),
    "video": ((1, 3, 5, 17, 21), (24, 3, 3, 5, 5), {"strides": (2, 2, 2), "pads": AROUND}),
}
DTYPES = (float32, float16, bfloat16)
#: Cases of 16 bits whose windows are one pixel apart, and others where these are two pixels apart.
NARROW = ("vgg", "grey")
PAIRS = ("mobilenet", "resnet", "tiles", *NARROW)


#: Poolings of the cases.
POOLS: dict[str, dict[str, Any]] = {
    "mobilenet": {"kernel_shape": (2, 2), "strides": (2, 2)},
    "resnet": {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    "tiles": {"kernel_shape": (2, 3), "strides": (2, 1), "pads": (0, 1, 0, 1)},
    "vgg": {"kernel_shape": (2, 2), "strides": (2, 2)},
    "grey": {"kernel_shape": (2, 1), "strides": (1, 1)},
    "uneven": {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1},
}


def graph_of(
    case: str,
    dtype: DType,
    stored: DType,
    *,
    wide: bool = False,
    bias: bool = True,
    pooled: bool = False,
) -> tuple[Graph, Array]:
    """Return the graph in one dtype, of numbers that another one can store.

    Args:
        case: one of `CASES`.
        dtype: of the graph.
        stored: of the numbers.
        wide: whether a Cast comes before.
        bias: whether there is one.
        pooled: whether a MaxPool follows.
    """
    shape, kernel, how = (CASES | VOLUMES)[case]
    image = normal(*shape).astype(stored).astype(float32 if wide else dtype)
    graph = Graph()
    value = graph.add_input("x", TensorType(image.dtype, shape))
    if wide:
        value = graph.insert(Cast(to=dtype), [value]).output
    arrays = [normal(*kernel), normal(kernel[0])][: 1 + bias]
    constants = [graph.constant(a.astype(stored).astype(dtype)) for a in arrays]
    value = graph.insert(Conv(**how), [value, *constants]).output
    value = graph.insert(Relu(), [value]).output
    if pooled:
        value = graph.insert(MaxPool(**POOLS[case]), [value]).output
    graph.set_outputs({"y": value})
    infer(graph)
    return graph, image


#: Error of float32 as three products: less than that of a sum in order.
FLOAT32_ERROR = 4e-7


def compare(case: str, dtype: DType, backend: CudaBackend, name: str, **how: bool) -> None:
    """Run a case with the kernel of this name, and compare its results with float64."""
    exact, image = graph_of(case, float64, dtype, **how)
    with Model(exact, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": image})["y"]
    graph, image = graph_of(case, dtype, dtype, wide=dtype == float16, **how)
    options = OPTIONS if how else replace(OPTIONS, conv=name.replace("wgmma", "mma"))
    with Model(graph, [backend], options, evaluate) as model:
        assert len([row for row in str(model.placement()).splitlines() if f"{name} " in row]) == 1
        got = model.run({"x": image})["y"].astype(float64)
    error = FLOAT32_ERROR if dtype == float32 else ERROR[dtype]
    np.testing.assert_allclose(got, want, rtol=0, atol=error * np.abs(want).max())


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_results(case: str, dtype: DType, emulated: CudaBackend) -> None:
    compare(case, dtype, emulated, "few_channels")


@needs_compiler
@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "float32"])
@pytest.mark.parametrize("case", [*CASES, *VOLUMES])
def test_results_on_tensor_cores(case: str, wide: bool, emulated: CudaBackend) -> None:
    narrow = bfloat16 if case == "uneven" else float16
    compare(case, float32 if wide else narrow, emulated, "few_channels_mma")


@needs_compiler
@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "float32"])
@pytest.mark.parametrize("case", POOLS)
def test_results_that_are_pooled(
    case: str, wide: bool, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for time in ("LAUNCH", "BLOCK", "STEP", "STEP_FLOAT32"):
        monkeypatch.setattr(few_channels_mma, time, 0)
    narrow = bfloat16 if case == "uneven" else float16
    compare(case, float32 if wide else narrow, emulated, "few_channels_mma", pooled=True)


#: Cases with images of 16 bits, and of float32, for tiles of warpgroups.
OF_WARPGROUPS = [
    (case, wide) for case in PAIRS for wide in (False, True) if not (wide and case in NARROW)
]


def compare_warpgroups(
    patches: int,
    case: str,
    backend: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
    *,
    wide: bool,
    pooled: bool,
) -> None:
    """Run a case in tiles of so many patches, and compare its results with float64."""
    kept = (squares if 2 * parts == patches else () for parts, squares in enumerate(SQUARES, 1))
    monkeypatch.setattr(few_channels_mma, "SQUARES", tuple(kept))
    for time in ("LAUNCH", "POOLED", "SQUARE_BLOCK", "SQUARE_STEP"):
        monkeypatch.setattr(few_channels_mma, time, 0 if time == "LAUNCH" else (0, 0))
    how = {"pooled": True} if pooled else {}
    narrow = bfloat16 if case == "tiles" else float16
    compare(case, float32 if wide else narrow, backend, "few_channels_wgmma", **how)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("pooled", [False, True], ids=["plain", "pooled"])
@pytest.mark.parametrize(("case", "wide"), OF_WARPGROUPS)
@pytest.mark.parametrize("patches", [2, 4])
def test_results_of_warpgroups(
    patches: int,
    case: str,
    wide: bool,
    pooled: bool,
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare_warpgroups(patches, case, hopper, monkeypatch, wide=wide, pooled=pooled)


@needs_compiler
def test_float32_of_any_magnitude(emulated: CudaBackend) -> None:
    """Images and filters have separate scales; NaN and infinities stay near their pixel."""
    scales = np.array([1e-30, 1, 1e30], np.float32).reshape(3, 1, 1, 1)
    x, w = normal(3, 3, 20, 40) * scales, normal(8, 3, 3, 3)
    w *= np.exp2(np.arange(-28, 4, 4, dtype=np.float32)).reshape(8, 1, 1, 1)
    x[1, 0, 2, 5], x[2, 1, 7, 20] = np.nan, np.inf
    graph = single("Conv", [x, w], (1,))
    options = replace(OPTIONS, conv="few_channels_mma")
    with Model(graph, [emulated], options, evaluate) as model:
        (got,) = model.run({"x0": x}).values()
    wide = single("Conv", [x.astype(float64), w.astype(float64)], (1,))
    with Model(wide, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        (want,) = model.run({"x0": x.astype(float64)}).values()
    far = np.isfinite(want)
    far[1, :, :3, 2:6] = far[2, :, 5:8, 15:21] = False
    most = np.nanmax(np.where(np.isfinite(want), np.abs(want), 0), (2, 3), keepdims=True)
    limit = np.broadcast_to(FLOAT32_ERROR * most, want.shape)
    assert (np.abs(got[far] - want[far]) <= limit[far]).all()
    assert not np.isfinite(got[~np.isfinite(want)]).any()


def test_weights_that_halves_cannot_hold_are_refused() -> None:
    w = normal(64, 3, 7, 7)
    w[:, 1] *= np.float32(1e-6)
    graph = single("Conv", [normal(32, 3, 64, 64), w], (1,), strides=(2, 2), pads=(3,) * 4)
    assert "few_channels_mma" not in [one.entry for one in launches(planned(graph))]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tiles_are_compared_once(
    dtype: type[np.floating[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[FewChannels] = []

    def tiles(self: FewChannels) -> Iterator[Tile]:
        compared.append(self)
        return TILES(self)

    monkeypatch.setattr(FewChannels, "tiles", tiles)
    arrays = [normal(*dims).astype(dtype) for dims in ((8, 3, 224, 224), (64, 3, 7, 7))]
    graph = single("Conv", arrays, (1,), strides=(2, 2), pads=(3,) * 4)
    assert launches(planned(graph))[0].file.startswith("conv/few_channels_")
    assert len(compared) == 1


def test_planes_of_volumes_are_further_apart() -> None:
    """Frames of a video by windows of one (X3D, S3D): tiles of warpgroups are of images alone."""

    def entry(*frames: int) -> str:
        arrays = [normal(16, 3, *frames, 80, 80), normal(24, 3, *(1,) * len(frames), 3, 3)]
        graph = single(
            "Conv",
            [array.astype(np.float16) for array in arrays],
            (1,),
            strides=(*(1,) * len(frames), 2, 2),
            pads=(*(0,) * len(frames), 1, 1) * 2,
        )
        return launches(planned(graph, conv="few_channels_mma"))[0].entry

    assert entry() == "few_channels_wgmma"
    assert entry(4) == "few_channels_mma"


@pytest.mark.parametrize(
    ("dtype", "width", "in_words"),
    [(float16, 40, True), (float16, 37, False), (float32, 40, False)],
)
def test_rows_of_whole_words_arrive_in_words(dtype: DType, width: int, in_words: bool) -> None:
    arrays = [normal(1, 3, 16, width).astype(dtype), normal(32, 3, 3, 3).astype(dtype)]
    graph = single("Conv", arrays, (1,), strides=(2, 2), pads=(1,) * 4)
    (launch,) = launches(planned(graph, conv="few_channels_mma"))
    assert dict(launch.source.constants)["IN_WORDS"] == in_words


def test_large_images_of_float32_are_not_packed() -> None:
    """First layers of MobileNet and ResNet at batch 32."""

    def entry(*kernel: int, images: int) -> str:
        arrays = [np.broadcast_to(np.float32(1), s) for s in ((images, 3, 224, 224), kernel)]
        pads = (kernel[2] // 2,) * 4
        found = launches(planned(single("Conv", arrays, (1,), strides=(2, 2), pads=pads)))
        return found[0].entry

    assert entry(32, 3, 3, 3, images=32) == "few_channels_wgmma"
    assert entry(64, 3, 7, 7, images=32) == "few_channels_wgmma"


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    found = [
        launch
        for case in [*CASES, *VOLUMES]
        for name in ("few_channels", "few_channels_mma")[case in VOLUMES :]
        for dtype in DTYPES
        for launch in launches(planned(graph_of(case, dtype, dtype)[0], device, conv=name))
        if launch.entry.startswith("few_channels")
    ]
    assert len(found) == (2 * len(CASES) + len(VOLUMES)) * len(DTYPES)
    files = COMPILES - WARPGROUPS
    all_compile({launch.source: None for launch in found}, target, cache, files)
    assert_arguments(found, target, cache)


def test_those_of_warpgroups_compile(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for time in ("LAUNCH", "POOLED", "SQUARE_BLOCK", "SQUARE_STEP"):
        monkeypatch.setattr(few_channels_mma, time, 0 if time == "LAUNCH" else (0, 0))
    found = [
        launch
        for case in PAIRS
        for dtype in DTYPES
        for launch in launches(planned(graph_of(case, dtype, dtype)[0], conv="few_channels_mma"))
        if launch.entry == "few_channels_wgmma"
    ]
    assert len(found) == len(PAIRS) * len(DTYPES) - len(NARROW)
    all_compile({launch.source: None for launch in found}, H200, cache, WARPGROUPS)
    assert_arguments(found, H200, cache)
