"""Checks whether OpenVINO agrees with the reference: nodes are tried before they are claimed.

There is no list of operators that OpenVINO computes correctly. Each signature (operators,
attributes, types, small constants) is compiled once on its own, in a process that may crash
(`rig.py`), run on ordinary and special numbers, and compared with numpy. Verdicts are cached by
version of OpenVINO and CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from hashlib import sha256
from typing import Any

import numpy as np

from ...runtime.base import forks
from ...runtime.base.guard import check_time
from ...runtime.base.record import record
from ...runtime.base.worker import Ended
from ...runtime.errors import FAILURES, TercetError, UnsupportedError
from ...runtime.ir.dtypes import name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import Array, TensorType
from ...runtime.plan.host import HOST
from ...runtime.plan.partition import reads_of, results_of
from ...runtime.plan.weights import WeightStore
from ..numpy import NumpyBackend
from ..numpy.numerics.elementwise import ELEMENTWISE
from ..regions.section import section
from .compiler import RegionCompiler, RegionRefused
from .forms import FORMS, spelled
from .library import gist
from .rig import Ready, set_up
from .samples import samples

#: Constants of at most this many bytes are part of a signature; of larger ones (weights), only
#: dtype and shape are, except for weights of bytes, which are included in full.
SMALL = 1 << 14
#: Tolerances of results: relative to themselves, and to the largest one among them.
RELATIVE, OF_LARGEST = 1e-4, 2e-6
#: Upper limit of that largest number for an elementwise result.
ORDINARY = 1e3
#: Smaller numbers count as zero.
NOTHING = 1e-36
_NUMPY = NumpyBackend()


@record
class TrialVerdict:
    """The outcome of a trial.

    Attributes:
        reason: why the nodes must not be run; empty if they may.
        spelled: whether they are correct only if decomposed (`forms.py`).
    """

    reason: str = ""
    spelled: bool = False


class TrialRunner:
    """Tries nodes and caches the verdicts.

    Args:
        compiler: the compiler, whose cache also holds verdicts.
    """

    def __init__(self, compiler: RegionCompiler) -> None:
        self._compiler = compiler
        self._known: dict[str, TrialVerdict] = {}
        self._lock = forks.lock()

    def node(self, graph: Graph, node: Node, finite: bool) -> TrialVerdict:
        """Return whether a node alone is correct, as it is or decomposed.

        Args:
            graph: the node's.
            node: all shapes static.
            finite: whether only ordinary numbers are tried.
        """
        verdict = self.group(graph, (node,), finite, frozenset((node.name,)))
        if verdict.reason and not finite and _may_be_spelled(node):
            other = self.group(graph, (node,), finite, frozenset())
            if not other.reason:
                return TrialVerdict(spelled=True)
        return verdict

    def group(
        self, graph: Graph, nodes: tuple[Node, ...], finite: bool, plain: frozenset[str]
    ) -> TrialVerdict:
        """Return whether nodes are correct together.

        Args:
            graph: theirs.
            nodes: in topological order.
            finite: whether only ordinary numbers are tried.
            plain: names of nodes that are not decomposed.

        Raises:
            DeviceError: see `RegionCompiler.compile`.
            TimeLimitError: the time is up.
        """
        form = [node.name in plain or type(node.op) not in FORMS for node in nodes]
        key = self._compiler.digest("trial", finite, form, signature(nodes))
        with self._lock:
            known = self._known.get(key) or self._stored(key)
        if known is None:
            check_time()
            known = self._try(graph, nodes, finite, plain)
            self._compiler.store.write(f"{key}.verdict", json.dumps(asdict(known)).encode())
        with self._lock:
            self._known[key] = known
        return known

    def _stored(self, key: str) -> TrialVerdict | None:
        stored = self._compiler.store.read(f"{key}.verdict")
        try:
            return None if stored is None else TrialVerdict(**json.loads(stored))
        except (TypeError, ValueError):  # written by another version
            return None

    def _try(
        self, graph: Graph, nodes: tuple[Node, ...], finite: bool, plain: frozenset[str]
    ) -> TrialVerdict:
        try:
            found = spelled(section(graph, nodes, {}), plain)
            with set_up(self._compiler, found) as ready:
                return TrialVerdict(_difference(graph, nodes, ready, finite))
        except (UnsupportedError, RegionRefused) as error:
            return TrialVerdict(str(error))
        except Ended as error:
            return TrialVerdict(f"OpenVINO crashes in its trial: {error}")


def _may_be_spelled(node: Node) -> bool:
    return type(node.op) in FORMS or bool(node.op.graphs()) or node.op.dense or _is_function(node)


def _is_function(node: Node) -> bool:
    """Whether a node may be expanded to several, some of which can be decomposed."""
    return type(node.op) not in ELEMENTWISE


def signature(nodes: Sequence[Node]) -> str:
    """Return everything that a trial depends on: operators, attributes, types, small constants."""
    places: dict[Value, str] = {}
    lines: list[str] = []
    for node in nodes:
        reads = [_operand(value, places) for value in node.inputs]
        for value in node.outputs:
            places[value] = f"%{len(places)}"
        gives = [f"{places[value]}:{value.type}:{bool(value.consumers)}" for value in node.outputs]
        attributes = [(f.name, getattr(node.op, f.name)) for f in fields(node.op)]
        lines.append(f"{gives} = {node.kind} {attributes} {reads}")
    return "\n".join(lines)


def _operand(value: Value | None, places: dict[Value, str]) -> str:
    if value is None:
        return "_"
    if value in places:
        return places[value]
    places[value] = f"%{len(places)}"
    type_ = value.tensor
    text = f"{places[value]}:{name_of(type_.dtype)}{list(type_.dims)}"
    data = value.data
    if data is None:
        return text
    if data.nbytes <= SMALL:
        return f"{text}={data.tobytes().hex()}"
    if data.dtype.itemsize == 1:  # on some CPUs sums of two products saturate, if these are large
        return f"{text}={sha256(data.tobytes()).hexdigest()}"
    is_finite = data.dtype.kind != "f" or bool(np.isfinite(data).all())
    return f"{text}={'weights' if is_finite else 'weights that are not finite'}"


# ── trying ───────────────────────────────────────────────────────────────────────────────────────


def _difference(graph: Graph, nodes: tuple[Node, ...], ready: Ready, finite: bool) -> str:
    """Return how OpenVINO's results differ from the reference; empty if they agree."""
    reads, results = reads_of(nodes), results_of(graph, nodes)
    elementwise = all(type(node.op) in ELEMENTWISE for node in nodes)
    arrays = ready.arrays
    for sample in samples([value.tensor for value in reads], elementwise, finite):
        check_time()
        expected = _reference(nodes, dict(zip(reads, sample, strict=True)))
        if expected is None:  # nor would OpenVINO be safe: it need not look at indices
            return "its valid inputs depend on the data, which OpenVINO does not check"
        for value, data in zip(reads, sample, strict=True):
            np.copyto(arrays[value.name], data)
        try:
            ready.run()
        except RuntimeError as error:
            return f"OpenVINO fails on valid values: {gist(error)}"
        for value in results:
            reason = differs(arrays[value.name], expected[value], elementwise)
            if reason:
                return f"OpenVINO's result differs from the reference: {reason}"
    return ""


def _reference(nodes: Sequence[Node], values: dict[Value, Array]) -> Mapping[Value, Array] | None:
    """Return the results of numpy; None if it refuses the data.

    Weights are inputs here, so that nothing is packed, and convolutions use no algorithm that
    spreads a NaN.
    """
    for node in nodes:
        data = [None if value is None else _data(value, values) for value in node.inputs]
        graph = Graph(node.kind)
        inputs = [None if each is None else _operand_of(graph, each) for each in data]
        alone = graph.insert(node.op, inputs, len(node.outputs))
        try:
            found = _NUMPY.evaluate(alone, data, WeightStore(HOST))
        except (*FAILURES, TercetError):
            return None
        made = [each for each in found if isinstance(each, np.ndarray)]
        values.update(zip(node.outputs, made, strict=True))
    return values


def _operand_of(graph: Graph, data: Array) -> Value:
    if data.nbytes <= SMALL:
        return graph.constant(data)
    return graph.add_input(graph.fresh_name("x"), TensorType(data.dtype, data.shape))


def _data(value: Value, values: Mapping[Value, Array]) -> Array:
    return values[value] if value.data is None else value.data


def differs(got: Array, want: Array, elementwise: bool) -> str:
    """Return the first difference between a result and the reference; empty if there is none.

    Args:
        got: the result.
        want: the reference.
        elementwise: whether elements are independent of each other.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    with np.errstate(all="ignore"):
        wrong = ~(_close(got, want, elementwise) if want.dtype.kind == "f" else got == want)
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong.reshape(-1)))
    return f"{got.reshape(-1)[at]}, not {want.reshape(-1)[at]}"


def _close(got: Array, want: Array, elementwise: bool) -> Any:
    ours, theirs = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(theirs)
    largest = float(np.abs(theirs[finite]).max(initial=0.0))
    allowed = NOTHING + OF_LARGEST * (min(largest, ORDINARY) if elementwise else largest)
    is_near = np.abs(ours - theirs) <= RELATIVE * np.abs(theirs) + allowed
    return np.where(finite, is_near, (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
