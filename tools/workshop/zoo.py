"""Measure exported networks against PyTorch (eager and torch.compile) on the same GPU.

    python -m tercet.tools.workshop.zoo --output docs/results
    python -m tercet.tools.workshop.zoo timm:resnet50 hf:bert --rows float16:1,float32:1 --jobs 4
    python -m tercet.tools.workshop.zoo --peers docs/results/zoo.json

Each row is a network in a precision and a batch size: the time of the device for a replay of a CUDA
graph with the inputs resident, and the relative L2 distance of the first two results from float64.
Networks are exported and compiled in separate processes, `--jobs` at once; then each is timed
alone, while the others wait. Several GPUs of one kind (`--devices 0,1,2,3`) share the networks,
each with as many jobs. A row is written when it is measured, first without peers: these are made
ready afterwards, and take most of the time. With `--peers` their figures come from an earlier run
on a GPU of the same kind.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ...backends import open_backends
from ...runtime.errors import TercetError, UsageError
from ...runtime.options import Options
from ..common.environment import PACKAGES, device_environment
from ..common.markdown import head, table
from ..common.results import earlier, read_json, saved_by, to_json, write
from .arguments import RESULTS
from .arguments import parser as make_parser
from .exported_networks import NETWORKS
from .zoo_worker import Peers

TITLES = (
    *("network", "precision", "batch", "ms", "best peer", "its ms", "ratio", "error", "its error"),
    *("load", "again"),
)
KERNEL_TITLES = (
    *("network", "precision", "batch", "launches", "copies"),
    "kernels that lose most",
)
#: Kernels of a row that the page shows.
SHOWN = 4
ROWS = ("float16:1", "float16:32", "float32:1")

#: Network, precision, batch.
Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class ZooPeer:
    """PyTorch's time for a row, in milliseconds, and its error."""

    name: str
    ms: float
    error: float


@dataclass(frozen=True, slots=True)
class ZooKernel:
    """A kernel of a row; a movement of data that is no separate kernel has the name of its kind.

    Attributes:
        name: its name, without operators and tile.
        launches: per run.
        ms: milliseconds of all launches in the graph of a run.
        floor_ms: of these, those within the limits; 0 where unknown.
    """

    name: str
    launches: int
    ms: float
    floor_ms: float

    def __str__(self) -> str:
        """Return all of it, such as ``gemv 12x 0.041 ms (62 %)``."""
        share = f" ({self.floor_ms / self.ms:.0%})" if self.ms else ""
        return f"{self.name} {self.launches}x {self.ms:.3f} ms{share}"


@dataclass(frozen=True, slots=True)
class ZooRow:
    """A network in one precision and batch size.

    Attributes:
        network: its name.
        precision: ``float16`` or ``float32``.
        batch: samples.
        ms: milliseconds of tercet on the device.
        error: relative L2 distance from float64.
        load_s: seconds from the file to the first result.
        again_s: the same of a second model of the same file.
        peers: PyTorch's ways.
        kernels: tercet's, longest first.
        copies: launches of these that only move data.
        failed: why there is nothing of the above.
        failures: why a peer is missing, by its name.
    """

    network: str
    precision: str
    batch: int
    ms: float = 0.0
    error: float = 0.0
    load_s: float = 0.0
    again_s: float = 0.0
    peers: tuple[ZooPeer, ...] = ()
    kernels: tuple[ZooKernel, ...] = ()
    copies: int = 0
    failed: str = ""
    failures: Mapping[str, str] | None = None

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> ZooRow:
        """Return the inverse of `asdict`."""
        peers = tuple(ZooPeer(**peer) for peer in entry.get("peers", ()))
        kernels = tuple(ZooKernel(**kernel) for kernel in entry.get("kernels", ()))
        return cls(**{**entry, "peers": peers, "kernels": kernels})

    @property
    def key(self) -> Key:
        """What the row is about."""
        return self.network, self.precision, self.batch

    @property
    def best(self) -> ZooPeer | None:
        """The fastest peer."""
        return min(self.peers, key=lambda peer: peer.ms, default=None)

    @property
    def ratio(self) -> float | None:
        """The best peer's time by tercet's."""
        best = self.best
        return None if best is None or not self.ms else best.ms / self.ms


#: Starts the process of a network on a device.
Start = Callable[[str, str], "subprocess.Popen[str]"]


def starter(rows: Sequence[str], peers: Peers) -> Start:
    """Return a function that starts the process of a network on a device, by CUDA's number."""
    # As many networks are compiled at once as there are jobs.
    few = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"}

    def start(network: str, device: str) -> subprocess.Popen[str]:
        worker = [sys.executable, "-m", "tercet.tools.workshop.zoo_worker", network]
        command = [*worker, ",".join(rows), peers]
        quiet = subprocess.DEVNULL
        environment = few | os.environ | ({"CUDA_VISIBLE_DEVICES": device} if device else {})
        return subprocess.Popen(
            command, stdin=-1, stdout=-1, stderr=quiet, text=True, env=environment
        )

    return start


def measure(
    networks: Sequence[str], jobs: int, start: Start, devices: Sequence[str] = ("",)
) -> Iterator[ZooRow]:
    """Yield the rows of networks, in any order if there are several devices.

    Args:
        networks: their names.
        jobs: how many are prepared at once for a device, which then times them one by one.
        start: starts the process of a network on a device.
        devices: that share the networks; an empty name is the first one.
    """
    waiting, found = SimpleQueue[str](), SimpleQueue[ZooRow | None]()
    for network in networks:
        waiting.put(network)

    def taken() -> list[str]:
        some: list[str] = []
        with suppress(Empty):
            while len(some) < jobs:
                some.append(waiting.get_nowait())
        return some

    def work(device: str) -> None:
        try:
            while some := taken():
                for row in _of_device(some, start, device):
                    found.put(row)
        finally:
            found.put(None)

    with ThreadPoolExecutor(len(devices)) as pool:
        done = [pool.submit(work, device) for device in devices]
        for _ in devices:
            yield from iter(found.get, None)
        for each in done:
            each.result()


def _of_device(networks: Sequence[str], start: Start, device: str) -> Iterator[ZooRow]:
    """Yield the rows of networks, which are prepared at once and timed one by one.

    Without peers, then with them: the second row of a network replaces the first.
    """
    workers = {network: start(network, device) for network in networks}
    while workers:
        for worker in workers.values():
            _tell(worker, "prepare")
        for worker in workers.values():
            list(_said(worker, "ready"))
        for network, worker in list(workers.items()):
            _tell(worker, "time")
            found = [line for line in _said(worker, "more") if line.startswith("{")]
            for line in found:
                yield ZooRow.from_dict({"network": network, **json.loads(line)})
            if worker.poll() is not None or not found:
                del workers[network]
                worker.communicate()
                if worker.returncode or not found:
                    said = f"its process ended with {worker.returncode}"
                    yield ZooRow(network, "", 0, failed=said)


def _tell(worker: subprocess.Popen[str], line: str) -> None:
    """Say a line to a process, which may have ended."""
    assert worker.stdin is not None
    with suppress(OSError):
        worker.stdin.write(f"{line}\n")
        worker.stdin.flush()


def _said(worker: subprocess.Popen[str], last: str) -> Iterator[str]:
    """Yield what a process says before a line; if it ends without that, wait for the end."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.strip() == last:
            return
        yield line
    worker.wait()


def read_peers(file: Path, gpu: str) -> tuple[dict[Key, tuple[ZooPeer, ...]], str]:
    """Return PyTorch's figures from the file of an earlier run, and which run measured them.

    Args:
        file: a ``zoo.json``.
        gpu: the GPU of this run; figures of another one are refused.

    Raises:
        UsageError: it cannot be read, or is of another GPU.
        InputError: it is not the tool's.
    """
    try:
        data = read_json(file)
    except OSError as error:
        raise UsageError(f"--peers {file}: {error.strerror}") from error
    with saved_by("zoo"):
        rows = [ZooRow.from_dict(entry) for entry in data["results"]]
        run = data["environment"]
        measured, own = run["GPU"], f"torch {run['torch']}, {run['date']}, beside {run['tercet']}"
        origin = run.get("peers measured", own)  # it may have them from another file
    if measured != gpu:
        raise UsageError(f"--peers {file}: measured on {measured}; this GPU is {gpu}")
    return {row.key: row.peers for row in rows}, origin


def summary(rows: Sequence[ZooRow]) -> list[str]:
    """Return a line per precision and batch size: the geometric mean, and the slower networks."""
    lines: list[str] = []
    for key in dict.fromkeys((row.precision, row.batch) for row in rows if row.ratio):
        ratios = {r.network: r.ratio for r in rows if (r.precision, r.batch) == key and r.ratio}
        mean = exp(sum(map(log, ratios.values())) / len(ratios))
        behind = sorted((ratio, name) for name, ratio in ratios.items() if ratio < 1)
        text = ", ".join(f"{name} {ratio:.2f}" for ratio, name in behind) or "none"
        title = f"{key[0]}, batch {key[1]}"
        lines.append(f"{title}: geometric mean {mean:.2f} of {len(ratios)}; behind: {text}")
    return lines


def page(rows: Sequence[ZooRow], about: Mapping[str, str]) -> str:
    """Return the page of results."""
    text = (
        "Written by `tools/workshop/zoo.py`. Random weights, exported by torch.onnx (dynamo)\n"
        "without changes. Device time in milliseconds of one replay of a CUDA graph with resident\n"
        "inputs; *error* is the relative L2 distance of the first two results from float64;\n"
        "*ratio* is the time of the best of eager PyTorch (both memory formats) and\n"
        "torch.compile, divided by tercet's; *load* is the time from the file to the first\n"
        "result, kernels compiled, while other processes run; *again* the same of a second model\n"
        "of that file, which finds them compiled."
    )
    numbers = [i for i in range(2, len(TITLES)) if TITLES[i] != "best peer"]
    lines = [
        *head("Exported networks against PyTorch", text, about),
        *(f"- **{line}**" for line in summary(rows)),
        "",
        *table(TITLES, map(_cells, rows), numbers),
        *_kernels(rows),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: ZooRow) -> tuple[str, ...]:
    own = row.network, row.precision, str(row.batch)
    if (best := row.best) is None or row.ratio is None:
        said = row.failed or f"{row.ms:.3f}"
        peer = "" if row.failed else "no peer"
        return (*own, said, peer, *[""] * (len(TITLES) - 5))
    times = f"{row.ms:.3f}", best.name, f"{best.ms:.3f}", f"{row.ratio:.2f}"
    loads = f"{row.load_s:.1f} s", f"{row.again_s:.1f} s"
    return (*own, *times, f"{row.error:.1e}", f"{best.error:.1e}", *loads)


def _kernels(rows: Sequence[ZooRow]) -> list[str]:
    """Return the part of the page about kernels, if they were timed."""
    timed = [row for row in rows if row.kernels]
    text = (
        "Where the time goes: each kernel with its launches, their milliseconds in the graph of a\n"
        "run, and the share of these within its limit (`tercet profile`). Of each row the kernels\n"
        "that lose most are shown. *Copies* are launches that only move data."
    )
    return ["", text, "", *table(KERNEL_TITLES, map(_lost, timed), range(2, 5))] if timed else []


def _lost(row: ZooRow) -> tuple[str, ...]:
    """Return the cells of a row's kernels."""
    worst = sorted(row.kernels, key=lambda kernel: kernel.floor_ms - kernel.ms)[:SHOWN]
    launches = sum(kernel.launches for kernel in row.kernels)
    counts = str(row.batch), str(launches), str(row.copies)
    return (row.network, row.precision, *counts, "; ".join(map(str, worst)))


def _place(row: ZooRow) -> tuple[int, str]:
    """Return the place of a row: in the order of the list, then by name."""
    known = row.network in NETWORKS
    return NETWORKS.index(row.network) if known else len(NETWORKS), "" if known else row.network


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("zoo", __doc__, RESULTS)
    parser.add_argument(
        "networks", nargs="*", help="timm:NAME, tv:NAME, or hf:MODEL_TYPE; default: a list"
    )
    parser.add_argument(
        "--rows", default=",".join(ROWS), help="PRECISION:BATCH, separated by commas"
    )
    parser.add_argument("--jobs", type=int, default=4, help="networks to prepare at once")
    peers = parser.add_mutually_exclusive_group()
    peers.add_argument("--no-compile", action="store_true", help="only eager peers")
    peers.add_argument(
        "--peers", type=Path, metavar="FILE", help="the peers' figures of an earlier run's zoo.json"
    )
    parser.add_argument(
        "--devices", default="", metavar="0,1", help="GPUs of one kind that share the networks"
    )
    chosen = parser.parse_intermixed_args(arguments)
    chosen.rows = chosen.rows.split(",")
    for row in chosen.rows:
        precision, _, batch = row.partition(":")
        if precision not in ("float16", "float32", "bfloat16") or not batch.isdecimal():
            raise UsageError(f"--rows {row!r}; expected PRECISION:BATCH, such as float16:32")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; return the exit code: 1 if a row could not be measured."""
    try:
        chosen = _arguments(arguments)
        device = open_backends("cuda", Options())[0].device
        about = device_environment(device, (*PACKAGES, "torch"), chosen.commit)
        known: Mapping[Key, tuple[ZooPeer, ...]] = {}
        if chosen.peers:
            known, origin = read_peers(chosen.peers, about["GPU"])
            about |= {"peers measured": origin}
    except TercetError as error:
        print(f"zoo: {error}", file=sys.stderr)
        return error.exit_code
    saved = earlier(chosen.output / "zoo.json", about, ZooRow.from_dict)
    rows = {row.key: row for row in saved}
    peers: Peers = "none" if chosen.peers else "eager" if chosen.no_compile else "compile"
    start, names = starter(chosen.rows, peers), chosen.networks or NETWORKS
    for found in measure(names, max(1, chosen.jobs), start, chosen.devices.split(",")):
        row = rows[found.key] = replace(found, peers=known.get(found.key, found.peers))
        ratio = f", ratio {row.ratio:.2f}" if row.ratio else ""
        said = row.failed or f"{row.ms:.4f} ms{ratio}"
        print(f"{row.network}  {row.precision}  {row.batch}  {said}", flush=True)
        shown = sorted(rows.values(), key=_place)
        results = to_json(about, results=[asdict(each) for each in shown])
        write(chosen.output, {"zoo.json": results, "zoo.md": page(shown, about)})
    print(*summary(list(rows.values())), sep="\n")
    return int(any(row.failed for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
