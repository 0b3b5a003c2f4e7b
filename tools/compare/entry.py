"""What a runner gives, for the inputs and for other ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...runtime.ir.dtypes import FLOATS
from ...runtime.ir.types import Array, HostValue
from ..common.nested import flat
from ..runners.repetition import is_repeated, run_on_others, same_bits
from ..runners.runners import Runner
from ..runners.saved import Saved
from ..verdict.agreement import Agreement
from ..verdict.error_bounds import unmeasured

#: What is no rounding, as a share of the greatest element.
_CLEARLY = 0.01


@dataclass(slots=True)
class Entry:
    """A runner after its first run.

    Attributes:
        runner: the runner.
        load: seconds to load; NaN for saved outputs.
        cold: seconds of the first run; NaN for saved outputs.
        outputs: its outputs.
        agreements: each output against the reference's; empty for the reference.
        error: relative L2 distance of its worst output from float64; None if unknown.
        samples: seconds of later runs.
        runs: number of runs.
        later: the number of the first later run with other bits, from 1, and its outputs; None if
            there is none.
        other_inputs: other inputs that it ran on; empty if there are none.
        others: its outputs for these.
    """

    runner: Runner
    load: float
    cold: float
    outputs: dict[str, Array]
    agreements: list[Agreement] = field(default_factory=list[Agreement])
    error: float | None = None
    samples: list[float] = field(default_factory=list[float])
    runs: int = 1
    later: tuple[int, dict[str, Array]] | None = None
    other_inputs: Mapping[str, HostValue] = field(default_factory=dict[str, HostValue])
    others: dict[str, Array] = field(default_factory=dict[str, Array])

    def run_others(self, feeds: Mapping[str, HostValue]) -> None:
        """Run on other inputs once."""
        if not self.others and not isinstance(self.runner, Saved):
            self.other_inputs, others = run_on_others(self.runner.run, feeds)
            self.others = flat(others)

    def both(self, output: str) -> tuple[Array, Array] | None:
        """Return the floats for the inputs and for other ones; None unless it has both."""
        a, b = self.outputs.get(output), self.others.get(output)
        if a is None or b is None or a.dtype not in FLOATS or not a.size:
            return None
        return a, b

    def note(self, outputs: Mapping[str, HostValue]) -> None:
        """Note the outputs of a later run."""
        self.runs += 1
        if self.later is None and not is_repeated(self.outputs, outputs):
            self.later = self.runs, flat(outputs)


def were_fed_alike(one: Entry, other: Entry) -> bool:
    """Whether two runners took the same other inputs; one may refuse what the other takes."""
    first, second = flat(one.other_inputs), flat(other.other_inputs)
    return bool(first) and all(same(data, second.get(name)) for name, data in first.items())


def differ(changes: Sequence[bool | None]) -> bool:
    """Whether other inputs change what one of two runners gives, and not what the other gives."""
    return sorted(map(str, changes)) == ["False", "True"]


def changes_of(
    found: Sequence[tuple[Array, Array] | None], overflows: Array | None = None
) -> list[bool | None]:
    """Return whether other inputs change, clearly, what each runner gives.

    None is between that and the same bits, and where nothing is known. Only elements count that all
    runners have finite for both inputs: an overflow looks the same whatever the inputs are.

    Args:
        found: what each runner gave for the inputs and for other ones; None if that is not known.
        overflows: elements that do not count either.
    """
    everything = [data for pair in found for data in pair or ()]

    def change(a: Array, b: Array) -> bool | None:
        if a.shape != b.shape:
            return True
        finite = np.logical_and.reduce([np.isfinite(c) for c in everything if c.shape == a.shape])
        if overflows is not None and overflows.shape == a.shape:
            finite &= ~overflows
        if not finite.any():
            return None
        a, b = a[finite], b[finite]
        return False if same_bits(a, b) else is_clear(a, b) or None

    return [None if pair is None else change(*pair) for pair in found]


def is_clear(a: Array, b: Array) -> bool:
    """Whether two results differ by what is no rounding in any format."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    if a.dtype not in FLOATS or not a.size:
        return False
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities are left to other comparisons
        return bool(np.abs(a - b).max() > _CLEARLY * np.abs(a).max())


def is_more(old: Agreement, a: Array, b: Array, precisions: tuple[str, str]) -> bool:
    """Whether two results differ by more, as a share, than the first ones of an output might.

    Args:
        old: that the first ones agree.
        a: what the reference gave later.
        b: what the runner did.
        precisions: compute precision of float32 tensors of both.
    """
    if same_bits(a, b):
        return False
    if is_clear(a, b) or a.dtype not in FLOATS:
        return True
    found = unmeasured(old.output, a, b, precisions)
    return not found.ok and found.max_abs * old.scale > old.tolerance.bound(old.scale) * found.scale


def same(data: Array, other: Array | None) -> bool:
    """Whether two arrays have the same bits; arrays of objects never do."""
    if other is None or data.dtype == object:
        return False
    return data.shape == other.shape and data.tobytes() == other.tobytes()
