"""Running all runners on one model: load, first run, comparison, measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from time import perf_counter

from ...api import Loadable
from ...runtime.errors import BackendUnavailable, UnsupportedError, UsageError
from ...runtime.ir.types import HostValue
from ...runtime.session.model import Model
from ..common.console import Say
from ..common.ended import RunnerEnded
from ..common.imports import clocked
from ..common.inputs import Asked, InputRequest, Inputs, given_inputs, make_inputs
from ..common.measure import OwnTime, Repeat, interleave
from ..common.nested import flat
from ..runners.onnxruntime_process import OnnxruntimeProcess
from ..runners.onnxruntime_runner import OnnxRuntime
from ..runners.runners import Runner, RunnerSettings, is_backend, is_saved, open_runner
from ..runners.saved import Saved, inputs_beside, open_saved, read_comparison
from ..verdict.tolerances import Chosen
from .entry import Entry
from .output_judge import OutputJudge


class Race:
    """All runners on one model.

    Args:
        source: the model, which every runner loads for itself.
        model: the same, loaded without passes.
        settings: common settings.
        processes: those that were started for runners, by name; see `process_for`.
        say: called with a description of each stage.

    Attributes:
        entries: runners by name; the first is the reference.
        skipped: why a runner was skipped, by name.
        ended: how runners ended that crashed or did not answer, by name.
        inputs: the common inputs.
    """

    def __init__(
        self,
        source: Loadable,
        model: Model,
        settings: RunnerSettings,
        processes: Mapping[str, OnnxruntimeProcess | None],
        say: Say,
    ) -> None:
        self.entries: dict[str, Entry] = {}
        self.skipped: dict[str, str] = {}
        self.ended: dict[str, RunnerEnded] = {}
        self.inputs = Inputs({}, {})
        self._source, self._model, self._settings, self._say = source, model, settings, say
        self._processes = processes
        self._saved: dict[str, Saved] = {}
        self._judge: OutputJudge | None = None

    def feed(
        self,
        given: Asked,
        names: Sequence[str],
        load: Path | None,
    ) -> None:
        """Determine the inputs.

        Args:
            given: arrays by name or position, or a request.
            names: of the runners; a folder of test data among them may provide inputs.
            load: a saved comparison, which provides inputs and runners.
        """
        if not isinstance(given, InputRequest):
            self.inputs = given_inputs(self._model.inputs, given)
        if load is not None:
            infos = self._model.inputs, self._model.outputs
            arrays, self._saved = read_comparison(load, *infos)
            if isinstance(given, InputRequest) and not given.is_asked:
                self.inputs = Inputs(arrays, dict.fromkeys(arrays, str(load)))
                return
        if isinstance(given, InputRequest):
            saved = [name for name in names if is_saved(name)]
            self.inputs = make_inputs(self._model.inputs, inputs_beside(saved, given))

    def enter(self, names: Sequence[str], *, skip: bool, named: bool = True) -> None:
        """Load all runners and run each once; saved ones come last.

        Args:
            names: the runners.
            skip: whether to skip those that cannot run.
            named: whether the user has named them; otherwise those that cannot run are skipped if
                two others can.
        """
        errors: list[BackendUnavailable | UnsupportedError] = []
        for name in (*names, *self._saved):
            try:
                self._enter(name)
            except (BackendUnavailable, UnsupportedError) as error:
                if named and not skip:
                    raise
                errors.append(error)
                self.skipped[name] = str(error)
            except RunnerEnded as end:
                if not self.entries:  # nothing can be compared without the reference
                    raise
                self.ended[name] = end
        if len(self.entries) < 2 and not self.ended:
            if errors and not skip:
                raise errors[0]
            able = ", ".join(self.entries) or "none"
            reasons = "".join(f"\n{name}: {why}" for name, why in self.skipped.items())
            raise UsageError(f"two runners are needed; able to run: {able}{reasons}")

    def _enter(self, name: str) -> None:
        saved = self._saved_under(name)
        if saved is not None:
            self.entries[name] = Entry(saved, nan, nan, dict(saved.outputs))
            return
        self._say(f"{name}: loading")
        given = self._source, self._settings, self._processes.get(name)
        runner, spent = clocked(partial(open_runner, name, *given))
        loaded = spent if runner.seconds is None else runner.seconds
        self._say(f"{name}: first run")
        outputs: dict[str, HostValue] = {}
        arrays = self.inputs.arrays
        try:
            with self.inputs.explained():
                _, spent = clocked(lambda: outputs.update(runner.run(arrays)))
            cold = spent if runner.seconds is None else runner.seconds
            self.entries[name] = Entry(runner, loaded, cold, flat(outputs))
        except BaseException:
            runner.close()
            raise

    def _saved_under(self, name: str) -> Saved | None:
        if name in self._saved:
            return self._saved[name]
        if is_saved(name):
            return open_saved(name, self._model.outputs, self._settings.outputs)
        return None

    def judge(self, tolerances: Chosen, *, measured: bool = True) -> None:
        """Compare all runners that have not yet been compared with the reference.

        Args:
            tolerances: the user's tolerances.
            measured: whether the model may run in float64 for the others.
        """
        self._judge = self._judge or OutputJudge(
            self.entries,
            self._model.imported,
            self.inputs.arrays,
            self._settings.outputs,
            self._reopen,
            self._say,
        )
        self._judge.judge(tolerances, measured=measured)

    def judge_later(self) -> None:
        """Judge later runs, and runs of other inputs, once runners have been measured."""
        if self._judge is not None:
            self._judge.judge_later()

    def _reopen(self, name: str, outputs: tuple[str, ...]) -> Runner:
        settings = replace(self._settings, outputs=outputs)
        return open_runner(name, self._source, settings, self._processes.get(name))

    def measure(self, repeat: Repeat) -> None:
        """Measure all runners that can run, interleaved."""
        live = {n: e for n, e in self.entries.items() if not isinstance(e.runner, Saved)}
        samples: dict[str, list[float]] = {}
        try:
            calls = {name: self._runner(entry) for name, entry in live.items()}
            cold = {name: entry.cold for name, entry in live.items()}
            interleave(calls, repeat, self._say, cold, samples)
            for name, entry in live.items():
                if samples[name] and is_backend(name):
                    self._say(f"{name}: the same inputs after other ones")
                    entry.run_others(self.inputs.arrays)
                    calls[name]()
        except RunnerEnded as end:
            self.ended[end.runner] = end
        finally:
            for name, found in samples.items():
                live[name].samples = found

    def _runner(self, entry: Entry) -> Callable[[], object]:
        runner = entry.runner

        def run() -> OwnTime:
            if isinstance(runner, OnnxRuntime) and entry.runs > 1:  # results stay in its process
                start = perf_counter()
                runner.repeat()
                return OwnTime(runner.seconds or perf_counter() - start)
            start = perf_counter()
            outputs = runner.run(self.inputs.arrays)
            seconds = perf_counter() - start if runner.seconds is None else runner.seconds
            entry.note(outputs)
            return OwnTime(seconds)

        return run

    def close(self) -> None:
        """Release all memory."""
        for entry in self.entries.values():
            entry.runner.close()
