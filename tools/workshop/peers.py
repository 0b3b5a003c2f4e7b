"""Times of other runtimes: which of them a backend is compared with, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ...runtime.errors import UsageError
from ...runtime.ir.graph import Node
from ...runtime.ir.types import Array
from ...runtime.ops.conv import Conv
from ...runtime.options import Precision
from ...runtime.session.model import Model
from ..common.measure import Spread
from ..profile.row_timing import Probe

PRECISIONS: dict[str, Precision] = {"fp32": "float32", "fp16": "float16"}
#: How the names of those peers begin that a backend is held against; all of them where none is
#: named. cuDNN is what onnxruntime's CUDA provider calls, too, so it measures what tercet adds.
RIVALS: Mapping[str, str] = {"cudnn": "ort-"}
#: What a plan may take by what cuDNN's own graphs take for its convolutions.
MARGIN = 1.05
#: Runs row by row, of which the medians count.
RUNS = 9

Key = tuple[str, Precision, int]


@dataclass(frozen=True, slots=True)
class Peer:
    """What another runtime needs for the same work; times in milliseconds."""

    name: str
    median: float
    p10: float
    p90: float
    error: float | None


@dataclass(frozen=True, slots=True)
class PeerBound:
    """What a plan may take: cuDNN's own graphs for its convolutions, and its rows for the rest.

    Attributes:
        convolutions: milliseconds of all convolutions as fused cuDNN graphs, each by its fastest
            engine, in one CUDA graph.
        rest: milliseconds of the plan's other rows, one by one.
    """

    convolutions: float
    rest: float

    @property
    def limit(self) -> float:
        """Milliseconds that the plan may take."""
        return MARGIN * self.convolutions + self.rest

    def __str__(self) -> str:
        return (
            f"it may take {self.limit:.3f} ms, which are {MARGIN} times the "
            f"{self.convolutions:.3f} ms of its convolutions as cuDNN graphs, each by its fastest "
            f"engine, in one CUDA graph, and {self.rest:.3f} ms of its other rows, one by one"
        )


def read_peers(path: Path) -> dict[Key, tuple[Peer, ...]]:
    """Return what a file says about other runtimes, the fastest of each row first.

    Raises:
        UsageError: it cannot be read, or an entry lacks something.
    """
    found: dict[Key, list[Peer]] = {}
    try:
        for entry in json.loads(path.read_text(encoding="utf-8")):
            if entry["precision"] not in PRECISIONS:
                continue
            key = entry["model"], PRECISIONS[entry["precision"]], int(entry["batch"])
            middle, low, high = (float(entry[name]) for name in ("ms", "p10", "p90"))
            peer = Peer(entry["peer"], middle, low, high, entry.get("rel_err"))
            found.setdefault(key, []).append(peer)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: no list of peers' figures: {error!r}") from error
    return {key: tuple(sorted(peers, key=lambda p: p.median)) for key, peers in found.items()}


def rivals(backend: str, peers: Sequence[Peer]) -> tuple[Peer, ...]:
    """Return the peers that a backend is compared with, in their order."""
    return tuple(peer for peer in peers if peer.name.startswith(RIVALS.get(backend, "")))


def verdict(ours: Spread, peers: Sequence[Peer], bound: PeerBound | None) -> str:
    """Return in words whether a row keeps up.

    It does where its 10th percentile is not above the best peer's 90th: two that are as fast differ
    by so much from one measurement to the next.

    Args:
        ours: what was measured.
        peers: the runtimes to compare with, the fastest first.
        bound: what cuDNN's own graphs need, where that is known.
    """
    said: list[str] = []
    if peers:
        best = peers[0]
        keeps_up = ours.p10 <= best.p90
        said.append("ok" if keeps_up else f"{ours.median / best.median - 1:.1%} slower")
    if bound is not None:
        over = ours.median / bound.limit - 1
        said.append("within the bound" if over <= 0 else f"{over:.1%} over the bound")
    return ", ".join(said)


# ── what cuDNN's own graphs need ─────────────────────────────────────────────────────────────────


def read_bounds(path: Path) -> dict[int, float]:
    """Return milliseconds by batch of ResNet-50's convolutions in float16 as cuDNN graphs.

    Args:
        path: a JSON object such as ``{"1": 0.525, "32": 1.32}``.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {int(batch): float(ms) for batch, ms in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: no object of milliseconds by batch: {error!r}") from error


def rest_of(model: Model, feeds: Mapping[str, Array]) -> float:
    """Return the milliseconds of a plan's rows that are not convolutions, each run alone."""
    probe = Probe(model)
    try:
        rows = probe.program(feeds).rows
        ours = {id(row) for row in rows if row.kind != "copy" and not _convolves(row.nodes)}
        probe.run(feeds)
        sums = [
            sum(span.seconds for span in probe.run(feeds).spans if span.key in ours)
            for _ in range(RUNS)
        ]
    finally:
        probe.close()
    return 1e3 * median(sums)


def _convolves(nodes: Sequence[Node]) -> bool:
    return any(isinstance(node.op, Conv) for node in nodes)
