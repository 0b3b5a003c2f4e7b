"""The verdicts of a comparison: each runner's outputs against the reference's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...runtime.errors import TercetError
from ...runtime.ir.graph import Graph
from ...runtime.ir.types import Array
from ..common.console import Say
from ..common.nested import flat
from ..runners.repetition import same_bits
from ..runners.runners import Runner, is_backend
from ..runners.saved import Saved
from ..verdict.agreement import Agreement, missing
from ..verdict.drawn import draws_of, with_draws
from ..verdict.error_bounds import overall
from ..verdict.retrace import Retrace, settled
from ..verdict.tolerances import Bounds, Chosen
from .entry import Entry, changes_of, differ, is_more, same, were_fed_alike


class OutputJudge:
    """What compares the outputs of all runners with the reference's.

    Args:
        entries: runners by name; the first is the reference. Their agreements are written.
        graph: the model as imported.
        arrays: the common inputs.
        outputs: names of the outputs that are compared; empty for all.
        reopen: opens a runner again, by name, with these outputs.
        say: called with a description of each stage.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        graph: Graph,
        arrays: Mapping[str, Array],
        outputs: tuple[str, ...],
        reopen: Callable[[str, tuple[str, ...]], Runner],
        say: Say,
    ) -> None:
        self._entries, self._graph, self._arrays = entries, graph, arrays
        self._outputs, self._reopen, self._say = outputs, reopen, say
        self._bounds: Bounds | None = None

    def judge(self, tolerances: Chosen, *, measured: bool = True) -> None:
        """Compare all runners that have not yet been compared with the reference.

        Args:
            tolerances: the user's tolerances.
            measured: whether the model may run in float64 for the others.
        """
        (reference, first), *others = self._entries.items()
        bounds = Bounds(self._graph, self._arrays, tolerances, self._outputs, self._say)
        draws = draws_of(self._graph)
        for name, entry in others:
            if entry.agreements:
                continue
            compare = self._comparing(bounds, name, measured=measured)
            entry.agreements = [
                compare(output, data, entry.outputs[output])
                if output in entry.outputs
                else missing(output, data, name)
                for output, data in first.outputs.items()
            ]
            own = is_backend(name) and is_backend(reference)
            entry.agreements = [
                with_draws(
                    found,
                    draws.get(found.output, ()),
                    first.outputs[found.output],
                    entry.outputs.get(found.output),
                    same_generator=own,
                )
                for found in entry.agreements
            ]
            extra = (output for output in entry.outputs if output not in first.outputs)
            entry.agreements += [missing(o, entry.outputs[o], reference) for o in extra]
        if measured:
            ways: dict[str, Retrace | str] = {}
            for name, entry in others:
                self._settle(bounds, {reference: first, name: entry}, ways)
            for entry in self._entries.values():
                entry.error = bounds.error(entry.outputs)
            self._bounds = bounds

    def _comparing(
        self, bounds: Bounds, name: str, *, measured: bool = True
    ) -> Callable[[str, Array, Array], Agreement]:
        """Return what compares outputs of the reference and of a runner."""
        reference, first = next(iter(self._entries.items()))
        precisions = first.runner.precision, self._entries[name].runner.precision
        own = is_backend(name) and is_backend(reference)

        def compare(output: str, wanted: Array, found: Array) -> Agreement:
            return bounds.compare(output, wanted, found, precisions, own=own, measured=measured)

        return compare

    def judge_later(self) -> None:
        """Judge later runs of the same inputs that gave other bits; the worse verdict counts."""
        bounds = self._bounds
        if bounds is None:
            return
        reference, *others = self._entries
        draws = draws_of(self._graph)
        for name, again in ((other, again) for other in others for again in (reference, other)):
            later = self._entries[again].later
            if later is None:
                continue
            number, outputs = later
            results = {each: self._entries[each].outputs for each in (reference, name)}
            wanted, found = {**results, again: outputs}.values()
            compare, entry = self._comparing(bounds, name), self._entries[name]
            for place, old in enumerate(entry.agreements):
                output = old.output
                if output in draws or output not in wanted or output not in found:
                    continue
                said = f"run {number} of {again} gave something else than the first"
                behind = f", with {again} as the second runner," if again == reference else ""
                where = f"--layers --runs {3 * number}{behind} tells which step is not repeatable"
                new = compare(output, wanted[output], found[output])
                if overall((old.verdict, new.verdict)) != old.verdict:
                    entry.agreements[place] = replace(new, reason=f"{said}; {new.reason}; {where}")
                elif not old.ok and not compare(output, results[again][output], outputs[output]).ok:
                    entry.agreements[place] = replace(old, reason=f"{said}; {old.reason}; {where}")

        for name in others:
            self._judge_others(bounds, reference, name, draws.keys())

    def _judge_others(self, bounds: Bounds, reference: str, name: str, random: Set[str]) -> None:
        """Note outputs that other inputs change on one runner alone, or to something else."""
        entry, pair = self._entries[name], [self._entries[each] for each in (reference, name)]
        outputs = [found.output for found in entry.agreements if found.output not in random]
        for one in pair:
            one.run_others(self._arrays)
        feeds = pair[0].other_inputs
        others = Bounds(self._graph, feeds, Chosen(), self._outputs, self._say)
        for place, old in enumerate(entry.agreements):
            found = [one.both(old.output) for one in pair if old.output in outputs]
            changes = changes_of(found)
            if differ(changes):  # zeros that an overflow leaves are the same whatever is read
                changes = changes_of(found, bounds.overflows(old.output))
            if differ(changes) and self._tell_apart(others, pair, old.output):
                stays, other = (reference, name) if changes[1] else (name, reference)
                said = f"other inputs give the same bits on {stays}, and something else on {other}"
                entry.agreements[place] = replace(old, verdict="MISMATCH", reason=said)
        if were_fed_alike(*pair):
            self._compare_others(others, (reference, name), outputs)

    def _tell_apart(self, others: Bounds, pair: Sequence[Entry], output: str) -> bool:
        """Whether two runners differ for other inputs by more than a decision explains."""
        if not others.decisions or not were_fed_alike(*pair):
            return True
        precisions = pair[0].runner.precision, pair[1].runner.precision
        wanted, found = pair[0].others[output], pair[1].others[output]
        return others.compare(output, wanted, found, precisions).verdict == "MISMATCH"

    def _compare_others(
        self, bounds: Bounds, names: tuple[str, str], outputs: Sequence[str]
    ) -> None:
        """Compare outputs for other inputs; what is no more than rounding needs no float64.

        Where decisions hinge on rounding, runners may differ in them, but none from itself.

        Args:
            bounds: for the other inputs.
            names: of the reference and a runner.
            outputs: those that are compared.
        """
        reference, entry = (self._entries[name] for name in names)
        fresh: dict[str, Mapping[str, Array]] = {}
        precisions = reference.runner.precision, entry.runner.precision
        for place, old in enumerate(entry.agreements):
            a, b = (one.others.get(old.output) for one in (reference, entry))
            if old.output not in outputs or not old.ok or a is None or b is None:
                continue
            if not is_more(old, a, b, precisions):
                continue
            if bounds.decisions:
                new = self._after_first(bounds, names, old.output, fresh)
            else:
                new = bounds.compare(old.output, a, b, precisions)
            if new is not None and new.verdict == "MISMATCH":
                said = f"the same inputs with their elements in reverse order: {new.reason}"
                entry.agreements[place] = replace(new, reason=said)

    def _after_first(
        self,
        bounds: Bounds,
        names: Sequence[str],
        output: str,
        fresh: dict[str, Mapping[str, Array]],
    ) -> Agreement | None:
        """Compare what a runner gives for other inputs after the first ones, and without these.

        Args:
            bounds: for the other inputs.
            names: of the runners.
            output: which of theirs.
            fresh: what runners that are opened again give for the other inputs, as far as known.

        Returns:
            The first one that is wrong; None if none is.
        """
        for name in names:
            entry = self._entries[name]
            if name not in fresh:
                self._say(f"{name}: other inputs first")
                with suppress(TercetError):
                    fresh[name] = self._again(name, self._outputs, entry.other_inputs)
            first, after = fresh.setdefault(name, {}).get(output), entry.others[output]
            if first is None or same_bits(first, after):
                continue
            precisions = entry.runner.precision, entry.runner.precision
            new = bounds.compare(output, first, after, precisions, own=is_backend(name))
            if new.verdict == "MISMATCH":
                said = f"{name} gives something else if it runs on them first"
                return replace(new, reason=f"{said}; {new.reason}")
        return None

    def _again(
        self, name: str, outputs: tuple[str, ...], feeds: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Return some outputs of a runner that is opened once more."""
        runner = self._reopen(name, outputs)
        try:
            return flat(runner.run(feeds))
        finally:
            runner.close()

    def _settle(
        self, bounds: Bounds, pair: Mapping[str, Entry], ways: dict[str, Retrace | str]
    ) -> None:
        """Judge what is not ok once more, each of both runners by its own decisions.

        Args:
            bounds: of all outputs.
            pair: the reference and a runner, by name.
            ways: those that are known, by name; or why there is none.
        """
        *_, entry = pair.values()
        doubts = [found for found in entry.agreements if found.in_doubt]
        if not doubts or not bounds.decisions:
            return
        for name, each in pair.items():
            if name not in ways:
                self._say(f"{name}: float64 with its decisions")
                ways[name] = self._way(name, each, bounds)
        known = {name: way for name in pair if isinstance(way := ways[name], Retrace)}
        if len(known) < len(pair):
            unknown = [f"{name} ({why})" for name in pair if isinstance(why := ways[name], str)]
            text = f"nothing is known of the decisions of {' and '.join(unknown)}"
            judged = [replace(found, reason=f"{found.reason}; {text}") for found in doubts]
        else:
            judged = [settled(found, known) for found in doubts]
            if bounds.allows_bytes and not all(map(is_backend, pair)):
                judged = [
                    found
                    if found.verdict == "inconclusive" and each.verdict == "MISMATCH"
                    else each
                    for found, each in zip(doubts, judged, strict=True)
                ]
        by_output = {each.output: each for each in judged}
        entry.agreements = [by_output.get(each.output, each) for each in entry.agreements]

    def _way(self, name: str, entry: Entry, bounds: Bounds) -> Retrace | str:
        """Return the model in float64 with a runner's decisions, or why there is none."""
        try:
            taken = self._decided(name, entry, bounds)
            if isinstance(taken, str):
                return taken
            return bounds.way(taken, entry.runner.precision)
        except TercetError as error:
            return str(error).partition("\n")[0]

    def _decided(self, name: str, entry: Entry, bounds: Bounds) -> dict[str, Array] | str:
        """Run a runner again for its decisions; return them, or why they say nothing.

        Raises:
            TercetError: it does not give them.
        """
        if isinstance(entry.runner, Saved):
            return "its outputs were saved"
        outputs = self._outputs or tuple(self._graph.outputs)
        names = dict.fromkeys((*outputs, *(value.name for value in bounds.decisions)))
        found = self._again(name, tuple(names), self._arrays)
        repeated = (same(data, found.get(output)) for output, data in entry.outputs.items())
        return found if all(repeated) else "its second run gave something else"
