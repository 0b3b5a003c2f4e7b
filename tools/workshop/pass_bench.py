"""What each graph pass is worth on whole networks: steps and time without it.

    python -m tercet.tools.workshop.pass_bench
    python -m tercet.tools.workshop.pass_bench resnet50 -b cuda --output docs/results

Models get seeded random weights (see `bench_models`) and a batch of one. All variants of a model
run in turn in one process, so that changes of the machine's speed affect all of them; a busy
machine widens the ranges from p10 to p90.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...runtime.errors import did_you_mean
from ..bench.bench import bench
from ..bench.bench_cases import BenchCase
from ..common.console import open_console, progress
from ..common.markdown import head, table
from ..common.measure import Timing
from ..common.results import to_json, write
from .arguments import parser as make_parser
from .bench_models import NAMES, bench_inputs, bench_model

#: Networks with batch-norms, with branches, and with attention.
DEFAULT = ("resnet50", "inception_v2", "shufflenet", "bert_small")


def time_of(case: BenchCase) -> Timing:
    """Return the device's own time if it was measured, else that from arrays to arrays."""
    return case.device or case.steady


def word(whole: BenchCase, without: BenchCase) -> str:
    """Return the effect of a pass; the ranges from p10 to p90 must not overlap for one."""
    before, after = time_of(whole), time_of(without)
    if after.quantile(0.1) > before.quantile(0.9):
        return "faster"
    return "slower" if after.quantile(0.9) < before.quantile(0.1) else "within the spread"


def table_of(cases: Sequence[BenchCase]) -> list[str]:
    """Return the lines of a model's table, the most valuable pass first."""
    whole, *others = cases
    base = time_of(whole).median
    times = "p10 ms", "p50 ms", "p90 ms"
    titles = ("", "steps", *times, "by all passes", "the pass makes it", "error")
    rows: list[list[str]] = []
    for case in (whole, *sorted(others, key=lambda one: -time_of(one).median)):
        timing = time_of(case)
        rows.append(
            [
                f"without {case.without}" if case.without else "all passes",
                str(case.steps),
                *(f"{1e3 * timing.quantile(q):.2f}" for q in (0.1, 0.5, 0.9)),
                f"{timing.median / base:.2f}",
                word(whole, case) if case.without else "",
                "" if case.error is None else f"{case.error:.0e}",
            ]
        )
    return table(titles, rows, (*range(1, 6), 7))


def page(found: Mapping[str, Sequence[BenchCase]], about: Mapping[str, str], backend: str) -> str:
    """Return the results as a Markdown page."""
    text = (
        f"Written by `python -m tercet.tools.workshop.pass_bench -b {backend} --output "
        "docs/results`; `tercet bench model.onnx --passes` measures your own model. Batch size 1, "
        "float32, seeded random weights. Each line is the model without one pass; all variants run "
        "in turn. *By all passes* is p50 divided by that of the model with all passes; if the "
        "ranges from p10 to p90 overlap, the difference is within the spread. Errors are relative "
        "L2 distances from the same model in float64."
    )
    lines = head("What graph passes are worth", text, about)[:-1]
    for name, cases in found.items():
        lines += ["", f"## {name}", "", *table_of(cases)]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure models; print the tables, or write them as `passes_BACKEND.md` and `.json`."""
    parser = make_parser("pass_bench", __doc__, commit=False)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(NAMES))
    parser.add_argument("-b", "--backend", default="numpy")
    parser.add_argument("--duration", type=float, default=3.0, help="seconds of each variant")
    chosen = parser.parse_args(arguments)
    names = chosen.models or DEFAULT
    for name in names:
        if name not in NAMES:
            parser.error(f"there is no model '{name}'{did_you_mean(name, NAMES)}")
    found: dict[str, Sequence[BenchCase]] = {}
    about: Mapping[str, str] = {}
    with progress() as say:
        for name in names:
            model = bench_model(name)
            result = bench(
                model,
                [chosen.backend],
                bench_inputs(model),
                passes=True,
                duration=chosen.duration,
                say=say,
            )
            found[name], about = result.cases, result.environment
    text = page(found, about, chosen.backend)
    if chosen.output is None:
        open_console().print(text, markup=False, highlight=False)
        return
    cases = [{**case.to_dict(), "model": name} for name in found for case in found[name]]
    base = f"passes_{chosen.backend}"
    write(chosen.output, {f"{base}.md": text, f"{base}.json": to_json(about, cases=cases)})


if __name__ == "__main__":
    main()
