"""The networks that everybody measures, beside other runtimes on the same GPU.

    python -m tercet.tools.peer_bench --peers gpu_peers.json --output docs/results
    python -m tercet.tools.peer_bench --backend cudnn --peers gpu_peers.json --probe probe.json

Each row is a model, a precision and a batch: the time of the device alone for a replay of the
plan's CUDA graph with the inputs resident, and the distance of the first two results from float64.
The peers' figures come from a file that whatever measured them on this machine has written: a list
of objects with model, precision (fp16, fp32), batch, peer, ms, p10, p90 and rel_err. The cudnn
backend is held against onnxruntime alone, and its ResNet-50 in float16 against what cuDNN's own
graphs need for the 53 convolutions, where ``--probe`` names a file that says so by batch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any

from ..api import load
from ..backends import open_backends
from ..runtime.backend import Backend
from ..runtime.errors import TercetError, UsageError
from ..runtime.model import Model
from ..runtime.options import Options, Precision
from ..runtime.program import Program
from ..runtime.types import Array
from . import cost
from .accuracy import distance, exact_outputs
from .bench_models import bench_inputs, bench_model
from .console import Say, grid, open_console, progress
from .device_time import device_times
from .environment import PACKAGES, ROOT, device_environment
from .measure import Timing
from .peaks import Peaks, peaks_of
from .peers import (
    PRECISIONS,
    Bound,
    Key,
    Peer,
    read_bounds,
    read_peers,
    rest_of,
    rivals,
    verdict,
)
from .report_charts import Dot, roofline
from .report_markup import Markup, element
from .report_style import STYLE

#: Models by the name that the peers' file has for them.
MODELS = {
    "resnet50": "resnet50_v15",
    "mobilenet_v2": "mobilenet_v2",
    "vgg16": "vgg16",
    "googlenet": "googlenet",
    "vit_base": "vit_base",
    "bert_base": "bert_base",
}
BATCHES = (1, 32)
#: The model and the precision that `read_bounds` speaks of.
PROBED = "resnet50", "float16"
#: Images of a batch whose results are compared with float64.
JUDGED = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One model in one precision and batch size, on one backend.

    Attributes:
        model: its name in the peers' file.
        precision: ``float32`` or ``float16``.
        batch: images or sentences.
        backend: who ran it.
        device: times of the device alone.
        error: relative L2 distance of the first results from float64.
        steps: rows of the plan that compute something.
        flops: of the model, two for each multiply-accumulate.
        nbytes: weights, and every tensor of the plan written once and read once.
        peers: other runtimes that it is held against, the fastest first.
        bound: what cuDNN's own graphs need, where that is known.
    """

    model: str
    precision: Precision
    batch: int
    backend: str
    device: Timing
    error: float
    steps: int
    flops: int
    nbytes: int
    peers: tuple[Peer, ...]
    bound: Bound | None = None

    @property
    def title(self) -> str:
        """What is measured: ``vgg16, float16, batch 32``."""
        return f"{self.model}, {self.precision}, batch {self.batch}"

    @property
    def verdict(self) -> str:
        """Whether it keeps up, in words."""
        return verdict(self.device, self.peers, self.bound)

    @property
    def ratio(self) -> float | None:
        """Time of the fastest peer by ours."""
        return self.peers[0].median / (1e3 * self.device.median) if self.peers else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON, times in milliseconds."""
        return {
            "model": self.model,
            "precision": self.precision,
            "batch": self.batch,
            "backend": self.backend,
            "device_ms": self.device.to_dict(),
            "error": self.error,
            "steps": self.steps,
            "flops": self.flops,
            "bytes": self.nbytes,
            "ratio": self.ratio,
            "verdict": self.verdict,
            "bound": None if self.bound is None else asdict(self.bound),
            "peers": [asdict(peer) for peer in self.peers],
        }


# ── measuring ────────────────────────────────────────────────────────────────────────────────────


def measure(
    names: Sequence[str],
    backends: Sequence[str],
    peers: Mapping[Key, tuple[Peer, ...]],
    say: Say,
    *,
    tune: bool = False,
    probe: Mapping[int, float] | None = None,
) -> Iterable[Row]:
    """Yield the rows of some models, each in both precisions and both batch sizes.

    Args:
        names: of the models.
        backends: who runs them.
        peers: figures of others.
        say: told of the progress.
        tune: whether to measure the ways to run each node, and take the fastest.
        probe: what cuDNN's own graphs need for ResNet-50's convolutions in float16, by batch.
    """
    for name in names:
        source = bench_model(MODELS.get(name, name))
        say(f"{name}: float64")
        judged = bench_inputs(source, batch=JUDGED)
        exact = exact_outputs(source, judged)
        for precision, backend in product(PRECISIONS.values(), backends):
            for batch in BATCHES:
                say(f"{name}: {precision}, batch {batch}, {backend}")
                feeds = _repeated(judged, batch)
                with load(source, backend, precision=precision, tune=tune) as model:
                    error = distance(_first(model.run(feeds)), _first(exact, batch))
                    known = rivals(backend, peers.get((name, precision, batch), ()))
                    shapes = {x: data.shape for x, data in feeds.items()}
                    plan = model.prepare(shapes)
                    row = _row((name, precision, batch), backend, model, plan, error, known)
                    if probe and batch in probe and (name, precision) == PROBED:
                        row = replace(row, bound=Bound(probe[batch], rest_of(model, feeds)))
                    yield row


def _repeated(feeds: Mapping[str, Array], batch: int) -> dict[str, Array]:
    """Return a batch that consists of the judged images over and over."""
    return {
        name: data[[i % len(data) for i in range(batch)]] if data.ndim else data
        for name, data in feeds.items()
    }


def _first(results: Mapping[str, Any], batch: int = JUDGED) -> dict[str, Any]:
    return {name: data[: min(batch, JUDGED)] for name, data in results.items()}


def _row(
    key: Key,
    backend: str,
    model: Model,
    plan: Program,
    error: float,
    peers: tuple[Peer, ...],
) -> Row:
    timing = device_times(model, plan)
    if timing is None:
        raise UsageError(f"{key[0]}: {backend} does not run all of it on the device")
    own = model.backends[0].device.name
    macs = sum(cost.macs(node) or 0 for node in plan.graph.walk())
    return Row(
        *key,
        backend=backend,
        device=timing,
        error=error,
        steps=sum(row.kind == "step" for row in plan.rows),
        flops=2 * macs,
        nbytes=plan.memory.weights.get(own, 0) + 2 * plan.memory.tensors.get(own, 0),
        peers=peers,
    )


# ── reports ──────────────────────────────────────────────────────────────────────────────────────

TITLES = (
    "model", "precision", "batch", "backend", "ms", "p10–p90", "error", "best peer", "its ms",
    "its error", "ratio", "verdict",
)  # fmt: skip
_TEXT = 4


def cells(row: Row) -> tuple[str, ...]:
    """Return a row of the table."""
    p10, p50, p90 = (f"{1e3 * row.device.quantile(q):.3f}" for q in (0.1, 0.5, 0.9))
    best = row.peers[0] if row.peers else None
    beside = ("", "", "", "")
    if best is not None:
        error = "" if best.error is None else f"{best.error:.1e}"
        beside = (best.name, f"{best.median:.3f}", error, f"{row.ratio:.2f}")
    size = str(row.batch)
    return (
        *(row.model, row.precision, size, row.backend),
        *(p50, f"{p10}–{p90}", f"{row.error:.1e}"),
        *(*beside, row.verdict),
    )


def summary(rows: Sequence[Row], backend: str) -> str:
    """Return the geometric mean of peer by ours, and how many rows are ahead."""
    ratios = [row.ratio for row in rows if row.backend == backend and row.ratio is not None]
    if not ratios:
        return f"{backend}: no peer to compare with."
    mean = exp(sum(map(log, ratios)) / len(ratios))
    ahead = sum(ratio >= 1 for ratio in ratios)
    return (
        f"{backend}: geometric mean of best peer / tercet {mean:.2f} over {len(ratios)} rows, "
        f"{ahead} of them at least as fast; the worst {min(ratios):.2f}."
    )


def picture(rows: Sequence[Row], peaks: Peaks) -> str:
    """Return the roofline of one precision as an SVG document."""
    chosen = [row for row in rows if row.precision == peaks.precision]
    dots = [
        Dot(
            title=f"{row.model}, batch {row.batch}, {row.backend}",
            kind=row.model,
            intensity=row.flops / row.nbytes,
            rate=row.flops / row.device.median,
            share=None,
            label=f"b{row.batch}",
            other=row.flops / (row.peers[0].median / 1e3) if row.peers else None,
        )
        for row in chosen
        if row.backend == peaks.backend
    ]
    drawn = roofline(dots, peaks.copy, peaks.flops, f"Roofline, {peaks.precision}")
    style = element("style", Markup(STYLE))
    return drawn.replace(">", f">{style}", 1) + "\n"


def markdown(rows: Sequence[Row], about: Mapping[str, str], found: Sequence[Peaks]) -> str:
    """Return the report as a Markdown page."""
    names = list(dict.fromkeys(row.backend for row in rows))
    lines = [
        "# Beside other runtimes on the same GPU",
        "",
        "Written by `tools/peer_bench.py`. Milliseconds of the device for one replay of the plan's "
        "CUDA graph, inputs resident, medians of 200; float32 is float32 (no TF32 product alone; "
        "see `docs/algorithms.md`). *Error* is the relative L2 distance of the first two results "
        "from float64. *Ratio* is the best peer's time by ours; the peers were measured on the "
        "same model of GPU, by a script of their own, with other random weights. *ok* is what is "
        "no slower than the best peer, by our 10th and its 90th percentile.",
        "",
        *(f"- {name}: {text}" for name, text in about.items()),
        "",
        *(f"**{summary(rows, name)}**\n" for name in names),
        f"| {' | '.join(TITLES)} |",
        f"|{'---|' * _TEXT}{'---:|' * (len(TITLES) - _TEXT)}",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        "All peers, milliseconds:",
        "",
        "| model | precision | batch | peer | ms | p10–p90 | error |",
        "|---|---|---|---|---:|---:|---:|",
        *_peer_lines(rows),
        "",
        *(f"{row.title}: {row.bound}.\n" for row in rows if row.bound is not None),
        *_roof_lines(found),
    ]
    return "\n".join(lines)


def _roof_lines(found: Sequence[Peaks]) -> list[str]:
    if not found:
        return []
    return [
        "The roof is what the backend itself reaches on this GPU: its fastest copy, and its "
        "fastest product of two square matrices of 4096. Bytes are the weights, and every tensor "
        "of the plan written once and read once. A ring is the best peer, with the same bytes.",
        "",
        *(f"![Roofline, {each.precision}](gpu_roofline_{each.precision}.svg)\n" for each in found),
    ]


def _peer_lines(rows: Sequence[Row]) -> list[str]:
    seen: dict[Key, tuple[Peer, ...]] = {}
    for row in rows:
        seen[row.model, row.precision, row.batch] = row.peers
    return [
        f"| {model} | {precision} | {batch} | {peer.name} | {peer.median:.3f} | "
        f"{peer.p10:.3f}–{peer.p90:.3f} | {'' if peer.error is None else f'{peer.error:.1e}'} |"
        for (model, precision, batch), peers in seen.items()
        for peer in peers
    ]


def save(
    rows: Sequence[Row],
    about: Mapping[str, str],
    found: Sequence[Peaks],
    folder: Path,
    name: str = "gpu_peers",
) -> list[Path]:
    """Write JSON, Markdown and the rooflines; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "environment": dict(about),
        "peaks": [each.to_dict() for each in found],
        "results": [row.to_dict() for row in rows],
    }
    written = {
        f"{name}.json": json.dumps(data, indent=1) + "\n",
        f"{name}.md": markdown(rows, about, found),
        **{f"gpu_roofline_{each.precision}.svg": picture(rows, each) for each in found},
    }
    for file, text in written.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in written]


def _peaks(chain: Sequence[Backend], say: Say) -> list[Peaks]:
    return [peaks_of(chain, Options(precision=p), say) for p in PRECISIONS.values()]


def _name(backends: Sequence[str], tune: bool) -> str:
    """Return how the files are called: ``gpu_peers`` for cuda, ``gpu_peers_cudnn_tuned``."""
    other = [] if list(backends) == ["cuda"] else list(backends)
    return "_".join(["gpu_peers", *other, *(["tuned"] if tune else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; return the exit code."""
    parser = argparse.ArgumentParser(prog="peer_bench", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--backend", action="append", help="cuda where none is named; repeatable")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="figures of other runtimes")
    parser.add_argument("--probe", type=Path, metavar="FILE", help="figures of cuDNN's own graphs")
    parser.add_argument("--tune", action="store_true", help="take what is measured to be fastest")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER")
    parser.add_argument("--commit", default="", help="what to record where there is no git")
    chosen = parser.parse_args(arguments)
    backends = chosen.backend or ["cuda"]
    console = open_console()
    try:
        peers = read_peers(chosen.peers) if chosen.peers else {}
        probe = read_bounds(chosen.probe) if chosen.probe else {}
        chain = open_backends(backends[0], Options())
        about = device_environment(chain[0].device, PACKAGES, chosen.commit)
        about["ways"] = "measured (tune)" if chosen.tune else "estimated"
        with progress() as say:
            tune = chosen.tune
            rows = list(measure(chosen.models, backends, peers, say, tune=tune, probe=probe))
            found = _peaks(chain, say) if backends == ["cuda"] else []
    except TercetError as error:
        console.print(f"peer_bench: {error}")
        return error.exit_code
    table = grid(*TITLES, left=_TEXT)
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    for backend in backends:
        console.print(summary(rows, backend))
    for path in save(rows, about, found, chosen.output, _name(backends, chosen.tune)):
        console.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
