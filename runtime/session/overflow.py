"""Infinities and NaN caused by reduced precision: detected in results, traced to their node.

`to_half` keeps in float32 what would overflow, as far as the graph alone shows. Actual data are
checked here: when a result copied to the host is not finite for the first time, the model runs once
more, node by node on the host, in float32 and in its own precision. A host may need minutes for
what takes a GPU milliseconds, so this is given up after some seconds, which the warning says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from threading import Lock
from time import monotonic

import numpy as np

from ..base.warned import warn
from ..errors import PrecisionWarning
from ..ir.dtypes import FLOATS
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.types import Array, HostValue
from ..ops.elementwise import Cast
from ..options import Options
from ..passes import SYMBOLIC_PASSES, Evaluate, Rewrites, optimise

#: Maximum number of traced runs per model; non-finite results may be correct.
_TRACED = 3
#: Seconds after which such a run is given up.
PATIENCE = 10.0


@dataclass(slots=True)
class Watch:
    """Detects results that half precision made infinite or NaN, and warns of the first such node.

    Attributes:
        imported: the model as imported.
        options: of the model.
        evaluate: runs one operator on arrays.
        file: the model's path, or None.
        patience: seconds after which the run on the host is given up.
    """

    imported: Graph
    options: Options
    evaluate: Evaluate
    file: str | None = None
    patience: float = PATIENCE
    _left: int = _TRACED
    _lock: Lock = field(default_factory=Lock, repr=False)

    def look(
        self,
        results: Mapping[str, HostValue],
        feeds: Mapping[str, HostValue],
        narrow: Graph,
        finite: Set[str] = frozenset(),
    ) -> None:
        """Warn with PrecisionWarning if results are not finite, but would be in float32.

        Args:
            results: of a run, on the host.
            feeds: its inputs, on the host.
            narrow: the graph that ran, with symbolic shapes.
            finite: names of results that are known to be finite.
        """
        if self._left <= 0:
            return
        asked = (name for name in results if name not in finite)
        spoilt = [name for name in asked if not _is_finite(results[name])]
        if not spoilt:
            return
        with self._lock:
            if self._left <= 0:
                return
            self._left -= 1
        try:
            message = self._trace(spoilt, feeds, narrow)
        except TimeoutError:
            message = self._unknown(spoilt[0])
        if message:
            self._left = 0
            warn(message, PrecisionWarning)

    def _trace(self, spoilt: list[str], feeds: Mapping[str, HostValue], narrow: Graph) -> str:
        outputs = narrow.outputs
        values = {n: self.imported.outputs.get(n) or self.imported.values[n] for n in outputs}
        wide = self.imported.extract(values, feeds)
        options = replace(self.options, precision="float32")
        optimise(wide, SYMBOLIC_PASSES, options, self.evaluate, Rewrites())
        right: dict[str, bool] = {}
        ends: dict[Value, bool] = {}
        end = monotonic() + self.patience
        for node, found in node_results(wide, feeds, self.evaluate, end):
            right[node.name] = all(map(_is_finite, found))
            ends.update(zip(node.outputs, map(_is_finite, found), strict=False))
        lost = [name for name in spoilt if ends.get(wide.outputs[name], False)]
        if not lost:
            return ""
        for node, found in node_results(narrow, feeds, self.evaluate, end):
            if all(map(_is_finite, found)):
                continue
            if right.get(node.name, isinstance(node.op, Cast)):
                return self._message(node, lost[0], is_new=node.name not in right)
        return self._message(None, lost[0])

    @property
    def _start(self) -> str:
        """How a message begins."""
        return f"{self.file}: in" if self.file else "in"

    @property
    def _search(self) -> str:
        """What finds all nodes that overflow."""
        options = f"--precision {self.options.precision} --tolerance 0.01"
        return f"`tercet bisect {self.file or 'MODEL'} {options}` finds all nodes"

    def _unknown(self, output: str) -> str:
        """Return what is known after a run on the host that was given up."""
        return (
            f"{self._start} {self.options.precision}, output '{output}' has infinities or NaN. "
            f"Whether it would have them in float32 is unknown: a run on the host was given up "
            f"after {self.patience:g} s; {self._search}"
        )

    def _message(self, node: Node | None, output: str, *, is_new: bool = False) -> str:
        precision, start, search = self.options.precision, self._start, self._search
        where = f"output '{output}' has infinities or NaN that it would not have in float32"
        if node is None:
            return f"{start} {precision}, {where}; {search}"
        what = f"node '{node.name}' ({node.kind}) computes"
        if is_new:  # a Cast before the first node in half precision
            source = node.inputs[0].name if node.inputs[0] is not None else ""
            node = next(iter(node.output.consumers), node)
            what = f"node '{node.name}' ({node.kind}) reads '{source}', which has"
        names = node.origin or (node.name,)
        flags = " ".join(f"--keep-float32 {name}" for name in names)
        kept = ", ".join(repr(name) for name in names)
        return (
            f"{start} {precision}, {where}: {what} numbers beyond {precision}. Keep it float32 "
            f"with {flags} (keep_float32=[{kept}] in Python); {search}"
        )


def _is_finite(data: HostValue) -> bool:
    """Whether no element is infinite or NaN."""
    if not isinstance(data, np.ndarray) or data.dtype not in FLOATS:
        return True
    if data.dtype == np.float32 and data.flags.c_contiguous:
        flat = data.reshape(-1)
        with np.errstate(all="ignore"):
            if np.isfinite(np.dot(flat, flat)):  # the fastest check; it may overflow itself
                return True
    return bool(np.isfinite(data).all())


def node_results(
    graph: Graph, feeds: Mapping[str, HostValue], evaluate: Evaluate, end: float
) -> Iterator[tuple[Node, Sequence[Array]]]:
    """Yield the results of every node, as far as nodes can be run one by one.

    Raises:
        TimeoutError: there are nodes left at this time.
    """
    known: dict[Value, HostValue] = {value: feeds[value.name] for value in graph.inputs}
    left = {value: len(value.consumers) for node in graph.nodes for value in node.outputs}
    for node in graph.nodes:
        if monotonic() >= end:
            raise TimeoutError
        inputs = [None if v is None else known.get(v, v.data) for v in node.inputs]
        found = _run(node.op, inputs, len(node.outputs), evaluate)
        if found is None:
            return
        yield node, found
        known.update(zip(node.outputs, found, strict=False))
        for value in node.distinct_reads:
            left[value] = left.get(value, 0) - 1
            if left[value] == 0:
                known.pop(value, None)


def _run(
    op: Op, inputs: Sequence[HostValue], count: int, evaluate: Evaluate
) -> Sequence[Array] | None:
    arrays = [data for data in inputs if data is None or isinstance(data, np.ndarray)]
    if len(arrays) != len(inputs) or op.graphs():
        return None
    return evaluate(op, arrays, count)
