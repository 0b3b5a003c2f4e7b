"""Run the kernels under NVIDIA's compute-sanitizer: invalid accesses, races, and planted bugs.

    python -m tercet.tools.workshop.sanitize                           # make gpu-sanitize
    python -m tercet.tools.workshop.sanitize --output docs/results

``memcheck`` looks for accesses outside allocations, ``racecheck`` for unordered accesses to shared
memory by threads of a block, ``synccheck`` for barriers that not all of their threads reach. All
run every kernel on the samples of ``tests/kernels/samples.py``, the first two also at sizes around
those of warps (0, 1, 31, 32, 33, primes). ``tests/gpu/planted.py`` plants two bugs, a write past
the end of a tensor and a missing barrier, which must be found. Each run is printed and saved when
it ends; one that is cut off shows what was found until then.

The tests of a run are divided among processes, each under its own sanitizer: most of the time
goes into compiling kernels that are not in the cache. One sanitizer for all of them
(``--target-processes all``) has ten connections, and further processes wait for one until it ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from ...backends import open_backends
from ...runtime.base.parallel import usable_cpus
from ...runtime.errors import BackendUnavailable, TercetError
from ...runtime.options import Options
from ..common.console import open_console, progress
from ..common.environment import device_environment
from ..common.markdown import head, table
from ..common.results import to_json, write
from .arguments import parser as make_parser

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = "tests/gpu/test_cuda_samples.py"
#: Where the CUDA toolkit puts it, if it is not on the path.
USUAL = "/usr/local/cuda/bin/compute-sanitizer"
#: Maximum processes by default: each has a CUDA context, of half a gigabyte.
MAX_WORKERS = 16
#: Ports that a sanitizer tries until one is free; each of those that run takes one.
_PORTS = "100"
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu")
_PASSED = re.compile(r"^(?:\d+ \w+, )*(\d+) passed", re.M)
_FAILED = re.compile(r"^(\d+) failed", re.M)
_SUMMARY = re.compile(
    r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+ (?:errors?|hazards?)\b(?! were not printed).*)$",
    re.M,
)
_COUNT = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class SanitizerRun:
    """One run of the sanitizer.

    Attributes:
        tool: ``memcheck``, ``racecheck`` or ``synccheck``.
        what: what it looks at, for the report.
        command: the program, with its arguments.
        planted: whether it must find something.
        parts: into how many its tests may be divided, none of which is empty.
    """

    tool: str
    what: str
    command: tuple[str, ...]
    planted: bool = False
    parts: int = 1


_PLANTED = (sys.executable, "tests/gpu/planted.py")
_KERNELS = (*_PYTEST, SAMPLES, "-k", "test_kernels")
_EDGES = (*_PYTEST, SAMPLES, "-k", "test_edges")
CHECKS = (
    SanitizerRun("memcheck", "every kernel", _KERNELS, parts=100),
    SanitizerRun("memcheck", "sizes around those of warps", _EDGES, parts=7),
    SanitizerRun("memcheck", "a planted access behind the end", (*_PLANTED, "near"), planted=True),
    SanitizerRun("racecheck", "every kernel", _KERNELS, parts=100),
    SanitizerRun("racecheck", "sizes around those of warps", _EDGES, parts=7),
    SanitizerRun("racecheck", "a planted race", (*_PLANTED, "race"), planted=True),
    SanitizerRun("synccheck", "every kernel", _KERNELS, parts=100),
)


def _count(summary: str) -> int:
    """Return the number at the start of a summary of the sanitizer."""
    return int(_COUNT.findall(summary)[0])


@dataclass(frozen=True, slots=True)
class SanitizerFinding:
    """What one run found.

    Attributes:
        check: the run.
        tests: how many tests passed under it.
        failed: how many did not.
        summary: the sanitizer's last line.
        seconds: how long it took.
        first: the first thing that it reported, a few lines; or the last ones of a run that did
            not come to an end.
    """

    check: SanitizerRun
    tests: int
    failed: int
    summary: str
    seconds: float
    first: str

    @property
    def reported(self) -> int:
        """Errors or hazards that the sanitizer counted; -1 where it did not come to an end."""
        return -1 if self.summary.startswith("not finished") else _count(self.summary)

    @property
    def ok(self) -> bool:
        """Whether it is as it must be: nothing is found but what was planted."""
        if self.check.planted:
            return self.reported > 0
        return self.reported == 0 and not self.failed and self.tests > 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the time and the report, for JSON."""
        about = {"tool": self.check.tool, "what": self.check.what, "planted": self.check.planted}
        return {**about, "tests": self.tests, "reported": self.reported, "ok": self.ok}


def sanitizer() -> str:
    """Return the path of compute-sanitizer.

    Raises:
        BackendUnavailable: it is not installed.
    """
    found = shutil.which("compute-sanitizer") or shutil.which(USUAL)
    if found is None:
        raise BackendUnavailable(
            "cuda",
            "compute-sanitizer is not on the path",
            "it is part of the CUDA toolkit (https://developer.nvidia.com/cuda-downloads)",
        )
    return found


def run(program: str, check: SanitizerRun, limit: float, workers: int = 1) -> SanitizerFinding:
    """Run one check.

    Args:
        program: compute-sanitizer.
        check: what to run.
        limit: seconds after which it is ended.
        workers: maximum processes that share its tests.
    """
    start, count = perf_counter(), min(workers, check.parts)
    command = [program, "--tool", check.tool, "--print-limit", "20", "--max-connections", _PORTS]
    with ThreadPoolExecutor(count) as pool:
        texts = list(
            pool.map(
                lambda part: _printed([*command, *check.command], limit, f"{part}/{count}"),
                range(count),
            )
        )
    seconds, text = perf_counter() - start, "\n".join(texts)
    summaries = sorted(_SUMMARY.findall(text), key=_count, reverse=True)  # that of the worst first
    ended = len(summaries) == count and (
        check.planted or all(_PASSED.findall(each) or _FAILED.findall(each) for each in texts)
    )
    return SanitizerFinding(
        check,
        tests=sum(map(int, _PASSED.findall(text))),
        failed=sum(map(int, _FAILED.findall(text))),
        summary=summaries[0] if ended else f"not finished after {seconds:.0f} s",
        seconds=seconds,
        first=_first(text) or ("" if ended else _last(text)),
    )


def _printed(command: Sequence[str], limit: float, part: str) -> str:
    """Return what a command prints about its part of the tests, until it ends or is ended."""
    about: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, "TERCET_TEST_PART": part}}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, **about)
    except subprocess.TimeoutExpired as expired:
        parts = cast("list[bytes | None]", [expired.stdout, expired.stderr])
        return b"".join(printed or b"" for printed in parts).decode(errors="replace")
    return done.stdout + done.stderr


def _first(text: str) -> str:
    """Return the first report of the sanitizer with the frames of this project."""
    lines = [
        line.removeprefix("=========").strip() for line in text.splitlines() if "=====" in line
    ]
    begin = next(
        (i for i, line in enumerate(lines) if re.match(r"Invalid|Error|Race|Program hit", line)),
        None,
    )
    if begin is None:
        return ""
    end = next((i for i in range(begin + 1, len(lines)) if not lines[i]), len(lines))
    report = lines[begin:end]
    foreign = re.compile(r"Host Frame: .*(\.so|python|libc|\[0x)")
    return "\n".join(line for line in report if not foreign.search(line))


def _last(text: str) -> str:
    """Return the last lines of what was printed."""
    return "\n".join(line for line in text.splitlines()[-5:] if line.strip())


_TITLES = ("tool", "over", "tests", "sanitizer", "seconds", "verdict")


def _rows(findings: Sequence[SanitizerFinding]) -> list[list[str]]:
    return [
        [
            finding.check.tool,
            finding.check.what,
            str(finding.tests or "") + (f", {finding.failed} failed" if finding.failed else ""),
            finding.summary,
            f"{finding.seconds:.0f}",
            ("found" if finding.check.planted else "clean") if finding.ok else "WRONG",
        ]
        for finding in findings
    ]


def markdown(findings: Sequence[SanitizerFinding], about: dict[str, str]) -> str:
    """Return the report as a Markdown page."""
    text = (
        "Written by `make gpu-sanitize`. Every kernel runs on the samples of "
        "`tests/kernels/samples.py`, and at sizes around those of warps: 0, 1, 31, 32, 33 and "
        "primes. Two planted bugs must be found."
    )
    lines = [
        *head("Kernels under compute-sanitizer", text, about),
        *table(_TITLES, _rows(findings)),
        "",
    ]
    for finding in findings:
        if finding.first:
            lines += [
                f"{finding.check.tool}, {finding.check.what}:",
                "",
                "```",
                finding.first,
                "```",
                "",
            ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks, print and save each; return 1 where something is wrong."""
    parser = make_parser("sanitize", __doc__)
    tools = tuple(dict.fromkeys(check.tool for check in CHECKS))
    parser.add_argument("--tool", choices=tools, help="run only this one")
    parser.add_argument("--limit", type=float, default=150, help="time limit per run in seconds")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; default: 1")
    parser.add_argument(
        "--workers",
        type=int,
        default=min(MAX_WORKERS, usable_cpus()),
        help=f"processes that share the tests of one run; default: CPUs, at most {MAX_WORKERS}",
    )
    chosen = parser.parse_args(arguments)
    try:
        program = sanitizer()
    except TercetError as error:
        parser.error(str(error))
    about = _about(program, chosen.commit) if chosen.output else {}
    console, findings = open_console(), list[SanitizerFinding]()
    checks = [check for check in CHECKS if chosen.tool in (None, check.tool)]
    for finding in _found(program, checks, chosen):
        findings.append(finding)
        print(*(text for text in _rows([finding])[0] if text), sep="  ", flush=True)
        if finding.first and not (finding.check.planted and finding.ok):
            console.print(finding.first)
        if chosen.output:
            record = to_json(about, results=[each.to_dict() for each in findings])
            page = markdown(findings, about)
            write(chosen.output, {"sanitizer.json": record, "sanitizer.md": page})
    return 0 if all(finding.ok for finding in findings) else 1


def _found(
    program: str, checks: Sequence[SanitizerRun], chosen: Namespace
) -> Iterator[SanitizerFinding]:
    """Yield what the checks find, in their order, some of them at the same time."""
    with ThreadPoolExecutor(chosen.jobs) as pool:
        pending = [
            pool.submit(run, program, check, chosen.limit, chosen.workers) for check in checks
        ]
        for check, future in zip(checks, pending, strict=True):
            with progress() as say:
                say(f"{check.tool}: {check.what}")
                finding = future.result()
            yield finding


def _about(program: str, commit: str) -> dict[str, str]:
    """Return the environment of the page."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    device = open_backends("cuda", Options())[0].device
    packages = ("cuda-core", "nvidia-cuda-nvrtc", "numpy")
    return {
        "compute-sanitizer": (re.findall(r"Version (\S+)", version) or ["?"])[0],
        **device_environment(device, packages, commit),
    }


if __name__ == "__main__":
    raise SystemExit(main())
