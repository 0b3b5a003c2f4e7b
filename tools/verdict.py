"""Is a difference rounding, or is it wrong? Bounds that come from float64 runs, not from a table.

Three things are measured on the very inputs that the contestants get. *Noise*: how far the
reference's result is from that of the same graph in float64. *Spread*: how far the float64 result
moves if every input and every constant changes by half a unit in its last place, each up or down
at random. And half a unit of the greatest magnitude. `SLACK` times their sum is what another order
of summation, another exponential or a fused step may cost; a wrong attribute costs thousands. Where
a step adds up n terms one after the other, the last two grow with the root of n.

Integers, booleans and strings have to be equal, but where a change of half a unit in the inputs
changes them, too: where a number lies between two steps of a quantization, or two are compared that
are equal but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from ..runtime.dtypes import COMPLEX, FLOAT8S, FLOATS, DType, bfloat16, float16, float32
from ..runtime.errors import TercetError
from ..runtime.ir import Graph
from ..runtime.types import Array, HostValue, TensorType
from .agreement import Agreement, Tolerance, agreement, missing, tolerance_for
from .nested import flat
from .oracle import Oracle

SLACK = 16.0
#: Where such a bound comes from; see `Tolerance.origin`.
MEASURED = "float64"
#: Half a unit in the last place, as a share of the number.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11}
UNIT["bfloat16"] = 2.0**-8
_SEEDS = (1, 2)
#: Functions that end at one: libraries compute small results from numbers of that size.
_BOUNDED = {"Sigmoid", "Tanh", "Softmax", "Erf", "Sin", "Cos"}

Arrays = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Finding:
    """One tensor of a contestant against the reference's.

    Attributes:
        agreement: by how much they differ, and how much is allowed.
        excess: the difference by what is allowed; infinite where nothing is, or where types differ.
    """

    agreement: Agreement
    excess: float

    @property
    def ok(self) -> bool:
        """Whether the difference is no more than rounding."""
        return self.agreement.ok

    @property
    def verdict(self) -> str:
        """``equal``, ``within rounding`` or ``wrong``."""
        if not self.ok:
            return "wrong"
        return "equal" if self.agreement.max_abs == 0 else "within rounding"

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**self.agreement.to_dict(), "verdict": self.verdict, "excess": self.excess}


class Judge:
    """Knows what a graph's results may be on some inputs.

    Args:
        graph: unoptimised, or as both contestants run it; stays as it is.
        feeds: a value for every input.
        precision: arithmetic of float32 tensors; the coarser one of the contestants'.
        terms: how many terms are added up in one step, where it is a step.
    """

    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, HostValue],
        precision: str = "float32",
        terms: int = 1,
    ) -> None:
        self._growth = 1 + sqrt(terms) / 4
        self._unit = _unit(graph, precision)
        producers = {name: value.producer for name, value in graph.outputs.items()}
        self._bounded = {name for name, node in producers.items() if node and node.kind in _BOUNDED}
        self._exact = self._run(graph, feeds, None)
        shaken = [self._run(graph, feeds, seed) for seed in _SEEDS] if self._exact else []
        self._shaken = [found for found in shaken if found]

    def _run(self, graph: Graph, feeds: Mapping[str, HostValue], seed: int | None) -> Arrays:
        """Return the float64 results by name; nothing where there are none."""
        shake = None if seed is None else _Shake(seed, self._unit)
        try:
            oracle = Oracle(graph, shake)
            try:
                return flat(oracle.run(dict(feeds)))
            finally:
                oracle.close()
        except TercetError:
            return {}

    def error(self, name: str, found: Array) -> float | None:
        """Return the relative L2 distance of an output from float64; None where it is not known."""
        exact = self._exact.get(name)
        if exact is None or exact.shape != found.shape or exact.dtype == object:
            return None
        apart, whole = float(np.linalg.norm(_distance(found, exact))), float(np.linalg.norm(exact))
        return apart / whole if whole else apart

    def outputs(
        self, reference: Mapping[str, HostValue], found: Mapping[str, HostValue]
    ) -> list[Agreement]:
        """Compare all outputs; lists and dictionaries element by element."""
        return [finding.agreement for finding in self.findings(reference, found)]

    def findings(
        self,
        reference: Mapping[str, HostValue],
        found: Mapping[str, HostValue],
        *,
        detailed: bool = False,
    ) -> list[Finding]:
        """Compare all outputs; lists and dictionaries element by element."""
        ours, theirs = flat(reference), flat(found)
        names = list(dict.fromkeys([*ours, *theirs]))
        return [self._finding(name, ours.get(name), theirs.get(name), detailed) for name in names]

    def _finding(
        self, name: str, reference: Array | None, found: Array | None, detailed: bool
    ) -> Finding:
        if reference is None or found is None:
            side = "the reference" if reference is None else "the contestant"
            present = reference if reference is not None else found
            return Finding(missing(name, present, side), float("inf"))
        tolerance = self.tolerance(name, reference, found)
        result = agreement(name, reference, found, tolerance, detailed=detailed)
        return Finding(result, _excess(result))

    def tolerance(
        self, name: str, reference: Array, found: Array, *, mutual: bool = False
    ) -> Tolerance:
        """Return by how much an output may differ; that of its dtype where float64 tells nothing.

        Args:
            name: the output.
            reference: one of the two that are compared.
            found: the other one.
            mutual: whether either may be wrong: then the noise is that of the more exact one.
        """
        exact = self._exact.get(name)
        if exact is None or exact.shape != reference.shape or found.shape != reference.shape:
            return tolerance_for(reference.dtype)
        moved = [s[name] for s in self._shaken if name in s and s[name].shape == exact.shape]
        if reference.dtype not in FLOATS | COMPLEX | FLOAT8S:
            return _discrete(reference, found, exact, moved)
        scale = max(_most(np.abs(exact)), float(name in self._bounded))
        noise = _most(_distance(reference, exact))
        if mutual:
            noise = min(noise, _most(_distance(found, exact)))
        spread = max((_most(_distance(other, exact)) for other in moved), default=0.0)
        unit = max(self._unit, _own_unit(reference.dtype))
        tiny = tolerance_for(reference.dtype).absolute
        growing = self._growth * (spread + unit * scale + tiny)
        return Tolerance(0.0, SLACK * (noise + growing), MEASURED)


class _Shake:
    """Moves every number by at most half a unit in its last place, up or down at random."""

    def __init__(self, seed: int, unit: float) -> None:
        self._generator = np.random.default_rng(seed)
        self._unit = unit

    def __call__(self, data: Array) -> Array:
        wide = data.astype(np.float64)
        return wide * (1 + self._unit * self._generator.uniform(-1, 1, data.shape))


def _unit(graph: Graph, precision: str) -> float:
    """Return half a unit in the last place of the coarsest arithmetic in a graph."""
    narrow = {
        value.type.dtype for value in graph.values.values() if isinstance(value.type, TensorType)
    } & {float16, bfloat16, float32}
    names = [precision if dtype == float32 else dtype.name for dtype in narrow]
    return max((UNIT[name] for name in names), default=UNIT["float64"])


def _own_unit(dtype: DType) -> float:
    if dtype in FLOAT8S:
        return 2.0**-3
    return UNIT.get(
        {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name), 0
    )


def _distance(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.abs(np.subtract(a, b, dtype=np.result_type(b, np.float64)))


def _most(data: Array) -> float:
    """Return the greatest finite element, 0 where there is none."""
    return float(np.max(data, where=np.isfinite(data), initial=0.0))


def _discrete(reference: Array, found: Array, exact: Array, moved: Sequence[Array]) -> Tolerance:
    """Allow a difference only where every element that differs is in doubt."""
    doubtful = np.zeros(reference.shape, bool) | (reference != exact)
    for other in moved:
        doubtful |= other != exact
    apart = reference != found
    if not apart.any() or (apart & ~doubtful).any() or reference.dtype == object:
        return Tolerance(0.0, 0.0, MEASURED)
    wide = np.abs(reference.astype(np.float64) - found.astype(np.float64))
    return Tolerance(0.0, float(wide.max()), MEASURED)


def _excess(result: Agreement) -> float:
    if result.max_abs == 0 and result.ok:
        return 0.0
    allowed = result.tolerance.bound(result.scale)
    if result.misplaced or result.max_abs != result.max_abs or not allowed:
        return float("inf")
    return result.max_abs / allowed
