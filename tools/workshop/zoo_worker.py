"""One network of the zoo: everything is made ready, and timed only when it is this one's turn.

``python -m tercet.tools.workshop.zoo_worker NETWORK ROWS PEERS`` prepares rows after a line of
input, prints a line "ready", waits for a line, and then prints a line of JSON for each row. PEERS
is none, eager or compile: unless it is none, a line "more" follows, and all of this once more, with
peers. Exporting and compiling keep the processors busy for half a minute per row: they run for many
networks at once, while nothing is timed.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeVar, cast

import numpy as np

from ...api import load
from ...runtime.errors import TercetError
from ...runtime.ir.types import Array
from ...runtime.options import Precision
from ...runtime.session.model import Model
from ..common.inputs import Inputs
from ..common.measure import Repeat
from ..profile.device_time import device_times
from ..profile.profile_rows import ProfiledRow
from ..profile.profiling import profile_model
from .exported_networks import build, library

T = TypeVar("T")

#: Which of PyTorch's ways to measure: none, eager in both memory formats, torch.compile as well.
Peers = Literal["none", "eager", "compile"]

#: Replays of a peer's CUDA graph that are timed, and samples of a batch that are compared.
REPLAYS, JUDGED = 100, 2
#: Profiled runs, each a sum of steps that are timed one by one.
PROFILED = 5
#: Operators whose kernels, unless others join them, only move data.
_MOVES = frozenset(
    {
        *("Transpose", "Expand", "Tile", "Concat", "Split", "Slice", "Pad", "DepthToSpace"),
        *("SpaceToDepth", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Gather"),
    }
)


@dataclass(slots=True)
class LoadedNetwork:
    """A network in one precision and batch size, loaded everywhere.

    Attributes:
        precision, batch: which.
        model: tercet's.
        feeds: its inputs.
        error: relative L2 distance of its result from PyTorch's in float64.
        file: exported.
        seconds: from the file to the first result.
        net, inputs: PyTorch's.
        exact: the result of the first samples in float64.
        peers: what replays PyTorch's CUDA graphs, and the error of each, by name.
        failures: why a peer is missing, by name.
    """

    precision: Precision
    batch: int
    model: Model
    feeds: dict[str, Array]
    error: float
    file: Path
    seconds: float
    net: Any
    inputs: Sequence[Any]
    exact: Array
    peers: dict[str, tuple[Callable[[], None], float]] = field(default_factory=dict[str, Any])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def add_peers(self, which: Peers) -> None:
        """Make PyTorch's ways ready."""
        torch = library("torch")
        with torch.inference_mode():
            for name, make in _peers(self.net, self.inputs, self.precision, which):
                try:
                    replay, y = _captured(torch, make())
                    error = _distance(y[:JUDGED].double().cpu().numpy(), self.exact)
                    self.peers[name] = replay, error
                except Exception as error:  # whatever a compiler raises: the row says so
                    self.failures[name] = f"{type(error).__name__}: {error}"[:300]

    def timed_peers(self) -> list[dict[str, Any]]:
        """Return the peers' times in milliseconds, one after the other."""
        return [
            {"name": name, "ms": _replayed(replay), "error": error}
            for name, (replay, error) in self.peers.items()
        ]

    def timed(self) -> dict[str, Any]:
        """Return the row without peers, with times in milliseconds."""
        shapes = {name: data.shape for name, data in self.feeds.items()}
        own = device_times(self.model, self.model.prepare(shapes))
        if own is None:
            raise TercetError("not all of it runs on the device")
        return {
            **{"precision": self.precision, "batch": self.batch, "ms": own.median * 1e3},
            "error": self.error,
            **{"load_s": self.seconds, "again_s": self._again()},
            **_kernels(self.model, self.feeds),
        }

    def _again(self) -> float:
        """Return the seconds from the file to the first result, once its kernels are compiled."""
        begin = perf_counter()
        with load(self.file, "cuda", precision=self.precision) as model:
            model.run(self.feeds)
            return perf_counter() - begin


def prepared(network: str, precision: Precision, batch: int, file: Path) -> LoadedNetwork:
    """Return a row that is ready to be timed, but for peers.

    Args:
        network: see `exported_networks`.
        precision: ``float32`` or ``float16``.
        batch: samples.
        file: to export it to.
    """
    torch = library("torch")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    net, single = build(network)
    inputs = [_repeated(torch, x, batch) for x in single]
    with torch.inference_mode():
        first = [x[:JUDGED].double() if x.is_floating_point() else x[:JUDGED] for x in inputs]
        exact = copy.deepcopy(net).double().cuda()(*[x.cuda() for x in first]).cpu().numpy()
    options = {"dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(net, tuple(inputs), str(file), **options)
    begin = perf_counter()
    model = load(file, "cuda", precision=precision)
    names = [given.name for given in model.inputs]
    feeds = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    result = next(iter(model.run(feeds).values()))
    seconds, error = perf_counter() - begin, _distance(result, exact)
    return LoadedNetwork(precision, batch, model, feeds, error, file, seconds, net, inputs, exact)


def _repeated(torch: Any, x: Any, batch: int) -> Any:
    """Return a batch of inputs like this one, of which there is one."""
    shape = (batch, *x.shape[1:])
    if x.is_floating_point():
        return torch.randn(*shape)
    return (
        torch.randint(0, int(x.max()) + 1, shape) if int(x.max()) > 1 else x.expand(shape).clone()
    )


def _peers(
    net: Any, inputs: Sequence[Any], precision: Precision, peers: Peers
) -> Iterator[tuple[str, Callable[[], Callable[[], Any]]]]:
    """Yield what else runs a network: a name, and a function that makes a call of it."""
    if peers == "none":
        return
    torch = library("torch")
    dtype = getattr(torch, precision)
    own = copy.deepcopy(net).to("cuda", dtype)
    fed = [x.cuda().to(dtype) if x.is_floating_point() else x.cuda() for x in inputs]
    images = any(x.dim() == 4 for x in fed)

    def laid(form: Any) -> tuple[Any, list[Any]]:
        there = copy.deepcopy(own).to(memory_format=form) if images else own
        return there, [x.contiguous(memory_format=form) if x.dim() == 4 else x for x in fed]

    def eager(form: Any) -> Callable[[], Any]:
        there, x = laid(form)
        return lambda: there(*x)

    def optimised() -> Callable[[], Any]:
        inductor = library("torch._inductor.config")
        inductor.freezing = True
        library("torch._dynamo").reset()
        there, x = laid(torch.channels_last if images else torch.contiguous_format)
        made = torch.compile(there)
        made(*x)
        return lambda: made(*x)

    yield "eager", lambda: eager(torch.contiguous_format)
    if images:
        yield "eager, channels last", lambda: eager(torch.channels_last)
    if peers == "compile":
        yield "torch.compile", optimised


def _captured(torch: Any, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Return a function that replays a call as a CUDA graph, and what it gives.

    What the call reads lives as long as what replays it.
    """
    torch.cuda.synchronize()  # what the call reads is copied on another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(4):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()

    def replay(_alive: object = call) -> None:
        graph.replay()

    replay()
    torch.cuda.synchronize()
    return replay, y


def _kernels(model: Model, feeds: dict[str, Array]) -> dict[str, Any]:
    """Return each kernel's launches, milliseconds and least milliseconds, and launches that copy.

    Steps are timed within the graph of a run.
    """
    found = profile_model(model, Inputs(feeds, dict.fromkeys(feeds, "")), "", Repeat(PROFILED))
    steps = [row for row in found.rows if row.kind != "copy"]
    kernels = [
        {
            **{"name": share.name, "launches": share.calls, "ms": share.seconds * 1e3},
            "floor_ms": share.limit * 1e3,
        }
        for share in sorted(found.by_kernel(), key=lambda share: -share.seconds)
        if share.name != "copy"
    ]
    return {"kernels": kernels, "copies": sum(row.calls for row in steps if _copies(row))}


def _copies(row: ProfiledRow) -> bool:
    """Whether a kernel only moves data: into another format, or for operators that do no more."""
    if row.kind == "reformat":
        return True
    return row.kind == "step" and _MOVES.issuperset(row.operators.split(" + "))


def _replayed(replay: Callable[[], None]) -> float:
    """Return the milliseconds of a replay, the median of many."""
    torch = library("torch")
    for _ in range(10):
        replay()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


def _distance(found: Any, exact: Array) -> float:
    """Return the relative L2 distance of the first samples from the exact ones."""
    y = np.asarray(found, np.float64)[: len(exact)]
    return float(np.linalg.norm(y - exact) / max(float(np.linalg.norm(exact)), 1e-300))


def main(arguments: Sequence[str] | None = None) -> int:
    """Make rows ready, wait, time them, twice if there are peers; return the exit code."""
    network, specs, which = arguments or sys.argv[1:]
    rows: list[tuple[dict[str, Any], LoadedNetwork | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        sys.stdin.readline()
        for spec in specs.split(","):
            precision, _, batch = spec.partition(":")
            about = {"precision": precision, "batch": int(batch)}
            kind, file = cast("Precision", precision), Path(folder) / f"{len(rows)}.onnx"
            made = _tried(about, partial(prepared, network, kind, int(batch), file))
            rows.append((about, made) if isinstance(made, LoadedNetwork) else (made, None))
        _take_turn()
        timed: list[tuple[dict[str, Any], LoadedNetwork]] = []
        for about, loaded in rows:
            row = about if loaded is None else _tried(about, loaded.timed)
            print(json.dumps(row), flush=True)
            if loaded is not None and "failed" not in row:
                timed.append((row, loaded))
        if which == "none" or not timed:
            return 0
        print("more", flush=True)
        sys.stdin.readline()
        for row, loaded in timed:
            row |= _tried(row, partial(loaded.add_peers, cast("Peers", which))) or {}
        _take_turn()
        for row, loaded in timed:
            found = _tried(row, loaded.timed_peers)
            row |= {"peers": found} if isinstance(found, list) else found
            print(json.dumps({**row, "failures": loaded.failures}), flush=True)
    return 0


def _take_turn() -> None:
    """Say that all is ready, and wait until nothing else is timed."""
    print("ready", flush=True)
    sys.stdin.readline()


def _tried(about: Mapping[str, Any], step: Callable[[], T]) -> T | dict[str, Any]:
    """Return what a step gives; what cannot be built or run is a row that says why."""
    try:
        return step()
    except Exception as error:  # of an exporter, a compiler or a GPU: the other rows are measured
        said = re.sub(r"\x1b\[[\d;]*m", "", f"{type(error).__name__}: {error}")  # without colours
        return {**about, "failed": " ".join(said.split())[:300]}


if __name__ == "__main__":
    raise SystemExit(main())
