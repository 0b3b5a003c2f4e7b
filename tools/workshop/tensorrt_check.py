"""Run every check of the tensorrt backend, on a GPU that the library supports.

    python -m tercet.tools.workshop.tensorrt_check
    python -m tercet.tools.workshop.tensorrt_check --models FOLDER

Runs the checks of the other backends one after the other, and writes the results to
build/tensorrt/tensorrt.md, which git ignores: the library's licence forbids publishing its speed.
The exit code is 0 if everything passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from ...backends import available
from ...backends.tensorrt.options import MIN_NODES_VARIABLE
from ..common.console import open_console
from ..common.environment import PACKAGES, ROOT, environment
from ..common.markdown import head
from ..common.results import write
from .arguments import parser as make_parser

BACKEND = "tensorrt"
#: Lines of a command's output that are kept.
KEPT = 40


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """One command.

    Attributes:
        title: what it proves.
        arguments: of the Python interpreter.
        settings: variables of its environment.
    """

    title: str
    arguments: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What came of a command: exit code, seconds, and the end of what it printed."""

    part: CheckedPart
    code: int
    seconds: float
    output: str


def parts(models: Path | None, output: Path) -> list[CheckedPart]:
    """Return the commands.

    Args:
        models: folder of real models with inputs and expected outputs, or None.
        output: folder for the tables that they write.
    """
    tool, single = ("-m", "tercet"), {MIN_NODES_VARIABLE: "1"}  # most cases have a single node
    found = [
        CheckedPart("what is installed", (*tool, "doctor", "--require", BACKEND)),
        CheckedPart("the demo", (*tool, "demo", "--backend", BACKEND)),
        CheckedPart("ONNX's own suite", (*tool, "conformance", "--backend", BACKEND), single),
        CheckedPart(
            "operators and models of the tests", ("-m", "pytest", "-q", "-k", BACKEND, "tests")
        ),
        CheckedPart(
            "speed",
            (
                "-m",
                "tercet.tools.workshop.peer_bench",
                "--backend",
                BACKEND,
                "--output",
                str(output),
            ),
        ),
    ]
    if models is not None:
        names = sorted(p.name for p in models.iterdir() if (p / "model.onnx").is_file())
        table = (
            "-m",
            "tercet.tools.workshop.model_table",
            str(models),
            *names,
            "--backend",
            BACKEND,
        )
        found.append(CheckedPart("real models", (*table, "--output", str(output))))
    return found


def run(part: CheckedPart) -> CommandOutcome:
    """Run one command in a separate process."""
    start = perf_counter()
    answer = subprocess.run(
        (sys.executable, *part.arguments),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TERCET_TEST_TENSORRT": "1", **part.settings},
    )
    said = (answer.stdout + answer.stderr).splitlines()[-KEPT:]
    return CommandOutcome(part, answer.returncode, perf_counter() - start, "\n".join(said))


def markdown(outcomes: Sequence[CommandOutcome], commit: str = "") -> str:
    """Return the report as a Markdown page."""
    text = "Written by `python -m tercet.tools.workshop.tensorrt_check`."
    lines = head("TensorRT", text, environment((*PACKAGES, BACKEND), commit))[:-1]
    for each in outcomes:
        settings = [f"{name}={value}" for name, value in each.part.settings.items()]
        command = " ".join(each.part.arguments)
        said = " ".join((*settings, "python", command))
        verdict = "passed" if each.code == 0 else f"exit code {each.code}"
        lines += ["", f"## {each.part.title}: {verdict}, {each.seconds:.0f} s", ""]
        lines += [f"`{said}`", "", "```", each.output, "```"]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, print and save it; return the exit code."""
    parser = make_parser("tensorrt_check", __doc__, ROOT / "build" / "tensorrt")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="folder of real models")
    chosen = parser.parse_args(arguments)
    console = open_console()
    (found,) = [each for each in available() if each.name == BACKEND]
    if not found:
        console.print(f"tensorrt cannot run here: {found.missing}\n{found.remedy}")
        return 5
    outcomes: list[CommandOutcome] = []
    for part in parts(chosen.models, chosen.output):
        console.print(f"{part.title} ...")
        outcomes.append(run(part))
        console.print(f"  exit code {outcomes[-1].code}, {outcomes[-1].seconds:.0f} s")
    (page,) = write(chosen.output, {"tensorrt.md": markdown(outcomes, chosen.commit)})
    console.print(f"written: {page}")
    return int(any(each.code for each in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
