"""The rows of a profile: work, time, and fraction of the roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from ...runtime.ir.types import TensorType
from ...runtime.plan.backend import Detailed
from ...runtime.plan.host import HOST
from ...runtime.plan.partition import obstacle
from ...runtime.plan.rows import Row as PlanRow
from ..common.cost import macs
from .peaks import Peaks
from .row_timing import Probe, ProfileFrame, TimedRun

#: The phases of a run; see `Profile.phases`.
PHASES: tuple[str, ...] = ("feed", "upload", "compute", "download", "fetch", "between")


@dataclass(frozen=True, slots=True)
class ProfiledRow:
    """One operation of a run.

    Attributes:
        number: its index, from 0.
        kind: ``step``, ``copy``, ``reformat``, ``view``; ``host`` for a node outside plans,
            ``control`` for one with bodies, whose rows follow.
        nodes: the file's names of the nodes in it.
        operators: their operators, joined by ``+``.
        backend: the backend.
        device: the device.
        kernel: what runs.
        owner: the control-flow node that contains it; empty at the top level.
        inputs: types of its inputs.
        outputs: types of its outputs.
        weights: types of its constants with at least two axes.
        reads: names of its inputs.
        writes: names of its outputs.
        macs: multiply-accumulates per call; None if unknown.
        nbytes: bytes read and written per call, constants included.
        calls: calls per run.
        seconds: of all its calls in one run; None if it has no time of its own.
        best: the same in its fastest run.
        roof: the minimum time allowed by the machine's peaks as a fraction of `seconds`; None if
            unknown.
        bound: ``compute`` or ``memory``, which determines that minimum.
        details: parts of the step, such as the layers of an engine.
    """

    number: int
    kind: str
    nodes: tuple[str, ...]
    operators: str
    backend: str
    device: str
    kernel: str
    owner: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    macs: int | None
    nbytes: int
    calls: int
    seconds: float | None
    best: float | None
    roof: float | None
    bound: str
    details: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The nodes' names, or what is moved."""
        return " + ".join(self.nodes) or f"{', '.join(self.reads)}: {self.kernel}"

    @property
    def intensity(self) -> float | None:
        """FLOP per byte; None if unknown."""
        return None if self.macs is None or not self.nbytes else 2 * self.macs / self.nbytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything, times in milliseconds, for JSON."""
        found = asdict(self)
        times = {"ms": found.pop("seconds"), "best_ms": found.pop("best")}
        inside = {name: None if s is None else s * 1e3 for name, s in times.items()}
        return {**found, **inside, "intensity": self.intensity}


@dataclass(frozen=True, slots=True)
class Share:
    """A group of rows.

    Attributes:
        name: the group's name.
        rows: number of rows.
        calls: total calls per run.
        macs: per run, as far as known.
        nbytes: per run.
        seconds: per run.
    """

    name: str
    rows: int
    calls: int
    macs: int
    nbytes: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything, the time in milliseconds, for JSON."""
        found = asdict(self)
        ms = found.pop("seconds") * 1e3
        return {**found, "ms": ms}


def shape_key(row: ProfiledRow) -> str:
    """Return operators and shapes; float32, the common case, is omitted."""
    reads, writes = (
        " ".join(type_.removeprefix("float32") for type_ in types)
        for types in ((*row.inputs, *row.weights), row.outputs)
    )
    return f"{row.operators or row.kind} {reads} -> {writes}"


def shares_of(rows: Sequence[ProfiledRow], key: Callable[[ProfiledRow], str]) -> tuple[Share, ...]:
    """Group the timed rows by a key, longest first."""
    groups: dict[str, list[ProfiledRow]] = {}
    for row in rows:
        if row.seconds is not None:
            groups.setdefault(key(row), []).append(row)
    found = [
        Share(
            name,
            len(group),
            sum(row.calls for row in group),
            sum((row.macs or 0) * row.calls for row in group),
            sum(row.nbytes * row.calls for row in group),
            sum(row.seconds or 0.0 for row in group),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda share: -share.seconds))


# ── measured ─────────────────────────────────────────────────────────────────────────────────────


def middle_of(runs: Sequence[TimedRun]) -> list[TimedRun]:
    """Return the half of the runs with medium lengths, shorter ones first."""
    ordered = sorted(runs, key=lambda run: run.length)
    return ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]


@dataclass(slots=True)
class _Time:
    """The times of one row in each run, and its total calls."""

    seconds: list[float]
    calls: int = 0


def _times(runs: Sequence[TimedRun]) -> dict[int, _Time]:
    found: dict[int, _Time] = {}
    for i, run in enumerate(runs):
        for span in run.spans:
            time = found.setdefault(span.key, _Time([0.0] * len(runs)))
            time.seconds[i] += span.seconds
            time.calls += 1
    return found


def phases_of(sites: Sequence[ProfileFrame], runs: Sequence[TimedRun]) -> dict[str, float]:
    """Return the mean seconds of each of `PHASES` per run."""
    kinds = {site.key: _phase(site) for site in sites}
    sums = dict.fromkeys(PHASES, 0.0)
    for run in runs:
        parts = dict.fromkeys(PHASES, 0.0)
        for span in run.spans:
            parts[kinds.get(span.key, "compute")] += span.seconds
        parts["feed"], parts["fetch"] = run.feed, run.fetch
        parts["between"] = max(0.0, run.length - sum(parts.values()))
        for name, seconds in parts.items():
            sums[name] += seconds / len(runs)
    return sums


def _phase(site: ProfileFrame) -> str:
    row = site.row
    if row is None or row.kind != "copy":
        return "compute"
    return "upload" if row.inputs[0].device is HOST else "download"


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def rows_of(
    sites: Sequence[ProfileFrame],
    runs: Sequence[TimedRun],
    probe: Probe,
    peaks: Mapping[str, Peaks],
) -> tuple[ProfiledRow, ...]:
    """Return the rows of a run.

    Args:
        sites: everything that it does, in order.
        runs: the measured runs; row times are means.
        probe: the probe that measured.
        peaks: by device.
    """
    times = _times(runs)
    return tuple(_row(i, site, times, probe, len(runs), peaks) for i, site in enumerate(sites))


def _row(
    number: int,
    site: ProfileFrame,
    times: Mapping[int, _Time],
    probe: Probe,
    runs: int,
    peaks: Mapping[str, Peaks],
) -> ProfiledRow:
    about = _of_node(site, probe) if site.row is None else _of_plan(site.row)
    time = times.get(site.key)
    seconds = None if time is None else mean(time.seconds)
    calls = 0 if time is None else round(time.calls / runs)
    roof, bound = _roof(about, seconds, calls, peaks)
    return ProfiledRow(
        number=number,
        owner=site.owner,
        calls=calls,
        seconds=seconds,
        best=None if time is None else min(time.seconds),
        roof=roof,
        bound=bound,
        **about,
    )


def _of_plan(row: PlanRow) -> dict[str, Any]:
    costs = [macs(node) for node in row.nodes]
    reads = dict.fromkeys(v for node in row.nodes for v in node.distinct_reads)
    constants = [v for v in reads if v.data is not None]
    held = sum(v.tensor.nbytes for v in constants)
    matrices = [v.tensor.without_value() for v in constants if len(v.tensor.dims) > 1]
    moved = 0 if row.kind == "view" else sum(s.nbytes for s in (*row.inputs, *row.outputs)) + held
    return {
        "kind": row.kind,
        "nodes": tuple(name for node in row.nodes for name in node.origin),
        "operators": " + ".join(node.kind for node in row.nodes),
        "backend": row.backend,
        "device": row.device.name,
        "kernel": row.kernel,
        "details": row.step.details if isinstance(row.step, Detailed) else (),
        "inputs": tuple(str(slot.type.without_value()) for slot in row.inputs),
        "outputs": tuple(str(slot.type.without_value()) for slot in row.outputs),
        "weights": tuple(map(str, matrices)),
        "reads": tuple(slot.value.name for slot in row.inputs),
        "writes": tuple(slot.value.name for slot in row.outputs),
        "macs": None if None in costs else sum(cost or 0 for cost in costs),
        "nbytes": moved,
    }


def _of_node(site: ProfileFrame, probe: Probe) -> dict[str, Any]:
    node = site.node
    if node is None:
        raise ValueError("a site is a row or a node")
    control = bool(node.op.graphs())
    reads = [v for v in node.distinct_reads if v.data is None]

    def text(type_: Any) -> str:
        return str(type_.without_value() if isinstance(type_, TensorType) else type_ or "?")

    return {
        "kind": "control" if control else "host",
        "nodes": node.origin,
        "operators": node.kind,
        "backend": "plan" if control else "numpy",
        "device": "cpu",
        "kernel": "bodies" if control else obstacle(node),
        "inputs": tuple(text(v.type) for v in reads),
        "outputs": tuple(text(v.type) for v in node.outputs),
        "weights": (),
        "reads": tuple(v.name for v in reads),
        "writes": tuple(v.name for v in node.outputs),
        "macs": macs(node),
        "nbytes": sum(probe.touched.get(site.key, (0, 0))),
    }


def _roof(
    about: Mapping[str, Any], seconds: float | None, calls: int, peaks: Mapping[str, Peaks]
) -> tuple[float | None, str]:
    """Return the fraction of the roofline that a row achieves, and what bounds it."""
    best = peaks.get(about["device"])
    if best is None or not seconds or about["kind"] == "copy" or about["macs"] is None:
        return None, ""
    flops = 2 * about["macs"]
    minimum = best.seconds(flops, about["nbytes"]) * calls
    bound = "compute" if flops / best.flops > about["nbytes"] / best.copy else "memory"
    return (minimum / seconds, bound) if minimum else (None, "")
