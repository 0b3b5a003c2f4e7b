"""Studies of memory layouts of images: NCHW and NHWC, padded and folded channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from .studies_convolution import best_of
from .studies_lab import Lab, StudiedConv, apart_by, floor_seconds, is_same
from .studies_report import Column, Study, Table

# ── layouts ──────────────────────────────────────────────────────────────────────────────────────

_F16 = np.float16
#: Convolutions with the milliseconds of a GV100 by layout.
LAYOUTS = (
    (StudiedConv((1, 64, 32, 32), 128, 3, 2), (0.05, 0.06)),
    (StudiedConv((1, 128, 128, 128), 128, 3), (0.26, 0.50)),
    (StudiedConv((1, 32, 512, 512), 64, 5, 2), (0.56, 1.06)),
    (StudiedConv((1, 3, 1080, 1920), 32, 5), (0.97, 1.36)),
    (StudiedConv((1, 128, 16, 16), 256, 7, 2), (0.40, 0.41)),
    (StudiedConv((1, 4, 1080, 1920), 32, 9, 2), (1.22, 1.34)),
    (StudiedConv((1, 128, 128, 128), 128, 11), (5.13, 5.72)),
    (StudiedConv((1, 64, 32, 32), 128, 3, 2, _F16), (0.05, 0.04)),
    (StudiedConv((1, 128, 128, 128), 128, 3, 1, _F16), (0.11, 0.08)),
    (StudiedConv((1, 32, 512, 512), 64, 5, 2, _F16), (0.25, 0.15)),
    (StudiedConv((1, 8, 1080, 1920), 32, 5, 1, _F16), (3.00, 2.31)),
    (StudiedConv((1, 128, 16, 16), 256, 7, 2, _F16), (0.26, 0.23)),
    (StudiedConv((1, 128, 128, 128), 128, 7, 1, _F16), (0.37, 0.34)),
    (StudiedConv((1, 8, 800, 800), 8, 9, 2, _F16), (1.20, 2.53)),
)
#: The algorithms that a planner considers for each layout.
_PLAIN = ("direct",)
_LAST = ("tensor_cores", "implicit_precomp_gemm", "winograd_f4_nonfused", "fft")


def layouts(lab: Lab) -> Study:
    """Compare layouts: kernels that read and write NCHW, and those that want NHWC."""
    rows: dict[str, list[dict[str, Any]]] = {"float32": [], "float16": []}
    for case, peer in LAYOUTS:
        lab.say(f"layouts, {case.title}")
        unit = np.dtype(case.dtype).name
        rows[unit].append(_layout_row(lab, case, peer, unit))
    tables = tuple(
        Table(f"{unit}, microseconds", _LAYOUT_COLUMNS, tuple(found))
        for unit, found in rows.items()
    )
    findings: list[str] = []
    for unit, found in rows.items():
        plain = sum(row["ratio"] > 1 for row in found)
        good = sum(row["good"] for row in found)
        findings.append(
            f"{unit}: NCHW wins {plain} of {len(found)} rows on this GPU, with its reformats; the "
            f"planner takes the better kernel, or one within 5 %, in {good} of {len(found)} (it "
            "expects neighbours in NHWC, as in a network, and counts no reformats for them)"
        )
    return Study(
        "layouts",
        "An image with input and output in NCHW, computed by a kernel for NCHW (`direct`), and by "
        "the best kernel for NHWC, with and without the reformats before and after it; then the "
        "planner's choice for the same model, including everything. GV100: NCHW / NHWC in the "
        "talk.",
        tables,
        tuple(findings),
    )


_LAYOUT_COLUMNS = (
    Column("case", "convolution"),
    Column("plain", "NCHW", ".1f"),
    Column("last", "NHWC", ".1f"),
    Column("around", "+ reformats", ".1f"),
    Column("planned", "planner", ".1f"),
    Column("layout", "takes"),
    Column("excess", "to the better", "+.1%"),
    Column("floor", "floor", ".1f"),
    Column("gv100", "GV100"),
)


def _layout_row(
    lab: Lab, case: StudiedConv, peer: tuple[float, float], unit: str
) -> dict[str, Any]:
    feeds = case.feeds
    model = case.model(feeds)
    plain = best_of(lab.ways(model, feeds, _PLAIN, fetch=False))[1]
    last = best_of(lab.ways(model, feeds, _LAST, fetch=False))[1]
    planned = lab.take(model, feeds, "Conv", fetch=False)
    better = min(plain, last, key=lambda taken: taken.whole)
    return {
        "case": case.title,
        "plain": 1e6 * plain.whole,
        "last": last.us,
        "around": 1e6 * last.whole,
        "planned": 1e6 * planned.whole,
        "layout": planned.formats[1],
        "kernel": planned.kernels,
        "ratio": last.whole / plain.whole,
        "excess": planned.whole / better.whole - 1,
        "good": planned.whole <= 1.05 * better.whole or planned.kernels == better.kernels,
        "floor": 1e6 * floor_seconds(case.flops, case.nbytes, unit),
        "gv100": f"{1e3 * peer[0]:.0f} / {1e3 * peer[1]:.0f}",
    }


# ── channels: padded, folded ─────────────────────────────────────────────────────────────────────


def padding(lab: Lab) -> Study:
    """Compare three channels with the same padded to eight by zeros, in float16."""
    three = StudiedConv((1, 3, 512, 512), 32, 3, 1, _F16, last=True)
    eight = StudiedConv((1, 8, 512, 512), 32, 3, 1, _F16, last=True)
    image = np.zeros((1, 512, 512, 8), _F16)
    weights = np.zeros((32, 8, 3, 3), _F16)
    feeds = three.feeds
    image[..., :3], weights[:, :3] = feeds["x"], three.weights
    model = eight.model({"x": image})
    model.graph.initializer[0].raw_data = weights.tobytes()
    first = lab.take(three.model(feeds), feeds, "Conv")
    second = lab.take(model, {"x": image}, "Conv")
    floor = 1e6 * floor_seconds(three.flops, three.nbytes, "float16")
    same = is_same(first.result, second.result)
    rows = tuple(
        {
            "case": title,
            "us": taken.us,
            "whole": 1e6 * taken.whole,
            "gv100": 1e3 * gv100,
            "floor": floor,
            "error": three.error(taken.result),
            "kernel": taken.kernels,
        }
        for title, taken, gv100 in (("3 channels", first, 0.84), ("3 padded to 8", second, 0.18))
    )
    return Study(
        "padding",
        "512x512 pixels, 3x3 windows, 32 filters, float16, NHWC: three channels, unpadded and "
        "padded to eight with zeros beforehand. The kernel for few channels reads NCHW and packs "
        "them itself, so a reformat precedes it here.",
        (Table("the convolution, and everything", _CHANNEL_COLUMNS, rows),),
        (
            f"unpadded / padded: {first.seconds / second.seconds:.2f} (GV100: 4.67): padding pays "
            "if this is above 1; the planner never pads",
            f"results are equal bit by bit: {'yes' if same else 'no'}; the maximum difference is "
            f"{apart_by(first.result, second.result):.1e} of the largest result (three channels "
            "are packed as four, so that terms are added in another order)",
        ),
    )


_CHANNEL_COLUMNS = (
    Column("case", "channels"),
    Column("us", "us", ".1f"),
    Column("whole", "with reformats", ".1f"),
    Column("gv100", "GV100 us", ".0f"),
    Column("floor", "floor us", ".1f"),
    Column("error", "error", ".1e"),
    Column("kernel", "kernel"),
)


def folding(lab: Lab) -> Study:
    """Compare 2048x2048 pixels of 8 channels with 1024x1024 of 32."""
    rows: list[dict[str, Any]] = []
    for size, channels in ((2048, 8), (1024, 32)):
        case = StudiedConv((1, channels, size, size), channels, 3, 1, _F16, last=True)
        feeds = case.feeds
        taken = lab.take(case.model(feeds), feeds, "Conv")
        rows.append(
            {
                "case": case.title,
                "us": taken.us,
                "gflop": case.flops / 1e9,
                "rate": case.flops / taken.seconds / 1e12,
                "mb": case.nbytes / 1e6,
                "bandwidth": case.nbytes / taken.seconds / 1e12,
                "floor": 1e6 * floor_seconds(case.flops, case.nbytes, "float16"),
                "error": case.error(taken.result),
            }
        )
    columns = (
        Column("case", "convolution"),
        Column("us", "us", ".1f"),
        Column("gflop", "GFLOP", ".2f"),
        Column("rate", "TFLOP/s", ".1f"),
        Column("mb", "MB", ".0f"),
        Column("bandwidth", "TB/s", ".2f"),
        Column("floor", "floor us", ".1f"),
        Column("error", "error", ".1e"),
    )
    return Study(
        "folding",
        "The same bytes as twice the pixels along both axes with few channels, or folded into "
        "four times the channels (SpaceToDepth), which requires training the network that way. "
        "float16, NHWC.",
        (Table("kernels alone", columns, tuple(rows)),),
        (f"unfolded / folded: {rows[0]['us'] / rows[1]['us']:.2f}, for a quarter of the FLOP",),
    )
