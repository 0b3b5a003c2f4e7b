"""Measured tables about kernels, for those who teach or write them.

    python -m tercet.tools.workshop.studies                            # all of them, on a GPU
    python -m tercet.tools.workshop.studies ladder fft --output docs/results
    python -m tercet.tools.workshop.studies --list

``docs/results/studies.md`` has the latest results, with date, versions and GPU. Some of the studies
are written to a separate page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

from rich.console import Console

from ...runtime.errors import TercetError, UsageError, did_you_mean
from ..common.console import Say, open_console, print_table, progress
from ..common.environment import device_environment
from ..common.results import write
from .arguments import parser as make_parser
from .studies_attention import attention
from .studies_convolution import algorithms, fft, sweep, winograd
from .studies_lab import Lab
from .studies_layouts import folding, layouts, padding
from .studies_mobilenet import mobilenet
from .studies_networks import branches, chains, kernels, pooling, transfers, vgg
from .studies_products import ladder, regret
from .studies_report import Study, StudyReport, markdown, picture
from .studies_sums import sums

#: In the order of the report.
STUDIES: Mapping[str, Callable[[Lab], Study]] = {
    study.__name__: study
    for study in (
        *(ladder, algorithms, winograd, fft, sweep),
        *(layouts, padding, folding),
        *(chains, pooling, branches, transfers, vgg, mobilenet, sums, attention, kernels, regret),
    )
}
_PACKAGES = ("numpy", "onnx", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "torch")


def run(names: Sequence[str], say: Say, commit: str = "") -> StudyReport:
    """Run studies; one that fails leaves its reason in the report.

    Args:
        names: of `STUDIES`; all where empty.
        say: called with a description of each stage.
        commit: the commit to record if there is no git checkout.

    Raises:
        UsageError: there is no such study.
        BackendUnavailable: there is no GPU.
    """
    for name in names:
        if name not in STUDIES:
            hint = did_you_mean(name, list(STUDIES))
            raise UsageError(f"there is no study '{name}'{hint}; there are {', '.join(STUDIES)}")
    lab = Lab(say)
    report = StudyReport(device_environment(lab.device, _PACKAGES, commit))
    for name in names or STUDIES:
        begin = perf_counter()
        try:
            report.studies.append(STUDIES[name](lab))
        except TercetError as error:
            report.failed[name] = str(error)
        report.seconds[name] = perf_counter() - begin
    return report


def show(console: Console, report: StudyReport) -> None:
    """Print every table and its findings."""
    for study in report.studies:
        console.print()
        console.print(f"{study.name}, {report.seconds[study.name]:.1f} s", style="bold")
        for table in study.tables:
            console.print()
            console.print(f"{table.title}")
            print_table(console, [column.title for column in table.columns], table.cells())
        for finding in study.findings:
            console.print(f"- {finding}")
    for name, reason in report.failed.items():
        console.print()
        console.print(f"{name} failed: {reason}")


def save(report: StudyReport, folder: Path) -> list[Path]:
    """Write JSON, Markdown and the images; return their paths.

    Some of the studies do not take the place of all: ``studies_attention.md``.
    """
    name = "_".join(("studies", *(report.seconds if len(report.seconds) < len(STUDIES) else ())))
    texts = {
        f"{name}.json": json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n",
        f"{name}.md": markdown(report),
        **{f"studies_{c.name}.svg": picture(c) for study in report.studies for c in study.curves},
    }
    return write(folder, texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write if asked; return the exit code."""
    parser = make_parser("studies", __doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(STUDIES)}")
    parser.add_argument("--list", action="store_true", help="list the studies and exit")
    chosen = parser.parse_args(arguments)
    console = open_console()
    if chosen.list:
        rows = [(name, (study.__doc__ or "").partition("\n")[0]) for name, study in STUDIES.items()]
        print_table(console, ("study", "what it does"), rows, left=2)
        return 0
    try:
        with progress() as say:
            report = run(chosen.names, say, chosen.commit)
    except TercetError as error:
        open_console(stderr=True).print(f"studies: {error}")
        return error.exit_code
    show(console, report)
    if chosen.output:
        for path in save(report, chosen.output):
            console.print(f"written: {path}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
