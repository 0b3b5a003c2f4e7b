"""A device that decides on control flow, as a GPU does in its graphs; a backend for any node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ops.elementwise import Add, Mul, Relu
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import BuildContext, Claim, Decline, Run, Step, Stream, View
from tercet.runtime.plan.device_control import Rounds

from ..plan.fakes import FakeDevice, elements

IN_PLACE = (Add, Mul, Relu)


class DecidingDevice(FakeDevice):
    """Counts the decisions that it has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions = FakeDecisions()


class FakeDecisions:
    def __init__(self) -> None:
        self.taken = 0

    def refusal(self, step: Step) -> str:
        return "not in a body" if step.kernel == "banned" else ""

    def choose(self, cond: View, then: Run, other: Run) -> Run:
        def run(stream: Any) -> None:
            self.taken += 1
            stream.touch((cond,), ())
            (then if elements(cond).item() else other)(stream)

        return run

    def repeat(self, body: Run, rounds: Rounds) -> Run:
        counter = elements(rounds.counter)

        def goes_on(stream: Any, going: View | None) -> bool:
            self.taken += 1
            count = rounds.count
            reads = [view for view in (count, going) if isinstance(view, View)]
            stream.touch(reads, (rounds.counter,))
            maximum = elements(count).item() if isinstance(count, View) else count
            holds = going is None or elements(going).item()
            return bool(holds) and (maximum is None or counter[0] < maximum)

        def run(stream: Any) -> None:
            counter[0] = 0
            going = goes_on(stream, rounds.first)
            while going:
                body(stream)
                counter[0] += 1
                going = goes_on(stream, rounds.going)

        def run_unrolled(stream: Any) -> None:
            assert (rounds.first, rounds.going) == (None, None)
            assert isinstance(rounds.count, int)
            self.taken += 1
            for counter[0] in range(rounds.count):
                stream.touch((), (rounds.counter,) if rounds.is_read else ())
                body(stream)

        return run_unrolled if rounds.is_unrolled else run

    def take(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        return _element(dst, src, src, axis, counter, backward)

    def put(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        return _element(dst, src, dst, axis, counter, backward)


def _element(
    dst: View, src: View, whole: View, axis: int, counter: View, backward: bool
) -> Callable[[Stream], None]:
    def run(stream: Any) -> None:
        number = int(elements(counter)[0])
        assert 0 <= number < whole.type.dims[axis]
        stream.touch((src, counter), (dst,))
        place = (slice(None),) * axis + (-1 - number if backward else number, ...)
        if whole is src:
            elements(dst)[...] = elements(src)[place]
        else:
            elements(dst)[place] = elements(src)

    return run


@dataclass
class AnyStep:
    """One node by numpy, with rubbish in its scratch memory and in results that it begins."""

    node: Node
    site: BuildContext
    scratch: int = 300
    capturable: bool = True
    kernel: str = "any"
    fill: float = 0.5

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        assert scratch is not None
        given = dict(zip(self.site.inputs, inputs, strict=True))
        wanted = dict(zip(self.site.outputs, outputs, strict=True))

        def run(stream: Any) -> None:
            stream.touch(inputs, (*outputs, scratch))
            for view in () if isinstance(self.node.op, IN_PLACE) else outputs:
                elements(view)[...] = 1
            arrays = [
                None
                if value is None
                else value.data
                if value.data is not None
                else elements(given[value]).copy()
                for value in self.node.inputs
            ]
            elements(scratch)[:] = 0xA5
            results = evaluate(self.node.op, arrays, len(self.node.outputs))
            assert results is not None
            for value, data in zip(self.node.outputs, results, strict=True):
                if value in wanted:
                    elements(wanted[value])[...] = data

        return run


class AnyBackend:
    """Claims every node alone; sums, products and Relu may overwrite what they read."""

    name = "any"

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.banned: set[str] = set()
        self.declined: set[str] = set()

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        for node in graph.nodes:
            if node not in free or node.op.view:
                continue
            if node.kind in self.declined:
                yield Decline(node, "never heard of it")
                continue
            type_ = node.output.type
            same = [v for v in node.distinct_reads if v.type == type_ and not v.is_constant]
            able = isinstance(node.op, IN_PLACE)
            pairs = tuple((node.output, value) for value in same if able)
            yield Claim((node,), self._builder(node), in_place=pairs)

    def _builder(self, node: Node) -> Callable[[BuildContext], Step]:
        kernel = "banned" if node.kind in self.banned else "any"
        return lambda site: AnyStep(node, site, kernel=kernel)
