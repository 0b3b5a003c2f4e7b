"""Proof that the verdict cannot be fooled, and raises no false alarm: `verdict` on many models.

    python -m tercet.tools.verdicts FOLDER
    python -m tercet.tools.verdicts FOLDER mnist-8-cntk light_resnet50 --output docs/results

Each model of FOLDER (``NAME/model.onnx`` with ``inputs.npz``, as for `model_table`) and each light
model runs on honest runtimes: numpy with and without passes, on one thread, with other algorithms
for convolutions, and onnxruntime at three levels of optimisation. They are held against numpy: what
is not ``ok`` there is a false alarm if it is a mismatch, and counted if it is inconclusive. Then
`planted` makes wrong outputs of right ones. One that is called ``ok`` is a false accept, unless it
is no error: then its distance from float64, element for element, is within twice that of the honest
runtimes. That is decided by their distances alone, not by the rule that is put to the test.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from onnx import ModelProto

from ..api import Loadable, load
from ..backends.numpy import blas
from ..runtime.errors import InputError, TercetError
from ..runtime.types import Array
from .arrays import read_archive
from .environment import environment
from .light_models import NAMES, light_inputs, light_model
from .nested import flat
from .planted import planted
from .results import earlier, to_json, write
from .rounding import slices
from .threads import use_threads
from .verdict import Judge

Arrays = Mapping[str, Array]
_SETS = ("inputs", "real_inputs")
_LEVELS = {"plain": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "all": "ORT_ENABLE_ALL"}


@dataclass(frozen=True, slots=True)
class Proof:
    """What the verdicts on a model were, for one set of inputs.

    Attributes:
        model: its name.
        inputs: which ones.
        seconds: of all of it.
        honest: number of honest pairs and outputs.
        honest_inconclusive: which of them were inconclusive, and why.
        alarms: which of them were called a mismatch, and why.
        planted: number of wrong outputs.
        mismatch: those that were called so.
        inconclusive: those that were.
        unchanged: those that are no error: nothing but rounding changed.
        accepted: errors that were called ok.
        failed: why a runtime took no part.
    """

    model: str
    inputs: str
    seconds: float = 0.0
    honest: int = 0
    honest_inconclusive: list[str] = field(default_factory=list[str])
    alarms: list[str] = field(default_factory=list[str])
    planted: int = 0
    mismatch: int = 0
    inconclusive: list[str] = field(default_factory=list[str])
    unchanged: list[str] = field(default_factory=list[str])
    accepted: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])


def prove(name: str, inputs: str, source: Loadable, feeds: Arrays) -> Proof:
    """Judge honest and wrong outputs of a model.

    Args:
        name: what the result is called.
        inputs: likewise.
        source: the model.
        feeds: a value for every input.
    """
    start = perf_counter()
    failed: list[str] = []
    runs = dict(_honest(source, feeds, failed))
    reference = runs.pop("numpy")
    with load(source, stop_at=0) as model:
        judge = Judge(model.imported, feeds)
        found = Proof(name, inputs, failed=failed)
        counts = {"honest": 0, "planted": 0, "mismatch": 0}
        others = _others(source, feeds)
        if not judge.exact:
            failed.append("float64: the model does not run in it")
        for output, right in reference.items():
            near = {who: run[output] for who, run in runs.items() if output in run}
            for who, data in near.items():
                counts["honest"] += 1
                result = judge.agreement(output, right, data)
                if not result.ok:
                    lists = {"inconclusive": found.honest_inconclusive}
                    lists.get(result.verdict, found.alarms).append(
                        f"{output} of {who}: {result.reason}"
                    )
            base = near.get("onnxruntime all", right)
            if base.shape != right.shape or base.dtype != right.dtype:
                base = right
            truth = _Truth(judge.exact.get(output), [right, *near.values()])
            for error, wrong in planted(base, others.get(output)):
                counts["planted"] += 1
                result = judge.agreement(output, right, wrong)
                text = f"{output}: {error}"
                if result.verdict == "MISMATCH":
                    counts["mismatch"] += 1
                elif truth.is_unchanged(base, wrong):
                    found.unchanged.append(text)
                elif result.verdict == "inconclusive":
                    found.inconclusive.append(text)
                else:
                    found.accepted.append(f"{text}, by {result.max_abs:.1e} of {result.scale:.1e}")
    return Proof(
        **{**{f: getattr(found, f) for f in _LISTS}, **counts},
        model=name,
        inputs=inputs,
        seconds=perf_counter() - start,
    )


_LISTS = ("honest_inconclusive", "alarms", "inconclusive", "unchanged", "accepted", "failed")


class _Truth:
    """Knows which changes are none: by distances of honest runs from float64, not by samples."""

    def __init__(self, exact: Array | None, honest: Sequence[Array]) -> None:
        self._exact, self._near = exact, None
        if exact is None or exact.dtype.kind != "f":
            return
        runs = [data for data in honest if data.shape == exact.shape]
        self._near = np.max([_apart(data, exact) for data in runs], 0)

    def is_unchanged(self, right: Array, wrong: Array) -> bool:
        """Whether no element is further from float64 than twice as far as honest ones are there.

        Where they happen to be near, what counts is how far they are in that slice on average.
        """
        if np.array_equal(right, wrong, equal_nan=right.dtype.kind == "f"):
            return True
        if self._exact is None or self._near is None or self._exact.shape != wrong.shape:
            return False
        size = np.abs(np.nan_to_num(self._exact))
        units = np.maximum(size, size.max(initial=0.0) * 1e-3) * 2.0**-22
        usual = np.full(size.shape, np.sqrt(np.mean(self._near**2)))
        for axes in slices(size.shape, 8):
            part = np.sqrt(np.mean(self._near**2, axes, keepdims=True))
            np.minimum(usual, part, out=usual)
        limit = 2 * np.maximum(np.maximum(self._near, usual), units)
        return bool((_apart(wrong, self._exact) <= limit).all())


def _apart(data: Array, exact: Array) -> Array:
    away = np.abs(np.subtract(data, exact, dtype=np.float64))
    return np.where(np.isfinite(away) | ~np.isfinite(exact), np.nan_to_num(away), np.inf)


# ── runtimes ─────────────────────────────────────────────────────────────────────────────────────


def _honest(source: Loadable, feeds: Arrays, failed: list[str]) -> Iterator[tuple[str, Arrays]]:
    """Yield what honest runtimes compute; the first one is the reference."""
    runs: dict[str, Callable[[], Arrays]] = {
        "numpy": partial(_numpy, source, feeds),
        "numpy without passes": partial(_numpy, source, feeds, stop_at=0),
        "numpy with direct convolutions": partial(_numpy, source, feeds, conv="direct"),
        "numpy on one thread": partial(_numpy, source, feeds, threads=1),
    }
    for level, constant in _LEVELS.items():
        runs[f"onnxruntime {level}"] = partial(_onnxruntime, source, feeds, constant)
    for name, run in runs.items():
        try:
            yield name, run()
        except Exception as error:  # onnxruntime raises classes of its own for what it lacks
            if name == "numpy" or isinstance(error, TercetError):
                raise
            failed.append(f"{name}: {str(error).splitlines()[0]}")


def _numpy(source: Loadable, feeds: Arrays, threads: int | None = None, **options: Any) -> Arrays:
    usable = threads if blas.threads() is not None else None
    with use_threads(usable), load(source, **options) as model:
        return flat(model.run(feeds))


def _onnxruntime(source: Loadable, feeds: Arrays, level: str) -> Arrays:
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    model = source.SerializeToString() if isinstance(source, ModelProto) else str(source)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return flat(dict(zip(names, session.run(None, dict(feeds)), strict=True)))


def _others(source: Loadable, feeds: Arrays) -> Arrays:
    """Return the outputs of another input: the same numbers in another order."""
    rng = np.random.default_rng(5)
    shuffled = {
        name: rng.permutation(data.ravel()).reshape(data.shape) if data.size > 1 else data
        for name, data in feeds.items()
    }
    try:
        return _numpy(source, shuffled)
    except TercetError:
        return {}


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def cases(folder: Path | None, names: Sequence[str]) -> Iterator[tuple[str, str, Loadable, Arrays]]:
    """Yield models with their inputs: those of a folder, then the light ones.

    Raises:
        InputError: there is no model of a name.
    """
    models = sorted(file.parent.name for file in folder.glob("*/model.onnx")) if folder else []
    light = [f"light_{name}" for name in NAMES]
    unknown = set(names) - {*models, *light}
    if unknown:
        raise InputError(f"no model is called {', '.join(sorted(unknown))}")
    for name in models:
        for inputs in _SETS:
            file = Path(folder or "") / name / f"{inputs}.npz"
            if (not names or name in names) and file.exists():
                yield name, inputs, file.with_name("model.onnx"), read_archive(file)
    for name in light:
        if not names or name in names:
            proto = light_model(name.removeprefix("light_"))
            yield name, "normal", proto, light_inputs(proto)


_TITLES = (
    "model",
    "inputs",
    "honest",
    "inconclusive",
    "false alarms",
    "planted",
    "MISMATCH",
    "inconclusive",
    "no change",
    "false accepts",
)


def _row(proof: Proof) -> list[str]:
    numbers = (
        proof.honest,
        len(proof.honest_inconclusive),
        len(proof.alarms),
        proof.planted,
        proof.mismatch,
        len(proof.inconclusive),
        len(proof.unchanged),
        len(proof.accepted),
    )
    return [proof.model, proof.inputs, *map(str, numbers)]


def markdown(proofs: Sequence[Proof], about: Mapping[str, str]) -> str:
    """Return the page."""
    rows = [_row(proof) for proof in proofs]
    sums = [str(sum(int(row[i]) for row in rows)) for i in range(2, len(_TITLES))]
    lines = [
        "# What the verdict says of honest and of wrong outputs",
        "",
        "Written by `python -m tercet.tools.verdicts FOLDER --output docs/results`, whose module "
        "says what is honest, what is planted, and what is no change. Each cell counts outputs.",
        "",
        *(f"- {name}: {text}" for name, text in about.items()),
        "",
        f"| {' | '.join(_TITLES)} |",
        f"|{'---|' * len(_TITLES)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        f"| all | | {' | '.join(sums)} |",
    ]
    titles = {
        "accepted": "False accepts",
        "alarms": "False alarms",
        "honest_inconclusive": "Honest pairs that are inconclusive",
        "inconclusive": "Errors that are inconclusive",
        "failed": "Runtimes that took no part",
    }
    for part, title in titles.items():
        found = [(p, text) for p in proofs for text in getattr(p, part)]
        lines += ["", f"## {title}", "", *([] if found else ["None."])]
        lines += [f"- {p.model}, {p.inputs}: {text}" for p, text in found]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Prove, print, and write if asked; return 1 for a false accept or a false alarm."""
    parser = argparse.ArgumentParser(
        prog="python -m tercet.tools.verdicts",
        description="Hold the verdict against honest and wrong outputs of many models.",
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all where none is named")
    parser.add_argument("--commit", default="", help="what to record where there is no git")
    parser.add_argument("--output", type=Path, help="folder for a Markdown page and JSON")
    arguments = parser.parse_intermixed_args()
    about = environment(("numpy", "onnx", "onnxruntime"), arguments.commit)
    proofs: list[Proof] = []
    if arguments.output:
        file = arguments.output / "verdicts.json"
        proofs = earlier(file, about, lambda entry: Proof(**entry))
    try:
        for name, inputs, source, feeds in cases(arguments.folder, arguments.models):
            proof = prove(name, inputs, source, feeds)
            proofs = [p for p in proofs if (p.model, p.inputs) != (name, inputs)] + [proof]
            print(*_row(proof), f"{proof.seconds:.0f} s", sep="  ", flush=True)
            for text in (*proof.accepted, *proof.alarms, *proof.honest_inconclusive):
                print("   ", text, flush=True)
            if arguments.output:
                results = [asdict(each) for each in proofs]
                texts = {"verdicts.json": to_json(about, results=results)}
                texts["verdicts.md"] = markdown(proofs, about)
                write(arguments.output, texts)
    except TercetError as error:
        parser.error(str(error))
    return 1 if any(proof.accepted or proof.alarms for proof in proofs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
