"""A study of float16 with float32 and with float16 accumulation: their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...api import load
from ...runtime.ir.types import Array
from ..verdict.accuracy import distance, exact_outputs
from .bench_models import bench_inputs, bench_model
from .peer_page import MODELS
from .studies_lab import Lab, StudiedConv
from .studies_report import Column, Study, Table

#: Convolutions of more and more terms.
CASES = tuple(
    StudiedConv((1, channels, extent, extent), filters, kernel, dtype=np.float16)
    for channels, extent, filters, kernel in (
        *((16, 64, 64, 1), (64, 56, 256, 1), (64, 56, 64, 3), (128, 28, 128, 3)),
        *((256, 14, 256, 3), (512, 7, 512, 3), (2048, 14, 64, 3)),
    )
)
NETWORKS = ("resnet50", "mobilenet_v2", "googlenet")
#: Images whose largest score is compared, and those that float64 judges.
IMAGES, JUDGED = 64, 2
#: The user's choices by what adds up.
SUMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {
        "algorithms": {
            "Conv": "half_sums,depthwise",
            "MatMul": "half_sums",
            "Gemm": "half_sums",
        }
    },
}


def sums(lab: Lab) -> Study:
    """Compare float16 whose sums are float32 with float16 whose sums are float16, too."""
    layers = [_layer(lab, case) for case in CASES]
    networks = [row for name in NETWORKS for row in _network(lab, name)]
    worst = max(row["float16"] / row["float32"] for row in layers)
    alike = [row["top1"] for row in networks]
    return Study(
        "sums",
        "*Pseudo half* stores float16 and accumulates in float32, as every other algorithm of "
        "tercet does; *true half* (`half_sums`) accumulates in float16 as well.",
        (
            Table(
                "convolutions: maximum difference from float64, of the largest result",
                (
                    Column("case", "case"),
                    Column("terms", "terms", "d"),
                    Column("float32", "float32 sums", ".1e"),
                    Column("float16", "float16 sums", ".1e"),
                    Column("us32", "us, float32 sums", ".1f"),
                    Column("us16", "us, float16 sums", ".1f"),
                ),
                tuple(layers),
            ),
            Table(
                f"networks with random weights: relative L2 distance from float64 for {JUDGED} "
                f"images, and the share of {IMAGES} whose top-1 class is float32's",
                (
                    Column("model", "model"),
                    Column("sums", "sums"),
                    Column("error", "error", ".1e"),
                    Column("top1", "same top 1", ".0%"),
                ),
                tuple(networks),
            ),
        ),
        (
            f"sums in float16 are up to {worst:.0f} times as far from float64 as those in float32",
            f"the top-1 class is that of float32 for {min(alike):.0%} of the images or more",
        ),
    )


def _layer(lab: Lab, case: StudiedConv) -> dict[str, Any]:
    lab.say(f"sums, {case.title}")
    feeds = case.feeds
    wide, narrow = (lab.take(case.model(feeds), feeds, "Conv", **how) for how in SUMS.values())
    return {
        "case": case.title,
        "terms": case.x[1] * case.kernel**2,
        "float32": case.error(wide.result),
        "float16": case.error(narrow.result),
        "us32": wide.us,
        "us16": narrow.us,
    }


def _network(lab: Lab, name: str) -> list[dict[str, Any]]:
    lab.say(f"sums, {name}")
    source = bench_model(MODELS[name])
    images = bench_inputs(source, batch=IMAGES)
    judged = {key: data[:JUDGED] for key, data in images.items()}
    exact = exact_outputs(source, judged)
    with load(source, "cuda") as model:
        want = _greatest(model.run(images))
    rows: list[dict[str, Any]] = []
    for kept, how in SUMS.items():
        with load(source, "cuda", precision="float16", **how) as model:
            error = distance(model.run(judged), exact)
            same = float(np.mean(_greatest(model.run(images)) == want))
        rows.append({"model": name, "sums": kept, "error": error, "top1": same})
    return rows


def _greatest(results: Any) -> Array:
    (scores,) = results.values()
    return scores.reshape(len(scores), -1).argmax(1)
