"""By how much runners may differ: measured in float64, or as a user says for each output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...runtime.base.arguments import refused, unfit
from ...runtime.errors import InputError, did_you_mean
from ...runtime.ir.dtypes import BY_ONNX, name_of
from ...runtime.ir.graph import Graph, Value
from ...runtime.ir.types import Array, HostValue
from ..common.console import Say, silent
from ..common.tensors import tensor
from .agreement import RELATIVE, Agreement, agreement, tolerance_for
from .error_bounds import Judge, unmeasured
from .operators import allows_bytes, ancestries, decisions
from .retrace import Retrace

#: Tolerances by name of an output or a dtype; "" for all that are not named.
ByName = Mapping[str, float]

_EVERYTHING = ""


def parse_tolerances(argument: str, texts: Sequence[str] | None) -> ByName | None:
    """Return what a user gave: ``1e-3`` for all, ``scores=1e-3``, ``float16=1e-2``."""
    if texts is None:
        return None
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError as error:
            expected = "a number, such as 1e-3, or NAME=1e-3 for an output or a dtype"
            raise refused(argument, text, expected) from error
        if not value >= 0:
            raise refused(argument, text, "a number >= 0")
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a user gave for all outputs, for those of a dtype, or for one of them.

    Attributes:
        relative: shares of max |reference|.
        absolute: what is allowed in addition.
    """

    relative: ByName = field(default_factory=dict[str, float])
    absolute: ByName = field(default_factory=dict[str, float])

    @classmethod
    def of(cls, rtol: float | ByName | None, atol: float | ByName | None) -> Chosen:
        """Take numbers for all outputs, or numbers by name."""
        pairs = ({_EVERYTHING: v} if isinstance(v, int | float) else v or {} for v in (rtol, atol))
        return cls(*pairs)

    def check(self, outputs: Iterable[str]) -> None:
        """Raise InputError for a name that is neither a dtype nor an output."""
        known = [*outputs, *(name_of(dtype) for dtype in BY_ONNX.values())]
        for argument, given in (("rtol", self.relative), ("atol", self.absolute)):
            for name, value in given.items():
                if name and name not in known:
                    reason = f"there is no output or dtype '{name}'{did_you_mean(name, known)}"
                    raise unfit(InputError, argument, reason, {name: value})

    def pick(self, output: str, data: Array) -> tuple[float | None, float | None]:
        """Return both tolerances of an output, None for one that was not given."""
        names = (output, name_of(data.dtype), _EVERYTHING)
        relative, absolute = (
            next((given[name] for name in names if name in given), None)
            for given in (self.relative, self.absolute)
        )
        return relative, absolute


class Bounds:
    """Knows by how much outputs may differ; runs the graph in float64 when first needed.

    Args:
        graph: as the file has it.
        feeds: a value for every input.
        chosen: what a user gave, which comes first.
        outputs: tensors that are compared, intermediate ones too; the graph's outputs where empty.
        say: called with a description of each stage.
    """

    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, HostValue],
        chosen: Chosen,
        outputs: Sequence[str] = (),
        say: Say = silent,
    ) -> None:
        self._graph, self._feeds = graph, feeds
        self._chosen, self._say = chosen, say
        if outputs:
            self._graph = graph.clone()
            self._graph.set_outputs({name: tensor(self._graph, name) for name in outputs})
        self._judges: dict[tuple[str, bool], Judge] = {}
        chosen.check(self._graph.outputs)

    def compare(
        self,
        output: str,
        reference: Array,
        found: Array,
        precisions: tuple[str, str],
        *,
        own: bool = False,
        measured: bool = True,
    ) -> Agreement:
        """Compare an output of two runners.

        Args:
            output: its name.
            reference: what the first one computed.
            found: what the other one did.
            precisions: arithmetic of their float32 tensors.
            own: whether both are tercet's.
            measured: whether the graph may run in float64; without, next to nothing may differ.
        """
        given = self._chosen.pick(output, reference)
        if given != (None, None):
            tolerance = tolerance_for(reference.dtype, precisions, *given)
            return agreement(output, reference, found, tolerance, detailed=True)
        if not measured:
            return unmeasured(output, reference, found, precisions)
        judge = self.judge(precisions, own=own)
        return judge.agreement(output, reference, found, detailed=True)

    @cached_property
    def decisions(self) -> list[Value]:
        """What noise may flip, by which a runner's way can be told; empty where it cannot."""
        return decisions(self._graph, ancestries(self._graph, "float32")) or []

    @cached_property
    def allows_bytes(self) -> bool:
        """Whether a runner may round operands to eight bits, which no way in float64 does."""
        return allows_bytes(self._graph)

    def way(self, taken: Mapping[str, Array], precision: str) -> Retrace:
        """Return the model in float64 on the way of a runner.

        Args:
            taken: the runner's outputs and `decisions`, by name.
            precision: compute precision of its float32 tensors.

        Raises:
            TercetError: the graph does not run in float64.
        """
        return Retrace(self._graph, self._feeds, precision, self.decisions, taken)

    def overflows(self, output: str) -> Array | None:
        """Return which elements change where numbers beyond their dtype's range are infinite.

        None if that is not known.
        """
        judge = self.judge(("float32",), own=False)
        exact, stored = judge.exact.get(output), judge.overflown.get(output)
        if exact is None or stored is None or exact.shape != stored.shape:
            return None
        return (exact != stored) & ((exact == exact) | (stored == stored))

    def error(self, outputs: Mapping[str, Array]) -> float | None:
        """Return the maximum relative L2 distance from float64; None if that was not run."""
        judge = next(iter(self._judges.values()), None)
        if judge is None:
            return None
        errors = [judge.error(name, data) for name, data in outputs.items()]
        return max((error for error in errors if error is not None), default=None)

    def judge(self, precisions: Sequence[str], *, own: bool) -> Judge:
        """Return what measures how far rounding takes outputs.

        Args:
            precisions: arithmetic of the runners' float32 tensors; the coarsest counts.
            own: whether all runners are tercet's.
        """
        coarsest = max(precisions, key=lambda name: RELATIVE.get(name, 0.0))
        key = coarsest, own and self.allows_bytes
        if key not in self._judges:
            self._say("running the model in float64")
            self._judges[key] = Judge(self._graph, self._feeds, coarsest, own=own)
        return self._judges[key]
