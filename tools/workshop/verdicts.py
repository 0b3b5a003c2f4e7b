r"""Proof that the verdict cannot be fooled, and raises no false alarm: `verdict` on many models.

    python -m tercet.tools.workshop.verdicts FOLDER
    python -m tercet.tools.workshop.verdicts FOLDER mnist-8-cntk light_resnet50 \\
        --output docs/results
    python -m tercet.tools.workshop.verdicts FOLDER --jobs 2 --seconds 1800 --output docs/results
    python -m tercet.tools.workshop.verdicts FOLDER mscn-128d --precision float16 tf32 bfloat16

Each model of FOLDER (``NAME/model.onnx`` with ``inputs.npz``, as for `model_table`) and each light
model runs on honest runtimes: numpy with and without passes, on one thread, with other algorithms
for convolutions, and onnxruntime at three levels of optimisation. In half precision they are numpy
in it, with other passes too, and onnxruntime in float32; in tf32 they are numpy with factors of its
11 bits. They are held against numpy in float32: what is not ``ok`` there is a false alarm if it is
a mismatch, and counted if it is inconclusive. Then `planted` makes wrong outputs of right ones. One
that is called ``ok`` is a false accept, unless it is not an error: then its distance from float64,
element for element, is within twice that of the honest runtimes. That is decided by their distances
alone, not by the rule that is put to the test. Where they agree with each other more than their
arithmetic promises, runs in float64 that are moved about as far as float32 rounds are added to
them; what only these explain is listed. Half precision and tf32 tell nothing finer than their last
bits, nor do models with tensors of 16 bits: there an error moves an element by 1 % of the scale,
and what is less and called ``ok`` is listed as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, time

import numpy as np

from ...api import Loadable, load
from ...runtime.errors import InputError, TercetError
from ...runtime.ir.types import Array
from ...runtime.options import Precision
from ..common.arrays import read_archive
from ..common.deadline import time_limit
from ..common.environment import environment
from ..common.results import VARYING, earlier, to_json, write
from ..verdict.error_bounds import COUNTS, Judge
from ..verdict.noise import FAIR
from ..verdict.operators import ancestries
from ..verdict.spread import slices
from .honest import BASE, Arrays, honest, other_outputs
from .light_models import NAMES, light_inputs, light_model
from .planted import planted
from .verdicts_page import Key, Proof, markdown, row

_SETS = ("inputs", "real_inputs")
#: What is an error where arithmetic is coarser than float32, with room for its own rounding.
_ERROR = 0.01 * 0.99
#: Formats in which no error is too small to be one.
_FINE = ("float64", "float32")
_LIGHT = "light_"


def prove(
    name: str, inputs: str, source: Loadable, feeds: Arrays, precision: Precision = "float32"
) -> Proof:
    """Judge honest and wrong outputs of a model.

    Args:
        name: what the result is called.
        inputs: likewise.
        source: the model.
        feeds: a value for every input.
        precision: compute precision of float32 tensors.
    """
    start = perf_counter()
    failed: list[str] = []
    runs = dict(honest(source, feeds, failed, precision))
    reference = runs.pop("numpy")
    with load(source, stop_at=0) as model:
        judge = Judge(model.imported, feeds, precision)
        found = Proof(name, inputs, failed=failed)
        counts = {"honest": 0, "planted": 0, "mismatch": 0}
        others = other_outputs(source, feeds)
        formats = ancestries(model.imported, precision)
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
            base = near.get(BASE[precision], right)
            if base.shape != right.shape or base.dtype != right.dtype:
                base = right
            fair = partial(judge.samples, output, FAIR, COUNTS[-1])
            truth = Truth(judge.exact.get(output), [right, *near.values()], fair)
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
                    text = f"{text}, by {result.max_abs:.1e} of {result.scale:.1e}"
                    is_fine = output not in formats or formats[output].coarsest in _FINE
                    if not is_fine and _share(base, wrong) < _ERROR:
                        found.small.append(text)
                    else:
                        (found.noise if truth.is_noise(wrong) else found.accepted).append(text)
    return Proof(
        **{**{f: getattr(found, f) for f in _LISTS}, **counts},
        model=name,
        inputs=inputs,
        precision=precision,
        seconds=perf_counter() - start,
    )


_LISTS = (
    "honest_inconclusive",
    "alarms",
    "inconclusive",
    "unchanged",
    "noise",
    "small",
    "accepted",
    "failed",
)


class Truth:
    """Knows which changes are none: by the distances of other runs from float64.

    Args:
        exact: the output in float64.
        honest: what honest runtimes give.
        fair: gives the output in float64 with as much noise as float32 has, some times.
    """

    def __init__(
        self, exact: Array | None, honest: Sequence[Array], fair: Callable[[], Sequence[Array]]
    ) -> None:
        self._exact, self._fair = exact, fair
        self._limit = self._limit_by(honest)

    def is_unchanged(self, right: Array, wrong: Array) -> bool:
        """Whether no element is further from float64 than twice as far as honest ones are there."""
        if np.array_equal(right, wrong, equal_nan=right.dtype.kind == "f"):
            return True
        return self._is_within(self._limit, wrong)

    def is_noise(self, wrong: Array) -> bool:
        """Whether the same holds of runs in float64 that have the noise of float32.

        Runtimes that share a library may agree far better than their arithmetic promises. Some of
        the many elements of an output are further off in any run than twice as far as others show
        there; each pair of runs, held against the rest, tells by how much.
        """
        exact = self._exact
        if exact is None:
            return False
        runs = [data for data in self._fair() if data.shape == exact.shape]
        limit = self._limit_by(runs)
        if limit is None:
            return False
        times = 1.0
        for i in range(0, len(runs), 2):  # every second one is the one before with the other sign
            rest = self._limit_by([*runs[:i], *runs[i + 2 :]])
            if rest is not None:
                away = _apart(runs[i], exact)
                ratio = np.divide(away, rest, where=away > 0, out=np.zeros(away.shape))
                times = max(times, float(ratio.max(initial=0.0)))
        return self._is_within(times * limit, wrong)

    def _is_within(self, limit: Array | None, wrong: Array) -> bool:
        exact = self._exact
        if limit is None or exact is None or exact.shape != wrong.shape:
            return False
        return bool((_apart(wrong, exact) <= limit).all())

    def _limit_by(self, runs: Sequence[Array]) -> Array | None:
        """Return twice the largest distance of some runs from float64, by element.

        Where they happen to be near, what counts is how far they are in that slice on average.
        """
        exact = self._exact
        if exact is None or exact.dtype.kind != "f":
            return None
        apart = [_apart(data, exact) for data in runs if data.shape == exact.shape]
        if not apart:
            return None
        near = np.max(apart, 0)
        size = np.abs(np.nan_to_num(exact))
        units = np.maximum(size, size.max(initial=0.0) * 1e-3) * 2.0**-22
        usual = np.full(size.shape, np.sqrt(np.mean(near**2)))
        for axes in slices(size.shape, 8):
            part = np.sqrt(np.mean(near**2, axes, keepdims=True))
            np.minimum(usual, part, out=usual)
        return 2 * np.maximum(np.maximum(near, usual), units)


def _share(right: Array, wrong: Array) -> float:
    """Return the largest change of an element by the largest magnitude; 1 for what counts."""
    if right.dtype.kind in "biuSO" or right.shape != wrong.shape:
        return 1.0
    wide = right.astype(np.float64)
    scale = float(np.abs(np.nan_to_num(wide)).max(initial=0.0))
    return float(_apart(wrong, wide).max(initial=0.0)) / scale if scale else 1.0


def _apart(data: Array, exact: Array) -> Array:
    away = np.abs(np.subtract(data, exact, dtype=np.float64))
    return np.where(np.isfinite(away) | ~np.isfinite(exact), np.nan_to_num(away), np.inf)


# ── which models ─────────────────────────────────────────────────────────────────────────────────


def cases(folder: Path | None) -> list[Key]:
    """Return models and which inputs they get: those of a folder, then the light ones."""
    models = sorted(file.parent.name for file in folder.glob("*/model.onnx")) if folder else []
    own = [
        (name, inputs)
        for name in models
        for inputs in _SETS
        if (Path(folder or "") / name / f"{inputs}.npz").exists()
    ]
    every = [*own, *((f"{_LIGHT}{name}", "normal") for name in NAMES)]
    return [(*each, precision) for precision in BASE for each in every]


def _chosen(known: Sequence[Key], names: Sequence[str], precisions: Sequence[str]) -> list[Key]:
    """Return those of some models, all where none is named, in some arithmetic."""
    unknown = set(names) - {name for name, *_ in known}
    if unknown:
        raise InputError(f"no model is called {', '.join(sorted(unknown))}")
    return [key for key in known if (not names or key[0] in names) and key[2] in precisions]


def _prove_until(folder: Path | None, key: Key, end: float | None) -> Proof | None:
    """Prove one; return None where the time is up before it is done."""
    name, inputs, precision = key
    left = None if end is None else end - time()
    if left is not None and left <= 0:
        return None
    proof = None
    with time_limit(left):
        if name.startswith(_LIGHT):
            proto = light_model(name.removeprefix(_LIGHT))
            proof = prove(name, inputs, proto, light_inputs(proto), precision)
        else:
            file = Path(folder or "") / name / "model.onnx"
            feeds = read_archive(file.with_name(f"{inputs}.npz"))
            proof = prove(name, inputs, file, feeds, precision)
    return proof


def _proofs(
    folder: Path | None, keys: Sequence[Key], jobs: int, end: float | None
) -> Iterator[Proof]:
    """Yield proofs as they are done, by one process or by several."""
    prove_one = partial(_prove_until, folder, end=end)
    if jobs == 1:
        yield from (proof for key in keys if (proof := prove_one(key)))
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(prove_one, key) for key in keys]):
            if proof := done.result():
                yield proof


# ── the command ──────────────────────────────────────────────────────────────────────────────────


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tercet.tools.workshop.verdicts",
        description="Hold the verdict against honest and wrong outputs of many models.",
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all where none is named")
    parser.add_argument(
        "--precision", nargs="+", choices=BASE, default=["float32"], help="float32 by default"
    )
    parser.add_argument("--commit", default="", help="what to record where there is no git")
    parser.add_argument("--output", type=Path, help="folder for a Markdown page and JSON")
    parser.add_argument("--jobs", type=int, default=1, help="processes; %(default)s by default")
    parser.add_argument("--seconds", type=float, help="what is not done by then is not run")
    return parser.parse_intermixed_args()


def main() -> int:
    """Prove, print, and write if asked; return 1 for a false accept or a false alarm."""
    given = _arguments()
    end = None if given.seconds is None else time() + given.seconds
    about = environment(("numpy", "onnx", "onnxruntime"), given.commit)
    known = cases(given.folder)
    found: dict[Key, Proof] = {}
    if given.output:
        file = given.output / "verdicts.json"
        # Each row says which commit it is of.
        old = earlier(
            file, about, lambda entry: Proof(**entry), varying={*VARYING, "system", "tercet"}
        )
        found = {proof.key: proof for proof in old}
    try:
        chosen = _chosen(known, given.models, given.precision)
        for proof in _proofs(given.folder, chosen, max(1, given.jobs), end):
            proof = replace(proof, tercet=about["tercet"])
            found[proof.key] = proof
            print(*row(proof), f"{proof.seconds:.0f} s", sep="  ", flush=True)
            for text in (*proof.accepted, *proof.alarms, *proof.honest_inconclusive):
                print("   ", text, flush=True)
            if given.output:
                _write(given.output, about, known, chosen, found)
    except TercetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for key in chosen:
        if key not in found:
            print(*key, "not run: time", sep="  ")
    if given.output:
        _write(given.output, about, known, chosen, found)
    return 1 if any(proof.accepted or proof.alarms for proof in found.values()) else 0


def _write(
    folder: Path,
    about: Mapping[str, str],
    known: Sequence[Key],
    chosen: Sequence[Key],
    found: Mapping[Key, Proof],
) -> None:
    """Write the page and its JSON, in the order of the models."""
    proofs = [found[key] for key in known if key in found]
    missing = {
        "time": [key for key in chosen if key not in found],
        "not asked for": [key for key in known if key not in found and key not in chosen],
    }
    left = [
        {"model": name, "inputs": inputs, "precision": precision, "reason": reason}
        for reason, keys in missing.items()
        for name, inputs, precision in keys
    ]
    data = to_json(about, results=[asdict(proof) for proof in proofs], not_run=left)
    write(folder, {"verdicts.json": data, "verdicts.md": markdown(proofs, about, missing)})


if __name__ == "__main__":
    raise SystemExit(main())
