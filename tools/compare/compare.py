"""Comparison of several backends on one model: agreement and latency."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import api
from ...api import Loadable, Operators
from ...arguments import freezing, in_data_dir, public
from ...backends.numpy.numerics import blas
from ...runtime.errors import UsageError
from ...runtime.ir.types import Array
from ..common.console import Say, silent
from ..common.deadline import time_limit
from ..common.inputs import Given, Inputs, asked
from ..common.measure import Repeat, Timing
from ..common.shapes import Dims, Shapes
from ..common.threads import use_threads
from ..export.writing import model_title
from ..runners.repetition import rarest
from ..runners.runners import (
    RunnerSettings,
    check_names,
    check_options,
    default_names,
    process_for,
)
from ..runners.saved import Saved, write_comparison
from ..verdict.agreement import Agreement, Word
from ..verdict.error_bounds import overall
from ..verdict.judged import Judged
from ..verdict.tolerances import ByName, Chosen
from .entry import Entry
from .run_all import Race


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """The result of one runner.

    Attributes:
        name: the runner.
        about: its description and device.
        precision: compute precision of its float32 tensors.
        load: seconds from the source to a ready model; NaN for saved outputs.
        cold: seconds of the first run, arrays in to arrays out; NaN for saved outputs.
        steady: later runs, arrays in to arrays out, interleaved between runners.
        outputs: its outputs.
        agreements: each output against the reference's; empty for the reference.
        error: relative L2 distance of the worst output from float64; None if not computed.
        compared: number of runs on these inputs whose results were compared; onnxruntime keeps
            those of most steady runs in its process.
    """

    name: str
    about: str
    precision: str
    load: float
    cold: float
    steady: Timing
    outputs: Mapping[str, Array] = field(repr=False, compare=False)
    agreements: tuple[Agreement, ...] = ()
    error: float | None = None
    compared: int = 1

    @property
    def rarest(self) -> float:
        """The share of runs in which a result must be wrong to be found in 95 % of cases."""
        return rarest(self.compared)

    @property
    def ok(self) -> bool:
        """Whether every output agrees with the reference's."""
        return self.verdict == "ok"

    @property
    def verdict(self) -> Word:
        """The worst verdict of an output."""
        return overall([found.verdict for found in self.agreements])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the outputs, times in milliseconds, for JSON."""
        return {
            "name": self.name,
            "about": self.about,
            "precision": self.precision,
            "load_ms": self.load * 1e3,
            "cold_ms": self.cold * 1e3,
            "steady_ms": self.steady.to_dict(),
            "ok": self.ok,
            "verdict": self.verdict,
            "error": self.error,
            "compared": self.compared,
            "outputs": [found.to_dict() for found in self.agreements],
        }


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Judged):
    """The result of `compare`; print it, or read `results`.

    Attributes:
        model: the file's name, or ``model`` for a model in memory.
        inputs: the common inputs.
        threads: CPU threads of each runner, None if unknown.
        results: one per runner; the first is the reference.
        skipped: why a runner was skipped, by name.
        stopped, ended, allow_inconclusive: see `Judged`.
    """

    model: str
    inputs: Inputs
    threads: int | None
    results: tuple[ComparisonResult, ...]
    skipped: Mapping[str, str]

    def _about(self) -> str:
        return f"{self.model}: {self.verdict}; " + ", ".join(r.name for r in self.results)

    @property
    def reference(self) -> ComparisonResult:
        """The result that others are compared with."""
        return self.results[0]

    @property
    def verdict(self) -> Word:
        """``ok``, ``MISMATCH`` or ``inconclusive``: the worst verdict of an output."""
        unknown: list[Word] = ["inconclusive"] if self.ended else []
        return overall([*unknown, *(result.verdict for result in self.results)])

    def __getitem__(self, name: str) -> ComparisonResult:
        """Return the result of a runner; raises KeyError if it did not take part."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per runner and output, for `pandas.DataFrame`."""
        return [
            {
                "runner": result.name,
                "output": found.output,
                "verdict": found.verdict,
                "reason": found.reason,
                "max_abs": found.max_abs,
                "max_rel": found.max_rel,
                "rel_l2": found.rel_l2,
                "allowed": found.tolerance.bound(found.scale),
                **({} if found.differences is None else found.differences.to_dict()),
                "error": result.error,
                "load_ms": result.load * 1e3,
                "cold_ms": result.cold * 1e3,
                "steady_ms": result.steady.median * 1e3,
            }
            for result in self.results[1:]
            for found in result.agreements
        ]

    @public()
    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the inputs and all outputs to an .npz file, for `compare(load=file)`."""
        saved = {r.name: Saved(r.about, r.precision, r.outputs) for r in self.results}
        write_comparison(Path(file), self.inputs.arrays, saved)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the arrays, for JSON."""
        return {
            "model": self.model,
            "ok": self.ok,
            "verdict": self.verdict,
            "reference": self.reference.name,
            "threads": self.threads,
            "inputs": self.inputs.to_dict(),
            "runners": [result.to_dict() for result in self.results],
            "skipped": dict(self.skipped),
            "ended": [end.to_dict() for end in self.ended],
            "stopped": self.stopped,
        }


@public()
@in_data_dir
@freezing
def compare(
    source: Loadable,
    runners: Sequence[str] | None = None,
    inputs: Given = None,
    *,
    seed: int = 0,
    shapes: Shapes = (),
    dims: Dims = (),
    outputs: Sequence[str] = (),
    rtol: float | ByName | None = None,
    atol: float | ByName | None = None,
    repeat: Repeat | int | None = None,
    fallback: str | None = None,
    precision: str = "float32",
    skip_unavailable: bool = False,
    load: str | os.PathLike[str] | None = None,
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    allow_inconclusive: bool = False,
    runner_timeout: float | None = None,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Comparison:
    """Run a model on several backends and compare outputs and latencies.

    All run on the same inputs, onnxruntime in a separate process: if that crashes, the others are
    still compared. Latencies are from arrays to arrays, including transfers to a device;
    steady ones are interleaved after a warm-up. Outputs may differ by what rounding costs, as
    determined by runs of the same graph in float64; see `verdict`.

    Args:
        source: a path, bytes, or a `ModelProto`.
        runners: names of backends, ``onnxruntime``, ``onnx.reference``, .npz files of outputs, or
            folders of ONNX test data; the first is the reference. If None, every available backend
            and onnxruntime (without it, onnx.reference), but those that cannot run the model.
        inputs: arrays by name or in a list by position; an .npz file or a folder of ONNX test data;
            if None, those of `load` or of a participating folder, else random ones.
        seed: seed of random inputs.
        shapes: of random inputs, by name: ``{"image": (1, 3, 224, 224)}``.
        dims: sizes of symbolic dimensions of random inputs: ``{"batch": 4}``; 1 if not given.
        outputs: tensors to compare, intermediate ones included; the model's outputs if empty.
        rtol: allowed difference as a fraction of max |reference|, instead of the measured one: for
            all outputs, or by name of an output or dtype.
        atol: additional absolute difference allowed, likewise.
        repeat: number of measured runs per runner; about a second's worth if None.
        fallback: backend for nodes that a tercet backend declines.
        precision: compute precision of float32 tensors on tercet's backends.
        skip_unavailable: skip runners that are unavailable or cannot run the model.
        load: a file written by `Comparison.save`; its runners take part.
        freeze: arrays by name for inputs that become constants, for all runners; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        threads: number of CPU threads of each runner; numpy's setting if None.
        allow_inconclusive: whether `Comparison.exit_code` is 0 for inconclusive results.
        runner_timeout: seconds that onnxruntime may take to load the model, or for one run, before
            it is ended; None for any time.
        timeout: time limit in seconds, after which partial results are returned; None for no limit.
        say: called with a description of each stage.
        **options: further fields of `Options`.

    Raises:
        UsageError: fewer than two runners, or an unknown one.
        BackendUnavailable: a runner is unavailable here.
        UnsupportedError: a runner cannot run the model.
        InputError: inputs or saved outputs do not fit.
        ModelError: the model cannot be read.
        RunnerEnded: the reference crashed.
        TimeLimitError: the time limit passed before two runners had run.
    """
    chosen = tuple(runners) if runners is not None else default_names()
    check_names(chosen, files=True)
    if len(chosen) < 2 and load is None:
        raise UsageError(
            f"a comparison takes two runners, not {len(chosen)} (such as numpy and onnxruntime)"
        )
    wanted = tuple(outputs)
    settings = RunnerSettings(wanted, fallback, precision, options, operators, runner_timeout)
    check_options(chosen, settings)
    processes = {name: process_for(name, settings) for name in chosen}
    race, tolerances = None, Chosen.of(rtol, atol)
    given = asked(inputs, seed, shapes, dims)
    with ExitStack() as kept:  # what is judged after the time limit reads the graph, too
        with ExitStack() as stack:
            stack.enter_context(use_threads(threads))
            limit, tell = stack.enter_context(time_limit(timeout, say))
            model = kept.enter_context(api.load(source, stop_at=0, operators=operators))
            race = Race(source, model, settings, processes, tell)
            race.feed(given, chosen, None if load is None else Path(load))
            try:
                race.enter(chosen, skip=skip_unavailable, named=runners is not None)
                race.judge(tolerances)
                race.measure(repeat if isinstance(repeat, Repeat) else Repeat(repeat))
                race.judge_later()
            finally:
                race.close()
        if race is None or len(race.entries) + len(race.ended) < 2:
            raise limit.error()
        race.judge(tolerances, measured=False)
    results = tuple(_result(name, entry) for name, entry in race.entries.items())
    return Comparison(
        model_title(source),
        race.inputs,
        blas.threads(),
        results,
        race.skipped,
        stopped=limit.stopped,
        ended=tuple(race.ended.values()),
        allow_inconclusive=allow_inconclusive,
    )


def _result(name: str, entry: Entry) -> ComparisonResult:
    runner = entry.runner
    return ComparisonResult(
        name,
        runner.about,
        runner.precision,
        entry.load,
        entry.cold,
        Timing(tuple(entry.samples)),
        entry.outputs,
        tuple(entry.agreements),
        entry.error,
        entry.runs,
    )
