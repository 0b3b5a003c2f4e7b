"""The page of `peer_bench`: its rows, their tables and rooflines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from ...runtime.options import Precision
from ..common.markdown import head, table
from ..common.measure import Spread
from ..common.results import to_json, write
from ..profile.peaks import Peaks
from ..report.report_charts import Dot, roofline
from ..report.report_markup import Markup, element
from ..report.report_style import STYLE
from .peers import PRECISIONS, Key, Peer, PeerBound, verdict

#: Models by their names in the peers' file.
MODELS = {
    "resnet50": "resnet50_v15",
    "mobilenet_v2": "mobilenet_v2",
    "vgg16": "vgg16",
    "googlenet": "googlenet",
    "vit_base": "vit_base",
    "bert_base": "bert_base",
}


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """One model in one precision and batch size, on one backend.

    Attributes:
        model: its name in the peers' file.
        precision: ``float32`` or ``float16``.
        batch: images or sentences.
        backend: the backend.
        device: device time in milliseconds.
        error: relative L2 distance of the first results from float64.
        steps: rows of the plan that compute something.
        flops: of the model, two for each multiply-accumulate.
        nbytes: that the rows of the plan read and write.
        peers: the runtimes that it is compared with, the fastest first.
        bound: what cuDNN's own graphs need, where that is known.
        limit: milliseconds that these rows take at least by the device's peaks; None if unknown.
    """

    model: str
    precision: Precision
    batch: int
    backend: str
    device: Spread
    error: float
    steps: int
    flops: int
    nbytes: int
    peers: tuple[Peer, ...]
    bound: PeerBound | None = None
    limit: float | None = None

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
        return self.peers[0].median / self.device.median if self.peers else None

    @property
    def place(self) -> tuple[int, str, int, str, int]:
        """The key that identifies and orders rows."""
        names, precisions = list(MODELS), list(PRECISIONS.values())
        number = names.index(self.model) if self.model in names else len(names)
        precision = precisions.index(self.precision)
        return number, self.model, precision, self.backend, self.batch

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON, times in milliseconds."""
        return {
            "model": self.model,
            "precision": self.precision,
            "batch": self.batch,
            "backend": self.backend,
            "device_ms": asdict(self.device),
            "error": self.error,
            "steps": self.steps,
            "flops": self.flops,
            "bytes": self.nbytes,
            "limit_ms": self.limit,
            "ratio": self.ratio,
            "verdict": self.verdict,
            "bound": None if self.bound is None else asdict(self.bound),
            "peers": [asdict(peer) for peer in self.peers],
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> PeerTiming:
        """Return the inverse of `to_dict`."""
        return cls(
            **{name: entry[name] for name in ("model", "precision", "batch", "backend", "error")},
            device=Spread(**entry["device_ms"]),
            steps=entry["steps"],
            flops=entry["flops"],
            nbytes=entry["bytes"],
            peers=tuple(Peer(**peer) for peer in entry["peers"]),
            bound=PeerBound(**entry["bound"]) if entry["bound"] else None,
            limit=entry["limit_ms"],
        )


TITLES = (
    "model", "precision", "batch", "backend", "ms", "p10–p90", "of limit", "error", "best peer",
    "its ms", "its error", "ratio", "verdict",
)  # fmt: skip
TEXT = 4


def cells(row: PeerTiming) -> tuple[str, ...]:
    """Return a row of the table."""
    p10, p50, p90 = (f"{ms:.3f}" for ms in (row.device.p10, row.device.median, row.device.p90))
    best = row.peers[0] if row.peers else None
    of_best = ("", "", "", "")
    if best is not None:
        error = "" if best.error is None else f"{best.error:.1e}"
        of_best = (best.name, f"{best.median:.3f}", error, f"{row.ratio:.2f}")
    size = str(row.batch)
    share = "" if row.limit is None else f"{row.limit / row.device.median:.0%}"
    return (
        *(row.model, row.precision, size, row.backend),
        *(p50, f"{p10}–{p90}", share, f"{row.error:.1e}"),
        *(*of_best, row.verdict),
    )


def summary(rows: Sequence[PeerTiming], backend: str) -> str:
    """Return the geometric mean of the ratios to the best peer, and how many rows are ahead."""
    ratios = [row.ratio for row in rows if row.backend == backend and row.ratio is not None]
    if not ratios:
        return f"{backend}: there is no peer to compare with."
    mean = exp(sum(map(log, ratios)) / len(ratios))
    ahead = sum(ratio >= 1 for ratio in ratios)
    return (
        f"{backend}: geometric mean of best peer / tercet {mean:.2f} over {len(ratios)} rows, "
        f"{ahead} of them at least as fast; the worst {min(ratios):.2f}."
    )


def picture(rows: Sequence[PeerTiming], peaks: Peaks) -> str:
    """Return the roofline of one precision as an SVG document."""
    chosen = [row for row in rows if row.precision == peaks.precision]
    dots = [
        Dot(
            title=f"{row.model}, batch {row.batch}, {row.backend}",
            kind=row.model,
            intensity=row.flops / row.nbytes,
            rate=row.flops / (row.device.median / 1e3),
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


def markdown(rows: Sequence[PeerTiming], about: Mapping[str, str], found: Sequence[Peaks]) -> str:
    """Return the report as a Markdown page."""
    names = list(dict.fromkeys(row.backend for row in rows))
    text = (
        "Written by `tools/workshop/peer_bench.py`. Device time in milliseconds of one replay of "
        "the plan's CUDA graph with resident inputs, medians of 200; float32 is float32 (no single "
        "TF32 products; see `docs/algorithms.md`). *Error* is the relative L2 distance of the "
        "first two results from float64. *Ratio* is the best peer's time divided by ours; the "
        "peers were measured on the same model of GPU, by a separate script, with other random "
        "weights. *ok*: no slower than the best peer, by our 10th and its 90th percentile."
    )
    peers = ("model", "precision", "batch", "peer", "ms", "p10–p90", "error")
    lines = [
        *head("Other runtimes on the same GPU", text, about),
        *(f"**{summary(rows, name)}**\n" for name in names),
        *table(TITLES, map(cells, rows), range(TEXT, len(TITLES))),
        "",
        "All peers, milliseconds:",
        "",
        *table(peers, _peer_rows(rows), range(4, 7)),
        "",
        *(f"{row.title}: {row.bound}.\n" for row in rows if row.bound is not None),
        *_roof_lines(found),
    ]
    return "\n".join(lines)


def _roof_lines(found: Sequence[Peaks]) -> list[str]:
    if not found:
        return []
    return [
        "The roof is what the backend reaches on this GPU: its fastest copy, and its fastest "
        "product of two 4096×4096 matrices. Bytes are those that the steps of the plan read and "
        "write. A ring is the best peer, with the same bytes. *Of limit*: what the steps take at "
        "least, by the roof and by launches, divided by our time.",
        "",
        *(f"![Roofline, {each.precision}](gpu_roofline_{each.precision}.svg)\n" for each in found),
    ]


def _peer_rows(rows: Sequence[PeerTiming]) -> list[tuple[str, ...]]:
    seen: dict[Key, tuple[Peer, ...]] = {}
    for row in rows:
        seen[row.model, row.precision, row.batch] = row.peers
    return [
        (
            *(model, precision, str(batch), peer.name),
            *(f"{peer.median:.3f}", f"{peer.p10:.3f}–{peer.p90:.3f}"),
            "" if peer.error is None else f"{peer.error:.1e}",
        )
        for (model, precision, batch), peers in seen.items()
        for peer in peers
    ]


def save(
    rows: Sequence[PeerTiming],
    about: Mapping[str, str],
    found: Sequence[Peaks],
    folder: Path,
    name: str = "gpu_peers",
) -> list[Path]:
    """Write JSON, Markdown and the rooflines; return their paths."""
    peaks, results = ([each.to_dict() for each in part] for part in (found, rows))
    texts = {
        f"{name}.json": to_json(about, peaks=peaks, results=results),
        f"{name}.md": markdown(rows, about, found),
        **{f"gpu_roofline_{each.precision}.svg": picture(rows, each) for each in found},
    }
    return write(folder, texts)
