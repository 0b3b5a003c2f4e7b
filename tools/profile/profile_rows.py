"""The rows of a profile: work, time, and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

from ...runtime.ir.types import TensorType
from ...runtime.plan.backend import Detailed
from ...runtime.plan.host import HOST
from ...runtime.plan.partition import obstacle
from ...runtime.plan.rows import Row as PlanRow
from ...runtime.plan.work import Work, macs_by_dtype, work_of
from ..common.roofline import Limit
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
        factors: dtypes of their factors.
        nbytes: bytes to read and to write per call, constants included.
        launches: kernels per call.
        calls: calls per run.
        seconds: of all its calls in one run; None if it has no separate time.
        best: the same in its fastest run.
        in_graph: seconds by which the graph of a whole run takes longer with the row than with
            those before it alone; None if there is no such graph.
        limit: the seconds that the machine's peaks allow at least for them; None if unknown.
        bound: what determines that limit: ``compute``, ``memory``, ``launch``, or ``link`` for
            copies from and to the host.
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
    factors: tuple[str, ...]
    nbytes: int
    launches: int
    calls: int
    seconds: float | None
    best: float | None
    in_graph: float | None
    limit: float | None
    bound: str
    details: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The nodes' names, or what is moved."""
        return " + ".join(self.nodes) or f"{', '.join(self.reads)}: {self.kernel}"

    @property
    def roof(self) -> float | None:
        """The limit as a fraction of `taken`; None if unknown."""
        return self.limit / self.taken if self.limit and self.taken else None

    @property
    def taken(self) -> float | None:
        """Its seconds in the graph, alone without one; None if it has no separate time."""
        return self.seconds if self.in_graph is None else self.in_graph

    @property
    def intensity(self) -> float | None:
        """FLOP per byte; None if unknown."""
        return None if self.macs is None or not self.nbytes else 2 * self.macs / self.nbytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything, times in milliseconds, for JSON."""
        found = asdict(self)
        times = {"ms": "seconds", "best_ms": "best", "in_graph_ms": "in_graph", "limit_ms": "limit"}
        inside = {
            name: None if (seconds := found.pop(key)) is None else seconds * 1e3
            for name, key in times.items()
        }
        return {**found, **inside, "roof": self.roof, "intensity": self.intensity}


def shape_key(row: ProfiledRow) -> str:
    """Return operators and shapes; float32, the common case, is omitted."""
    reads, writes = (
        " ".join(type_.removeprefix("float32") for type_ in types)
        for types in ((*row.inputs, *row.weights), row.outputs)
    )
    return f"{row.operators or row.kind} {reads} -> {writes}"


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
    in_graph: Mapping[RowKey, float],
) -> tuple[ProfiledRow, ...]:
    """Return the rows of a run.

    Args:
        sites: everything that it does, in order.
        runs: the measured runs; row times are means.
        probe: the probe that measured.
        peaks: by device.
        in_graph: see `ProfiledRow`, by `key_of` a row.
    """
    times = _times(runs)
    rows = (_row(i, site, times, probe, len(runs), peaks) for i, site in enumerate(sites))
    keys = (None if site.row is None else key_of(site.row) for site in sites)
    return tuple(
        row if key is None else replace(row, in_graph=in_graph.get(key))
        for row, key in zip(rows, keys, strict=True)
    )


#: What a row is called in every plan of a model.
RowKey = tuple[str, str, tuple[str, ...]]


def key_of(row: PlanRow) -> RowKey:
    """Return what identifies a row in every plan for the same shapes."""
    return row.kind, row.title, tuple(slot.format.value for slot in row.outputs)


def _row(
    number: int,
    site: ProfileFrame,
    times: Mapping[int, _Time],
    probe: Probe,
    runs: int,
    peaks: Mapping[str, Peaks],
) -> ProfiledRow:
    about, work = _of_node(site, probe) if site.row is None else _of_plan(site.row)
    time = times.get(site.key)
    seconds = None if time is None else mean(time.seconds)
    calls = 0 if time is None else round(time.calls / runs)
    limit = None if seconds is None else _limit(site.row, work, peaks.get(about["device"]))
    return ProfiledRow(
        number=number,
        owner=site.owner,
        calls=calls,
        seconds=seconds,
        best=None if time is None else min(time.seconds),
        in_graph=None,
        limit=None if limit is None else limit.seconds * calls,
        bound="" if limit is None else limit.bound,
        macs=work.total_macs,
        factors=tuple(work.macs or ()),
        nbytes=work.nbytes,
        launches=work.launches,
        **about,
    )


def _of_plan(row: PlanRow) -> tuple[dict[str, Any], Work]:
    reads = dict.fromkeys(v for node in row.nodes for v in node.distinct_reads)
    constants = [v for v in reads if v.data is not None]
    matrices = [v.tensor.without_value() for v in constants if len(v.tensor.dims) > 1]
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
    }, work_of(row)


def _of_node(site: ProfileFrame, probe: Probe) -> tuple[dict[str, Any], Work]:
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
    }, Work(macs_by_dtype((node,)), sum(probe.touched.get(site.key, (0, 0))), 0)


def _limit(row: PlanRow | None, work: Work, best: Peaks | None) -> Limit | None:
    """Return the limit of one call of a row, or of a node without one."""
    if best is None:
        return None
    if row is None or row.kind != "copy":
        return best.rates.limit(work)
    link = best.upload if row.inputs[0].device is HOST else best.download
    return Limit(row.outputs[0].nbytes / link, "link") if link else None
