"""Measure the table of reliability: what was tested, how often, and the result.

``python -m tercet.tools.workshop.reliability`` measures every row that is possible on this machine,
or those of ``--only``; earlier results of other rows are kept. Most rows are tests that `make test`
runs as well: their figure is the number of tests that passed. R25 needs ``--models``, a folder of
models with inputs (``NAME/model.onnx``, ``NAME/inputs.npz``).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..common.console import open_console
from ..common.environment import ROOT, environment
from ..common.markdown import head, table
from ..common.results import write
from . import reliability_measures as measures
from .arguments import RESULTS
from .arguments import parser as make_parser

#: What is found, and whether that is enough; None where this machine cannot tell.
Found = tuple[str, bool | None]
SOAK_SECONDS = 60.0
MODELS: Path | None = None


@dataclass(frozen=True, slots=True)
class ReliabilityRow:
    """A row of the table.

    Attributes:
        name: such as ``R07``.
        what: what is tried.
        measure: does it.
        command: the same, for people; empty for this tool itself.
        note: what the row does not say, or why it is not passed.
        record: file of docs/results that `measure` reads; it says when and where that was measured.
    """

    name: str
    what: str
    measure: Callable[[], Found]
    command: str = ""
    note: str = ""
    record: str = ""


def suite(name: str, what: str, *arguments: str, note: str = "") -> ReliabilityRow:
    """Return a row whose figure is the number of tests that pass."""
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)

    def measure() -> Found:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        (*_, last) = done.stdout.strip().splitlines() or [done.stderr[-200:]]
        counts = re.findall(r"\d+ (?:passed|failed|skipped|error)", last)
        return ", ".join(counts) or last, done.returncode == 0

    return ReliabilityRow(name, what, measure, " ".join(("python", *_quoted(command))), note)


def _quoted(words: Sequence[str]) -> list[str]:
    return [f"'{word}'" if " " in word else word for word in words]


def _fuzz(bytes_: bool) -> Found:
    """Return what the last campaign found of mutants of one of both sorts."""
    found = _earlier(RESULTS / _CAMPAIGN)
    if not found:
        return "no campaign has been recorded", None
    kinds = {k: v for k, v in found["kinds"].items() if k.startswith("bytes") == bytes_}
    count = sum(sum(ends.values()) for ends in kinds.values())
    broken = [o for o in found["broken"].values() if o["kind"].startswith("bytes") == bytes_]
    said = f"{count:,} mutants, {len(broken)} broke the promise"
    named = found["named"]
    if not bytes_ and named is not None:
        return f"{said}, {named:.1%} of the errors name the place", not broken and named >= 0.95
    return said, not broken


def _conformance() -> Found:
    found = _earlier(RESULTS / _SUITE)
    score = found["score"]
    return f"{score['passed']} of {score['cases']} cases", found["ok"]


def _sanitized() -> Found:
    """Return what the last run of compute-sanitizer found."""
    runs = _earlier(RESULTS / _SANITIZER).get("results", [])
    if not runs:
        return "no run has been recorded; it needs a GPU", None
    own, planted = ([r for r in runs if r["planted"] is p] for p in (False, True))
    tests, found = (sum(run[name] for run in own) for name in ("tests", "reported"))
    tools = " and ".join(dict.fromkeys(run["tool"] for run in own))
    said = f"{tests} tests under {tools}: {found} errors or hazards"
    seen = sum(run["ok"] for run in planted)
    return f"{said}; {seen} of {len(planted)} planted ones found", all(r["ok"] for r in runs)


def _half() -> Found:
    if MODELS is None:
        return "needs a folder of models", None
    return measures.half(MODELS)


def _lies() -> Found:
    """Return what became of every case of ONNX's with every input of every other dtype."""
    counts: Counter[str] = Counter()
    with TemporaryDirectory() as folder:
        told = os.environ | {"TERCET_SAMPLES": "1000", "TERCET_COUNTS": folder}
        command = [sys.executable, "-m", "pytest", *_EVERY_LIE]
        done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, check=False)
        for file in Path(folder).iterdir():
            counts.update(json.loads(file.read_text(encoding="utf-8")))
    said = ", ".join(f"{counts[what]:,} {what}" for what in LIES)
    return f"{counts.total():,} inputs: {said}", done.returncode == 0


#: What becomes of an input of another dtype, as `_LIES` counts it; the first two are right.
LIES = ("computed", "refused", "untyped", "forbidden")
_EVERY_LIE = ("-q", "-p", "no:cacheprovider", "-n", "auto", "tests/spec/test_dtype_lies.py")
_CAMPAIGN, _SUITE, _SANITIZER = "fuzz.json", "conformance_numpy.json", "sanitizer.json"
_FUZZ = (
    "python -m tercet.tools.workshop.fuzz --mutants 40000 --seed 77191 --models FOLDER "
    "--output docs/results"
)
ROWS = (
    ReliabilityRow("R01", "damaged bytes of models", lambda: _fuzz(True), _FUZZ,
                   record=_CAMPAIGN),
    ReliabilityRow("R02", "damaged structure of models", lambda: _fuzz(False), _FUZZ,
                   record=_CAMPAIGN),
    suite("R03", "operators with random attributes, dtypes and shapes against float64, "
          "onnxruntime and onnx.reference", "tests/differential",
          note="TERCET_SAMPLES=600 draws many more; cuda and cudnn: `make gpu-test`"),
    suite("R04", "every operator, every dtype: allowed ones are taken, others refused",
          "tests/spec"),
    ReliabilityRow("R05", "ONNX's own suite on numpy", _conformance,
                   "tercet conformance --backend numpy",
                   "the other seven cannot be passed: docs/conformance.md", _SUITE),
    suite("R06", "known vulnerabilities of the field", "tests/hostile/test_known_weaknesses.py"),
    suite("R07", "external data that lead elsewhere or lie",
          "tests/hostile/test_external_data.py", "tests/hostile/test_files.py",
          "-k", "external or paths"),
    suite("R08", "models that ask for petabytes", "tests/hostile/test_budgets.py"),
    suite("R09", "functions, bodies and types inside one another, and in circles",
          "tests/hostile/test_files.py", "-k", "functions or bodies or types_inside"),
    suite("R10", "work that does not end", "tests/cli/test_deadline.py"),
    suite("R11", "declarations that lie", "tests/hostile/test_declared_types.py",
          "tests/hostile/test_external_data.py", "tests/hostile/test_files.py",
          "-k", "declared or lie or headers or tensors"),
    suite("R12", "shapes that do not fit together", "tests/hostile/test_shape_messages.py",
          "tests/hostile/test_shape_rules.py"),
    suite("R13", "every call that a model makes of a GPU's driver fails once: memory, launches, "
          "the device itself", "tests/kernels/test_injected_faults.py",
          "tests/kernels/test_device_faults.py",
          note="the driver is a fake that computes; a GPU: "
          "`python -m pytest -m gpu tests/gpu/test_cuda_safety.py`"),
    suite("R14", "libraries and drivers that are not there", "tests/cli/test_doctor.py",
          "tests/test_api.py"),
    ReliabilityRow("R15", "compute-sanitizer over every kernel", _sanitized, "make gpu-sanitize",
                   record=_SANITIZER),
    suite("R16", "caches that are damaged, forged, shared, full or gone",
          "tests/hostile/test_cache.py"),
    ReliabilityRow("R17", "the same bits every time", measures.determinism),
    ReliabilityRow("R18", "threads", measures.threads),
    ReliabilityRow("R19", "memory and files that are given back", measures.leaks),
    ReliabilityRow("R20", "hours of random shapes", lambda: measures.soak(SOAK_SECONDS), note=
        "an hour: `--only R20 --soak 3600`"),
    suite("R21", "faults that were planted are found", "tests/faults",
          note="faults in models, kernels and rewrites, found by tercet's own tools"),
    suite("R22", "mistakes of users, and what they are told", "tests/cli/test_errors.py",
          "tests/test_misuse.py"),
    suite("R23", "NaN, infinities, zeros of both signs, no elements, no axes",
          "tests/differential/test_elementwise.py", "tests/differential/test_reduce.py",
          "tests/ops/test_elementwise.py"),
    suite("R24", "the corpus of the harness that follows coverage", "tests/fuzz",
          note="docs/fuzzing.md says how long ones are run"),
    ReliabilityRow("R25", "float16 where float32 is finite", _half,
                   "python -m tercet.tools.workshop.reliability --only R25 --models FOLDER",
                   "how exact it is: docs/results/half_precision.md"),
    ReliabilityRow("R26", "inputs whose dtype is declared to be another", _lies,
                   f"TERCET_SAMPLES=1000 python -m pytest {' '.join(_EVERY_LIE)}"),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure rows and write the table; return 1 if one of those measured is not passed."""
    global SOAK_SECONDS, MODELS
    parser = make_parser("reliability", __doc__, RESULTS)
    parser.add_argument("--only", default="", help="rows, separated by commas; default: all")
    parser.add_argument(
        "--soak", type=float, default=SOAK_SECONDS, help="duration of R20 in seconds"
    )
    parser.add_argument("--models", type=Path, help="folder of models, for R25")
    given = parser.parse_args(arguments)
    SOAK_SECONDS, MODELS = given.soak, given.models
    names = [name for name in given.only.split(",") if name] or [row.name for row in ROWS]
    about = environment(("numpy", "onnx"), given.commit)
    found = _earlier(given.output / "reliability.json")
    console, measured = open_console(), []
    for row in ROWS:
        if row.name in names:
            figure, passed = row.measure()
            where = _earlier(RESULTS / row.record).get("environment") if row.record else None
            result = {"figure": figure, "passed": passed, "environment": where or about}
            found[row.name] = result
            measured.append(passed)
            console.print(f"{row.name} {_word(passed)}: {row.what}: {figure}")
            text = json.dumps(found, indent=1) + "\n"
            write(given.output, {"reliability.json": text, "reliability.md": markdown(found)})
    return int(False in measured)


def _earlier(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _word(passed: bool | None) -> str:
    return {True: "pass", False: "FAIL", None: "open"}[passed]


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table."""
    text = (
        "`python -m tercet.tools.workshop.reliability` measures these rows, each on the machine "
        "and at the\ncommit in its last column. SECURITY.md states what is guaranteed."
    )
    rows: list[tuple[str, ...]] = []
    for row in ROWS:
        result = found.get(row.name, {"figure": "not measured yet", "passed": None})
        own = f"python -m tercet.tools.workshop.reliability --only {row.name}"
        figure = "; ".join(filter(None, (result["figure"], row.note)))
        about = result.get("environment", {})
        when = ", ".join(str(about[key]) for key in ("date", "tercet", "CPU") if key in about)
        cells = (
            row.name,
            row.what,
            figure,
            _word(result["passed"]),
            f"`{row.command or own}`",
            when,
        )
        rows.append(cells)
    titles = ("", "what is tried", "figure", "", "command", "measured")
    return "\n".join([*head("Reliability", text), *table(titles, rows)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
