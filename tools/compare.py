"""Several backends on one model and the same inputs: do they agree, and how fast is each?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from onnx import ModelProto

from ..api import Loadable, load
from ..backends.numpy import blas
from ..runtime.errors import BackendUnavailable, InputError, UnsupportedError, UsageError
from ..runtime.model import TensorInfo
from ..runtime.types import Array
from .agreement import Agreement, agreement, tolerance_for
from .console import Say, silent
from .contestants import (
    Contestant,
    Settings,
    check_names,
    default_names,
    open_contestant,
)
from .inputs import Inputs, Wanted, make_inputs
from .measure import Repeat, Timing, interleave, timed


@dataclass(frozen=True, slots=True)
class Result:
    """What one contestant did.

    Attributes:
        name: the contestant.
        about: what it is and where it runs.
        precision: arithmetic of its float32 tensors.
        load: seconds from the source to a model that is ready to run.
        cold: seconds of the first run, arrays in to arrays out.
        steady: later runs, arrays in to arrays out, the contestants taking turns.
        outputs: what it computed.
        agreements: each output against the reference's; empty for the reference.
    """

    name: str
    about: str
    precision: str
    load: float
    cold: float
    steady: Timing
    outputs: Mapping[str, Array] = field(repr=False, compare=False)
    agreements: tuple[Agreement, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every output agrees with the reference's."""
        return all(found.ok for found in self.agreements)

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
            "outputs": [found.to_dict() for found in self.agreements],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out; print it, or look at `results`.

    Attributes:
        model: the file's name, or ``model`` for one that was given in memory.
        inputs: what all were fed.
        threads: of each contestant on the CPU, None if numpy's BLAS does not say.
        results: one a contestant; the first one is the reference.
        skipped: why a contestant did not take part, by name.
    """

    model: str
    inputs: Inputs
    threads: int | None
    results: tuple[Result, ...]
    skipped: Mapping[str, str]

    @property
    def reference(self) -> Result:
        """The contestant that the others are held against."""
        return self.results[0]

    @property
    def ok(self) -> bool:
        """Whether all agree."""
        return all(result.ok for result in self.results)

    def __getitem__(self, name: str) -> Result:
        """Return the result of a contestant; raises KeyError if it took no part."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)

    def __str__(self) -> str:
        from .compare_view import comparison_text

        return comparison_text(self)

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row a contestant and output, as `pandas.DataFrame` takes them."""
        return [
            {
                "contestant": result.name,
                "output": found.output,
                "verdict": found.verdict,
                "max_abs": found.max_abs,
                "max_rel": found.max_rel,
                "rel_l2": found.rel_l2,
                "load_ms": result.load * 1e3,
                "cold_ms": result.cold * 1e3,
                "steady_ms": result.steady.median * 1e3,
            }
            for result in self.results[1:]
            for found in result.agreements
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the arrays, for JSON."""
        return {
            "model": self.model,
            "ok": self.ok,
            "reference": self.reference.name,
            "threads": self.threads,
            "inputs": self.inputs.to_dict(),
            "contestants": [result.to_dict() for result in self.results],
            "skipped": dict(self.skipped),
        }


def compare(
    source: Loadable,
    contestants: Sequence[str] | None = None,
    inputs: Mapping[str, Array] | Wanted | None = None,
    *,
    seed: int = 0,
    outputs: Sequence[str] = (),
    rtol: float | None = None,
    atol: float | None = None,
    repeat: Repeat | int | None = None,
    fallback: str | None = None,
    precision: str = "float32",
    skip_unavailable: bool = False,
    say: Say = silent,
    **options: Any,
) -> Comparison:
    """Run a model on several backends and compare outputs and latencies.

    All run in this process on the same inputs. Latencies are from arrays to arrays, transfers to
    a device included; the steady ones are measured in turns, warmed up.

    Args:
        source: a path, the file's bytes, or a `ModelProto`.
        contestants: names of backends, ``onnxruntime`` or ``onnx.reference``; the first one is the
            reference. Every backend that can run here, and onnxruntime, where None.
        inputs: arrays by name; what the command line's options say; random ones where None.
        seed: of random inputs.
        outputs: tensors to compare, intermediate ones too; the model's outputs where empty.
        rtol: difference that is allowed, as a share of max |reference|; see `tolerance_for`.
        atol: difference that is allowed besides.
        repeat: measured runs of each contestant; about a second's where None.
        fallback: backend for nodes that one of tercet's backends does not run.
        precision: arithmetic of float32 tensors on tercet's backends.
        skip_unavailable: leave out who cannot run here or does not run the model.
        say: told of each stage.
        **options: further fields of `Options`.

    Raises:
        UsageError: fewer than two contestants, or an unknown one.
        BackendUnavailable: a contestant cannot run here.
        UnsupportedError: a contestant does not run the model.
        InputError: inputs that do not fit.
        ModelError: the model cannot be read.
    """
    chosen = tuple(contestants) if contestants is not None else default_names()
    check_names(chosen)
    if len(chosen) < 2:
        raise UsageError(
            f"a comparison takes two contestants, not {len(chosen)} (such as numpy and onnxruntime)"
        )
    settings = Settings(tuple(outputs), fallback, precision, options)
    feeds = _inputs(source, inputs, seed)
    race = _Race(source, settings, feeds, say)
    try:
        race.enter(chosen, skip_unavailable)
        steady = race.steady(repeat if isinstance(repeat, Repeat) else Repeat(repeat))
    finally:
        race.close()
    results = _judge(race.entries, steady, rtol, atol)
    return Comparison(_title(source), feeds, blas.threads(), results, race.skipped)


def _title(source: Loadable) -> str:
    return "model" if isinstance(source, bytes | ModelProto) else os.fspath(source)


def _inputs(source: Loadable, given: Mapping[str, Array] | Wanted | None, seed: int) -> Inputs:
    if given is not None and not isinstance(given, Wanted):
        arrays = {name: np.asarray(data) for name, data in given.items()}
        return Inputs(arrays, dict.fromkeys(arrays, "given"))
    return make_inputs(_input_infos(source), given or Wanted(seed=seed))


def _input_infos(source: Loadable) -> tuple[TensorInfo, ...]:
    """Read the model once more, without any pass, for what it takes."""
    with load(source, stop_at=0) as model:
        return model.inputs


@dataclass(slots=True)
class _Entry:
    contestant: Contestant
    load: float
    cold: float
    outputs: dict[str, Array]


class _Race:
    """Contestants that are loaded and have run once."""

    def __init__(self, source: Loadable, settings: Settings, inputs: Inputs, say: Say) -> None:
        self.entries: dict[str, _Entry] = {}
        self.skipped: dict[str, str] = {}
        self._source, self._settings = source, settings
        self._inputs, self._say = inputs, say

    def enter(self, names: Sequence[str], skip: bool) -> None:
        """Load everybody and run each once."""
        for name in names:
            try:
                self._enter(name)
            except (BackendUnavailable, UnsupportedError) as error:
                if not skip:
                    raise
                self.skipped[name] = str(error)
        if len(self.entries) < 2:
            able = ", ".join(self.entries) or "none"
            reasons = "".join(f"\n{name}: {why}" for name, why in self.skipped.items())
            raise UsageError(f"two contestants are needed; able to run: {able}{reasons}")

    def _enter(self, name: str) -> None:
        self._say(f"{name}: loading")
        start = perf_counter()
        contestant = open_contestant(name, self._source, self._settings)
        loaded = perf_counter() - start
        self._say(f"{name}: first run")
        outputs: dict[str, Array] = {}
        try:
            with self._inputs.explained():
                cold = timed(lambda: outputs.update(contestant.run(self._inputs.arrays)))
        except BaseException:
            contestant.close()
            raise
        self.entries[name] = _Entry(contestant, loaded, cold, _tensors(name, outputs))

    def steady(self, repeat: Repeat) -> dict[str, Timing]:
        """Measure everybody in turns."""
        calls = {name: self._runner(entry) for name, entry in self.entries.items()}
        cold = {name: entry.cold for name, entry in self.entries.items()}
        return interleave(calls, repeat, self._say, cold)

    def _runner(self, entry: _Entry) -> Callable[[], object]:
        return lambda: entry.contestant.run(self._inputs.arrays)

    def close(self) -> None:
        """Give all memory back."""
        for entry in self.entries.values():
            entry.contestant.close()


def _tensors(name: str, outputs: Mapping[str, Any]) -> dict[str, Array]:
    for output, value in outputs.items():
        if not isinstance(value, np.ndarray | np.generic):
            raise UnsupportedError(
                f"output '{output}' of {name} is a {type(value).__name__}; tensors are compared"
            )
    return {output: np.asarray(value) for output, value in outputs.items()}


def _judge(
    entries: Mapping[str, _Entry],
    steady: Mapping[str, Timing],
    rtol: float | None,
    atol: float | None,
) -> tuple[Result, ...]:
    (reference, first), *_ = entries.items()
    results: list[Result] = []
    for name, entry in entries.items():
        precisions = (first.contestant.precision, entry.contestant.precision)
        found = tuple(
            agreement(
                output,
                data,
                _output(name, entry, output),
                tolerance_for(data.dtype, precisions, rtol, atol),
            )
            for output, data in (first.outputs.items() if name != reference else ())
        )
        contestant = entry.contestant
        results.append(
            Result(
                name,
                contestant.about,
                contestant.precision,
                entry.load,
                entry.cold,
                steady[name],
                entry.outputs,
                found,
            )
        )
    return tuple(results)


def _output(name: str, entry: _Entry, output: str) -> Array:
    if output not in entry.outputs:
        raise InputError(f"{name} gives no output '{output}', the reference does")
    return entry.outputs[output]
