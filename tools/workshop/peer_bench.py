r"""Measure well-known networks against other runtimes on the same GPU.

    python -m tercet.tools.workshop.peer_bench --peers gpu_peers.json --output docs/results
    python -m tercet.tools.workshop.peer_bench --backend cudnn --peers gpu_peers.json \\
        --probe probe.json
    python -m tercet.tools.workshop.peer_bench vgg16 --precision float16 --batch 32 \\
        --peers gpu_peers.json

Each row is a model, a precision and a batch size: the device time of a replay of the plan's CUDA
graph with resident inputs, and the distance of the first two results from float64. Each row is
printed and written as soon as it is measured; rows of earlier calls stay in the files if they are
of the same commit and GPU, so a table can be made in parts.

The peers' times come from a file written by the script that measured them on this machine: a list
of objects with model, precision (fp16, fp32), batch, peer, ms, p10, p90 and rel_err. The cudnn
backend is compared with onnxruntime only, and its ResNet-50 in float16 with the time of cuDNN's own
graphs for the 53 convolutions, if ``--probe`` names a file with these times by batch size.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from ...api import load
from ...backends import open_backends
from ...runtime.control.program import Program
from ...runtime.errors import TercetError, UsageError
from ...runtime.ir.types import Array
from ...runtime.options import Options, Precision
from ...runtime.plan.backend import Backend
from ...runtime.plan.work import work_of
from ...runtime.session.model import Model
from ..common.console import Say, open_console, print_table, progress
from ..common.environment import PACKAGES, device_environment
from ..common.results import earlier
from ..common.roofline import Rates
from ..profile.device_time import device_times
from ..profile.peaks import Peaks, peaks_of
from ..verdict.accuracy import distance, exact_outputs
from .arguments import RESULTS
from .arguments import parser as make_parser
from .bench_models import bench_inputs, bench_model
from .peer_page import MODELS, TEXT, TITLES, PeerTiming, cells, save, summary
from .peers import PRECISIONS, Key, Peer, PeerBound, read_bounds, read_peers, rest_of, rivals

#: Sizes of a batch.
BATCHES = (1, 32)
#: The model and the precision that `read_bounds` refers to.
PROBED = "resnet50", "float16"
#: Images of a batch whose results are compared with float64.
JUDGED = 2


def measure(
    names: Sequence[str],
    backends: Sequence[str],
    peers: Mapping[Key, tuple[Peer, ...]],
    say: Say,
    *,
    precisions: Sequence[Precision] = tuple(PRECISIONS.values()),
    batches: Sequence[int] = BATCHES,
    tune: bool = False,
    probe: Mapping[int, float] | None = None,
    peaks: Sequence[Peaks] = (),
) -> Iterable[PeerTiming]:
    """Yield the rows of some models, in every precision and batch size.

    Args:
        names: of the models.
        backends: who runs them.
        peers: figures of others.
        say: called with progress messages.
        precisions: of the models.
        batches: images or sentences.
        tune: whether to measure the ways to run each node, and take the fastest.
        probe: what cuDNN's own graphs need for ResNet-50's convolutions in float16, by batch.
        peaks: of the backends.
    """
    rates = {(each.backend, each.precision): each.rates for each in peaks}
    for name in names:
        source = bench_model(MODELS.get(name, name))
        say(f"{name}: float64")
        judged = bench_inputs(source, batch=JUDGED)
        exact = exact_outputs(source, judged)
        for precision, backend, batch in product(precisions, backends, batches):
            say(f"{name}: {precision}, batch {batch}, {backend}")
            feeds = _repeated(judged, batch)
            with load(source, backend, precision=precision, tune=tune) as model:
                error = distance(_first(model.run(feeds)), _first(exact, batch))
                known = rivals(backend, peers.get((name, precision, batch), ()))
                shapes = {x: data.shape for x, data in feeds.items()}
                plan = _resident(model, feeds, shapes)
                best = rates.get((backend, precision))
                row = _row((name, precision, batch), backend, model, plan, error, known, best)
                if probe and batch in probe and (name, precision) == PROBED:
                    row = replace(row, bound=PeerBound(probe[batch], rest_of(model, feeds)))
                yield row


def _resident(
    model: Model, feeds: Mapping[str, Array], shapes: Mapping[str, Sequence[int]]
) -> Program:
    """Return the program of inputs that are on the device, after a run.

    That of inputs on the host may need a graph for each, as they share memory with what was
    computed before.
    """
    with model.bind(shapes) as bound:
        bound.run(feeds)
    return model.prepare(shapes, to="device")


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
    rates: Rates | None,
) -> PeerTiming:
    timing = device_times(model, plan)
    if timing is None:
        raise UsageError(f"{key[0]}: {backend} does not run all of it on the device")
    works = [work_of(row) for row in plan.rows if row.kind != "copy"]
    limits = [None if rates is None else rates.limit(work) for work in works]
    return PeerTiming(
        *key,
        backend=backend,
        device=timing.spread,
        error=error,
        steps=sum(row.kind == "step" for row in plan.rows),
        flops=2 * sum(work.total_macs or 0 for work in works),
        nbytes=sum(work.nbytes for work in works),
        limit=None if None in limits else 1e3 * sum(each.seconds for each in limits if each),
        peers=peers,
    )


def _peaks(chain: Sequence[Backend], say: Say) -> list[Peaks]:
    return [peaks_of(chain, Options(precision=p), say) for p in PRECISIONS.values()]


def _name(backends: Sequence[str], tune: bool) -> str:
    """Return how the files are called: ``gpu_peers`` for cuda, ``gpu_peers_cudnn_tuned``."""
    other = [] if list(backends) == ["cuda"] else list(backends)
    return "_".join(["gpu_peers", *other, *(["tuned"] if tune else [])])


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("peer_bench", __doc__, RESULTS)
    kept = tuple(PRECISIONS.values())
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--backend", action="append", help="repeatable; default: cuda")
    parser.add_argument(
        "--precision", action="append", choices=kept, help="repeatable; default: both"
    )
    parser.add_argument("--batch", action="append", type=int, help="repeatable; default: 1 and 32")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="figures of other runtimes")
    parser.add_argument("--probe", type=Path, metavar="FILE", help="figures of cuDNN's own graphs")
    parser.add_argument(
        "--tune", action="store_true", help="measure the algorithms and use the fastest"
    )
    chosen = parser.parse_intermixed_args(arguments)
    chosen.backend = chosen.backend or ["cuda"]
    chosen.precision, chosen.batch = chosen.precision or list(kept), chosen.batch or list(BATCHES)
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; return the exit code."""
    chosen = _arguments(arguments)
    backends, folder, name = chosen.backend, chosen.output, _name(chosen.backend, chosen.tune)
    console, written = open_console(), list[Path]()
    try:
        peers = read_peers(chosen.peers) if chosen.peers else {}
        probe = read_bounds(chosen.probe) if chosen.probe else {}
        chain = open_backends(backends[0], Options())
        about = device_environment(chain[0].device, PACKAGES, chosen.commit)
        about["ways"] = "measured (tune)" if chosen.tune else "estimated"
        file = folder / f"{name}.json"
        rows = {row.place: row for row in earlier(file, about, PeerTiming.from_dict)}
        found = earlier(file, about, Peaks.from_dict, "peaks")
        with progress() as say:
            if backends == ["cuda"] and not found:
                found = _peaks(chain, say)
            for row in measure(
                chosen.models,
                backends,
                peers,
                say,
                precisions=chosen.precision,
                batches=chosen.batch,
                tune=chosen.tune,
                probe=probe,
                peaks=found,
            ):
                rows[row.place] = row
                print(*cells(row), sep="  ", flush=True)
                written = save([rows[place] for place in sorted(rows)], about, found, folder, name)
    except TercetError as error:
        console.print(f"peer_bench: {error}")
        return error.exit_code
    print_table(console, TITLES, (cells(rows[place]) for place in sorted(rows)), left=TEXT)
    for backend in backends:
        console.print(summary(list(rows.values()), backend))
    for path in written:
        console.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
