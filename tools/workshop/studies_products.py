"""Studies that compare kernels: the steps to a fast matrix product, and the choice among them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx

from ...runtime.ir.types import Array
from ..tune.tuning import Tuned, tune
from .bench_models import bench_model
from .studies_lab import (
    PEAKS,
    Lab,
    StudiedConv,
    apart_by,
    model_of,
    node_of,
    normal,
    pytorch,
    pytorch_seconds,
)
from .studies_report import Column, Curves, Study, Table

# ── ladders ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LadderStep:
    """One step of a ladder.

    Attributes:
        title: what it is.
        way: its name in the menu; empty for the planner's own.
        unit: the arithmetic whose peak it is compared with.
        precision: of `Options`; float16 takes arrays of that type.
    """

    title: str
    way: str
    unit: str = "float32"
    precision: str = "float32"


PRODUCT_STEPS = (
    LadderStep("one thread per result", "gemm_naive"),
    LadderStep("tiles in shared memory", "gemm_blocked"),
    LadderStep("sums in registers", "gemm_registers"),
    LadderStep("loads of four", "gemm_vectors"),
    LadderStep("copies overlap arithmetic", "gemm"),
    LadderStep("tensor cores, 3xTF32", "tensor_cores", "3xTF32"),
    LadderStep("tensor cores, TF32", "tensor_cores", "tf32", "tf32"),
    LadderStep("tensor cores, float16", "tensor_cores", "float16", "float16"),
)
CONVOLUTION_STEPS = (
    LadderStep("a block a pixel, NHWC", "naive_nhwc"),
    LadderStep("one thread per result", "naive"),
    LadderStep("direct: tiles of the image", "direct"),
    LadderStep("implicit GEMM", "implicit_gemm"),
    LadderStep("with a table, copies overlap", "implicit_precomp_gemm"),
    LadderStep("Winograd F4 in steps", "winograd_f4_nonfused"),
    LadderStep("tensor cores, 3xTF32", "tensor_cores", "3xTF32"),
    LadderStep("tensor cores, TF32", "tensor_cores", "tf32", "tf32"),
    LadderStep("tensor cores, float16", "tensor_cores", "float16", "float16"),
)
SIDES = (512, 1024, 2048, 4096)
EXTENTS = (16, 32, 64, 128)


def ladder(lab: Lab) -> Study:
    """Climb from one thread per result to tensor cores, for products and convolutions."""
    flops = {side: 2 * side**3 for side in SIDES}
    products = [_climb(step, _multiplied(lab, step), flops) for step in PRODUCT_STEPS]
    vendor = [
        {"step": name} | {str(side): flops[side] / s / 1e12 for side, s in found.items()}
        for name, found in _vendor(lab)
    ]
    cases = {extent: StudiedConv((1, 128, extent, extent), 128, 3) for extent in EXTENTS}
    work = {extent: case.flops for extent, case in cases.items()}
    convolutions = [_climb(step, _convolved(lab, step, cases), work) for step in CONVOLUTION_STEPS]
    tiles = list(_tiles(lab))
    curve = Curves(
        "ladder",
        "Steps to a fast product of matrices",
        "side of the matrices",
        "TFLOP/s",
        {row["step"]: [(side, row[str(side)]) for side in SIDES] for row in products[:6]},
    )
    return Study(
        "ladder",
        "TFLOP/s for the same work, each step with one more idea; "
        "`backends/cuda/kernels/gemm/ladder.cu` has the first four for matrix products, to read "
        "one after the other. *Of peak* is the fraction of the data sheet's rate for the unit at "
        "the largest size.",
        (
            Table("products of square matrices, TFLOP/s by side", _ladder_columns(SIDES),
                  (*products, *vendor)),
            Table("3x3 convolutions, 128 channels and filters, TFLOP/s by height and width",
                  _ladder_columns(EXTENTS), tuple(convolutions)),
            Table("tiles of gemm, microseconds", _TILE_COLUMNS, tuple(tiles)),
        ),
        (*_verdicts(products, vendor, tiles), _loops(lab)),
        (curve,),
    )  # fmt: skip


def _ladder_columns(sizes: tuple[int, ...]) -> tuple[Column, ...]:
    numbers = (Column(str(size), str(size), ".2f") for size in sizes)
    return (Column("step", "step"), *numbers, Column("share", "of peak", ".0%"))


def _climb(step: LadderStep, found: dict[int, float], flops: dict[int, int]) -> dict[str, Any]:
    rates = {str(size): flops[size] / seconds / 1e12 for size, seconds in found.items()}
    last = str(max(flops))
    share = 1e12 * rates[last] / PEAKS[step.unit] if last in rates else None
    return {"step": step.title, "way": step.way, "share": share, **rates}


def _multiplied(lab: Lab, step: LadderStep) -> dict[int, float]:
    found: dict[int, float] = {}
    for side in SIDES:
        lab.say(f"products, {step.title}, {side}")
        dtype = np.float16 if step.precision == "float16" else np.float32
        feeds = {"a": normal(side, side).astype(dtype), "b": normal(side, side).astype(dtype)}
        model = model_of([node_of("MatMul", ["a", "b"], "y")], feeds, ["y"], {})
        precision = "tf32" if step.precision == "tf32" else "float32"
        how = {"algorithms": {"MatMul": step.way}, "precision": precision}
        found[side] = lab.take(model, feeds, "MatMul", fetch=False, **how).seconds
    return found


def _convolved(lab: Lab, step: LadderStep, cases: dict[int, StudiedConv]) -> dict[int, float]:
    found: dict[int, float] = {}
    for extent, case in cases.items():
        lab.say(f"convolutions, {step.title}, {extent}")
        if step.precision == "float16":
            case = StudiedConv(case.x, case.filters, case.kernel, dtype=np.float16)
        feeds = case.feeds
        precision = "tf32" if step.precision == "tf32" else "float32"
        taken = lab.take(
            case.model(feeds), feeds, "Conv", fetch=False, conv=step.way, precision=precision
        )
        found[extent] = taken.seconds
    return found


def _verdicts(
    products: list[dict[str, Any]], vendor: list[dict[str, Any]], tiles: list[dict[str, Any]]
) -> Iterator[str]:
    last = str(SIDES[-1])
    rising = all(b[last] > a[last] for a, b in pairwise(products[:6]))
    yield f"in float32 every step is faster than the one before at {last}: {_word(rising)}"
    for side in map(str, _TILE_SIDES):
        best = min(tiles, key=lambda row: row[side])
        yield f"the fastest tile of gemm at {side}: {best['tile']}"
    for row, places in zip(vendor, ((4, 5), (6,), (7,)), strict=False):
        for step in (products[place] for place in places):
            yield f"{step['step']} by {row['step']} at {last}: {step[last] / row[last]:.2f}"


def _word(yes: bool) -> str:
    return "yes" if yes else "no"


# ── tiles ────────────────────────────────────────────────────────────────────────────────────────

_TILE_SIDES = (512, 1024, 2048)
_TILE_COLUMNS = (
    Column("tile", "tile"),
    *(Column(str(side), str(side), ".1f") for side in _TILE_SIDES),
)


def _tiles(lab: Lab) -> Iterator[dict[str, Any]]:
    """Yield the time of every tile of `gemm`: a larger one is not always better."""
    found: dict[str, dict[str, Any]] = {}
    for side in _TILE_SIDES:
        lab.say(f"tiles, {side}")
        for title, microseconds in lab.tiles(side):
            found.setdefault(title, {"tile": title})[str(side)] = microseconds
    yield from found.values()


# ── beside ───────────────────────────────────────────────────────────────────────────────────────


def _vendor(lab: Lab) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield what cuBLAS takes, where PyTorch is installed, which brings it."""
    torch = pytorch()
    if torch is None:
        return
    lab.say("cuBLAS, by PyTorch")
    for title, dtype, tf32 in (
        ("cuBLAS, float32", torch.float32, False),
        ("cuBLAS, TF32", torch.float32, True),
        ("cuBLAS, float16", torch.float16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        found: dict[int, float] = {}
        for side in SIDES:
            a, b = (torch.randn(side, side, device="cuda").to(dtype) for _ in range(2))
            found[side] = pytorch_seconds(torch, lambda a=a, b=b: torch.matmul(a, b))
        yield f"{title} (torch {torch.__version__})", found


def _loops(lab: Lab) -> str:
    """Compare seven loops of Python with one thread per result."""
    case = StudiedConv((1, 8, 16, 16), 8, 3)
    feeds = case.feeds
    begin = perf_counter()
    slow = seven_loops(case.image, case.weights)
    seconds = perf_counter() - begin
    taken = lab.take(case.model(feeds), feeds, "Conv", conv="naive")
    apart = apart_by(slow, taken.result)
    return (
        f"seven loops of Python on the host ({case.title}): {1e3 * seconds:.0f} ms, one thread "
        f"per result {taken.us:.1f} us, {seconds / taken.seconds:.0f} times faster; results apart "
        f"by {apart:.1e} of the largest"
    )


def seven_loops(x: Array, w: Array) -> Array:
    """Return the convolution that keeps the extents, by the loops of the definition."""
    images, channels, height, width = x.shape
    filters, _, rows, columns = w.shape
    y = np.zeros((images, filters, height, width), np.float32)
    for n, m, r, c in np.ndindex(y.shape):
        total = 0.0
        for k, i, j in product(range(channels), range(rows), range(columns)):
            u, v = r + i - rows // 2, c + j - columns // 2
            if 0 <= u < height and 0 <= v < width:
                total += float(x[n, k, u, v]) * float(w[m, k, i, j])
        y[n, m, r, c] = total
    return y


# ── choices ──────────────────────────────────────────────────────────────────────────────────────

NETWORKS = ("resnet50_v15", "googlenet", "mobilenet_v2")


def regret(lab: Lab) -> Study:
    """Search three networks for faster algorithms and forms: how good are the estimates?"""
    rows: list[dict[str, Any]] = []
    worst: list[dict[str, Any]] = []
    for name in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.onnx"
            onnx.save(bench_model(name), file)
            found = tune(file, again=True, say=lab.say)
        rows.append(
            {
                "network": name,
                "layers": sum(group.steps for group in found.groups),
                "groups": len(found.groups),
                "estimate": found.before,
                "best": found.after,
                "regret": found.regret,
                "right": sum(not group.chosen for group in found.groups),
                "seconds": found.seconds,
            }
        )
        worst += _worst(name, found)
    columns = (
        Column("network", "network"),
        Column("layers", "layers", "d"),
        Column("groups", "distinct", "d"),
        Column("estimate", "estimates us", ".1f"),
        Column("best", "tuned us", ".1f"),
        Column("regret", "regret", ".1%"),
        Column("right", "kept", "d"),
        Column("seconds", "tuning s", ".1f"),
    )
    layers = (
        Column("task", "layer"),
        Column("chosen", "by estimates"),
        Column("taken", "in its place"),
        Column("gained", "us less", ".1f"),
    )
    return Study(
        "regret",
        "Convolutions and matrix products of batch 1, float32: whole networks with the algorithms "
        "that estimates select without a GPU, and with the fastest correct ones that `tercet "
        "tune` found.",
        (
            Table("networks", columns, tuple(rows)),
            Table("where estimates lose most", layers, tuple(worst)),
        ),
    )


def _worst(network: str, found: Tuned) -> list[dict[str, Any]]:
    """Return three layers whose choice costs most time, all equal ones together."""
    groups = sorted(found.groups, key=lambda group: group.after - group.before)
    return [
        {
            "task": _short(group.task),
            "network": network,
            "chosen": group.kernel,
            "taken": group.chosen,
            "gained": group.before - group.after,
        }
        for group in groups[:3]
        if group.chosen
    ]


def _short(task: str) -> str:
    """Return the sizes of a task without what is the same in all."""
    words = task.split()
    return " ".join(words[2:4]) if words[0] == "Conv" else " ".join((words[0], *words[2:4]))
