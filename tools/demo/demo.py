"""`tercet demo`: a trained model recognizes handwritten digits on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...api import load
from ...backends import is_own
from ...backends import names as all_backends
from ...runtime.errors import BackendUnavailable, TercetError, UnsupportedError, UsageError
from ...runtime.ir.graph import Graph
from ...runtime.session.model import Model
from ...version import PACKAGE
from .pixels import draw

DEMO = PACKAGE / "demo"
REFERENCE = "numpy"  # runs everywhere, and every operator
TOLERANCE = 1e-5  # between probabilities, all of them computed in float32
LEVELS = 16  # grey levels of the shipped images
STEADY_SECONDS, STEADY_RUNS = 0.5, 200
GUTTER, CELL = 8, 9  # widths of a row's name, and of an image with a space


Said = tuple[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Sample:
    """Held-out digits and the expected results.

    Attributes:
        image: float32 `[n, 1, 8, 8]`, 0 to 1.
        labels: int64 `[n]`, the ground truth.
        trained: float32 `[n, 10]`, PyTorch's output after training.
    """

    image: np.ndarray
    labels: np.ndarray
    trained: np.ndarray

    @classmethod
    def read(cls, file: Path) -> Sample:
        """Return the sample written by `tools/workshop/train_demo.py`."""
        with np.load(file, allow_pickle=False) as arrays:
            image = arrays["images"].astype(np.float32) / LEVELS
            return cls(image, arrays["labels"], arrays["probabilities"])


@dataclass(frozen=True, slots=True)
class Answer:
    """The results and latency of one backend.

    Attributes:
        backend: its name.
        device: its device.
        probabilities: float32 `[n, 10]`.
        cold: seconds to load, plan and run once.
        steady: median seconds of one more run of all images.
    """

    backend: str
    device: str
    probabilities: np.ndarray
    cold: float
    steady: float


@dataclass(frozen=True, slots=True)
class Fold:
    """The effect of the passes.

    Attributes:
        before: the imported graph.
        after: the optimised graph.
        difference: the maximum change of a probability.
    """

    before: Graph
    after: Graph
    difference: float


@dataclass(frozen=True, slots=True)
class Findings:
    """All results of the demo.

    Attributes:
        sample: the images.
        required: minimum number of correctly recognized images.
        answers: of the backends that ran.
        errors: of the others, by name.
        fold: the effect of the passes.
    """

    sample: Sample
    required: int
    answers: Sequence[Answer]
    errors: dict[str, TercetError]
    fold: Fold


def run_demo(console: Console, backends: Sequence[str] | None = None, folder: Path = DEMO) -> int:
    """Recognize the shipped digits on every backend, show and check the results.

    Args:
        console: the console.
        backends: backends to run; all that are available if None.
        folder: holds digits.onnx and digits.npz.

    Returns:
        0 if every backend that ran recognizes the digits and agrees with the others and
        with PyTorch, else 1.

    Raises:
        BackendUnavailable, UnsupportedError: a backend requested by name is unavailable, or
            declines the network.
    """
    with load(folder / "digits.onnx", backend=REFERENCE) as model:
        sample = Sample.read(folder / "digits.npz")
        findings = investigate(console, model, sample, folder / "digits.onnx", backends)
        introduce(console, model)
    show_digits(console, findings)
    show_backends(console, findings)
    show_fold(console, findings.fold)
    complaints = judge(findings)
    show_verdict(console, findings, complaints)
    return 1 if complaints else 0


# ── finding out ──────────────────────────────────────────────────────────────────────────────


def investigate(
    console: Console, model: Model, sample: Sample, file: Path, backends: Sequence[str] | None
) -> Findings:
    """Run every backend; `model` is the one in `file`, loaded on the reference backend."""
    answers: list[Answer] = []
    errors: dict[str, TercetError] = {}
    for name in backends or all_backends():
        with console.status(f"{name} is reading the digits ..."):
            try:
                answers.append(ask(file, name, sample.image))
            except (BackendUnavailable, UnsupportedError) as error:
                if backends:
                    raise
                errors[name] = error
            except UsageError:
                raise
            except TercetError as error:
                errors[name] = error
    required = int(model.source.metadata["shipped_correct"])
    return Findings(sample, required, answers, errors, unfold(model, file, sample.image))


def ask(file: Path, backend: str, image: np.ndarray) -> Answer:
    """Return a backend's results on the images, and its latencies from arrays to arrays."""
    start = perf_counter()
    with load(file, backend=backend) as model:
        (probabilities,) = model(image)
        cold = perf_counter() - start
        times: list[float] = []
        end = perf_counter() + STEADY_SECONDS
        while len(times) < STEADY_RUNS and (start := perf_counter()) < end:
            model(image)
            times.append(perf_counter() - start)
    return Answer(backend, model.backends[0].device.name, probabilities, cold, median(times))


def unfold(model: Model, file: Path, image: np.ndarray) -> Fold:
    """Run the imported model without passes, and compare."""
    with load(file, backend=model.backend, stop_at=0) as as_read:
        difference = distance(model(image)[0], as_read(image)[0])
    return Fold(model.imported, model.graph, difference)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest absolute difference; NaN if either contains one."""
    return float(np.abs(a - b).max())


def count_right(sample: Sample, probabilities: np.ndarray) -> int:
    """Return the number of correctly recognized digits."""
    return int(np.count_nonzero(probabilities.argmax(axis=1) == sample.labels))


def count(graph: Graph, operator: str) -> int:
    """Return the number of nodes with this operator."""
    return sum(node.kind == operator for node in graph.nodes)


def pairs(findings: Findings) -> list[tuple[Said, Said]]:
    """Return all pairs of results, including PyTorch's."""
    said = [(answer.backend, answer.probabilities) for answer in findings.answers]
    return list(combinations([*said, ("PyTorch", findings.sample.trained)], 2))


def judge(findings: Findings) -> list[str]:
    """Return a sentence for each failed check."""
    sample, fold = findings.sample, findings.fold
    complaints = [
        f"{name} failed"
        for name, error in findings.errors.items()
        if not isinstance(error, BackendUnavailable) and not declines(name, error)
    ]
    for answer in findings.answers:
        right = count_right(sample, answer.probabilities)
        if right < findings.required:
            complaints.append(
                f"{answer.backend} reads {right} digits right; it must be {findings.required}"
            )
    for (a, x), (b, y) in pairs(findings):
        if not distance(x, y) <= TOLERANCE:
            complaints.append(f"{a} and {b} differ by {distance(x, y):.1e}")
    if not fold.difference <= TOLERANCE:
        complaints.append(f"folding the batch-norms changes the answers by {fold.difference:.1e}")
    if left := count(fold.after, "BatchNormalization"):
        complaints.append(f"{left} batch-norms are left after folding")
    return complaints


def declines(name: str, error: TercetError) -> bool:
    """Whether a backend of another package does not run all operators; ours do."""
    return isinstance(error, UnsupportedError) and not is_own(name)


# ── showing ──────────────────────────────────────────────────────────────────────────────────


def introduce(console: Console, model: Model) -> None:
    """Print what will be shown."""
    facts = model.source.metadata
    parameters = sum(value.tensor.size for value in model.imported.constants)
    console.print(
        Text(
            f"A small CNN ({parameters:,} parameters) reads {facts['shipped_images']} handwritten "
            "digits that its training did not see. PyTorch read "
            f"{facts['held_out_correct']} of {facts['held_out_images']} such digits right."
        )
    )
    console.print()


def show_digits(console: Console, findings: Findings) -> None:
    """Draw the digits side by side, with the answers below."""
    sample = findings.sample
    gutter = max([GUTTER, *(len(answer.backend) for answer in findings.answers)])
    across = max(1, (console.width - gutter) // CELL)
    for start in range(0, len(sample.labels), across):
        shown = slice(start, start + across)
        pictures = [draw(image[0], console) for image in sample.image[shown]]
        for pieces in zip(*pictures, strict=True):
            print_row(console, Text(" " * gutter), pieces)
        labels = [Text(str(label).ljust(CELL - 1), "bold") for label in sample.labels[shown]]
        print_row(console, Text("label".ljust(gutter), "bold"), labels)
        for answer in findings.answers:
            cells = list(map(describe, answer.probabilities[shown], sample.labels[shown]))
            print_row(console, Text(answer.backend.ljust(gutter)), cells)
        console.print()


def print_row(console: Console, head: Text, cells: Sequence[Text]) -> None:
    """Print a row of cells with a heading."""
    console.print(Text(" ").join([head, *cells]), no_wrap=True, overflow="crop")


def describe(probabilities: np.ndarray, label: int) -> Text:
    """Return a prediction and its probability, marked red if it is wrong."""
    digit = int(probabilities.argmax())
    right = digit == label
    text = f"{digit}{' ' if right else '!'}{probabilities[digit]:6.1%}"
    return Text(text.ljust(CELL - 1), "green" if right else "bold red")


def show_backends(console: Console, findings: Findings) -> None:
    """Print accuracy, agreement and latency of each backend, or why it did not run."""
    sample, answers = findings.sample, findings.answers
    table = plain_table("backend", "read right", "vs PyTorch", "vs others", "cold ms", "steady ms")
    for answer in answers:
        others = [
            distance(answer.probabilities, a.probabilities) for a in answers if a is not answer
        ]
        table.add_row(
            answer.backend,
            f"{count_right(sample, answer.probabilities)} of {len(sample.labels)}",
            f"{distance(answer.probabilities, sample.trained):.1e}",
            f"{np.max(others):.1e}" if others else "-",
            f"{answer.cold * 1e3:.1f}",
            f"{answer.steady * 1e3:.3f}",
        )
    console.print(table)
    note(
        console,
        f"vs: maximum difference of {sample.trained.size} probabilities; the limit is "
        f"{TOLERANCE:.0e}. cold: load, plan and run once. steady: run the {len(sample.labels)} "
        f"digits again, host arrays to host arrays, median. {', '.join(places(answers))}.",
    )
    show_absent(console, findings.errors)


def places(answers: Sequence[Answer]) -> list[str]:
    """Return which backend ran on which device."""
    ran: dict[str, list[str]] = {}
    for answer in answers:
        ran.setdefault(answer.device, []).append(answer.backend)
    return [f"{' and '.join(names)} on {device}" for device, names in ran.items()]


def show_absent(console: Console, errors: dict[str, TercetError]) -> None:
    """Print which backends did not run, grouped by reason."""
    absent: dict[str, list[str]] = {}
    for name, error in errors.items():
        absent.setdefault(reason(name, error), []).append(name)
    for why, names in absent.items():
        console.print(Text.assemble((", ".join(names), "bold yellow"), f": {why}"))
        console.print()


def reason(name: str, error: TercetError) -> str:
    """Return why a backend did not run, and the command that fixes it."""
    if isinstance(error, BackendUnavailable):
        return f"not available here: {error.missing}\n  {error.remedy}"
    if declines(name, error):
        return f"declines the network: {error}"
    return f"failed: {error}"


def show_fold(console: Console, fold: Fold) -> None:
    """Print the graph's size before and after the passes."""
    table = plain_table("batch-norm folding", "before", "after")
    sizes = [sum(v.tensor.nbytes for v in g.constants) for g in (fold.before, fold.after)]
    norms = [count(graph, "BatchNormalization") for graph in (fold.before, fold.after)]
    table.add_row("operators", str(len(fold.before.nodes)), str(len(fold.after.nodes)))
    table.add_row("BatchNormalization", *map(str, norms))
    table.add_row("bytes of constants", *(f"{size:,}" for size in sizes))
    console.print(table)
    merged = [" + ".join(node.origin) for node in fold.after.nodes if len(node.origin) > 1]
    note(
        console,
        f"Folded into one operator: {', '.join(merged)}. "
        f"That changes no probability by more than {fold.difference:.1e}.",
    )


def show_verdict(console: Console, findings: Findings, complaints: Sequence[str]) -> None:
    """Print all complaints, and a summary line."""
    for complaint in complaints:
        console.print(Text(f"- {complaint}", "red"))
    if complaints:
        console.print(Text("FAIL: the demo did not give the expected result.", "bold red"))
        return
    ran = [answer.backend for answer in findings.answers]
    listed = " and ".join(filter(None, [", ".join(ran[:-1]), ran[-1]]))
    right = min(count_right(findings.sample, answer.probabilities) for answer in findings.answers)
    worst = max(distance(x, y) for (_, x), (_, y) in pairs(findings))
    digits = f"{right} of {len(findings.sample.labels)} digits"
    message = f"PASS: {listed} read {digits} right and agreed with PyTorch to {worst:.1e}."
    console.print(Text(message, "bold green"))


def note(console: Console, text: str) -> None:
    """Print an explanation below a table."""
    console.print(Text(text, "dim"))
    console.print()


def plain_table(first: str, *others: str) -> Table:
    """Return a table whose first column is text and the others numbers."""
    table = Table(first, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table
