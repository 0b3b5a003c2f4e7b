"""A backend whose kernels are wrong for some nodes, on the host or on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tercet.backends.numpy import NumpyBackend
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import (
    Backend,
    BuildContext,
    Claim,
    Decline,
    Device,
    Run,
    Step,
    View,
    measured,
)
from tercet.runtime.plan.host import HOST, logical

from .networks import Array

#: Changes a result in place.
Damage = Callable[[Array], None]


class FaultyBackend:
    """Another backend, but for some nodes, whose results are damaged before anybody reads them.

    Args:
        nodes: names of the nodes.
        damage: changes a result in place.
        inner: who computes everything; numpy where None.
    """

    name = "faulty"

    def __init__(self, nodes: Set[str], damage: Damage, inner: Backend | None = None) -> None:
        self._inner = inner or NumpyBackend()
        self._nodes, self._damage = nodes, damage

    @property
    def device(self) -> Device:
        return self._inner.device

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> FaultyBackend:
        return FaultyBackend(self._nodes, self._damage, measured(self._inner, graph, free, options))

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        for answer in self._inner.claim(graph, free, options):
            if isinstance(answer, Claim) and any(map(self._is_faulty, answer.nodes)):
                plain = replace(answer.formats, pitched=frozenset())
                yield replace(answer, build=self._builder(answer), formats=plain)
            else:
                yield answer

    def _is_faulty(self, node: Node) -> bool:
        return not self._nodes.isdisjoint((node.name, *node.origin))

    def _builder(self, claim: Claim) -> Callable[[BuildContext], Step | Decline]:
        def build(site: BuildContext) -> Step | Decline:
            step = claim.build(site)
            return step if isinstance(step, Decline) else _FaultyStep(step, self._damage)

        return build


@dataclass
class _FaultyStep:
    step: Step
    damage: Damage
    capturable: bool = False

    @property
    def kernel(self) -> str:
        return self.step.kernel

    @property
    def scratch(self) -> int:
        return self.step.scratch

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        play, result = self.step.bind(inputs, outputs, scratch), outputs[0]
        if result.device is HOST:
            data = logical(result)

            def run(stream: object) -> None:
                play(stream)
                self.damage(data)

            return run
        device = result.device
        here = View(HOST, device.staging(result.nbytes), 0, result.type, result.format)
        fetch, put = device.copier(here, result), device.copier(result, here)

        def run_there(stream: Any) -> None:
            play(stream)
            fetch(stream)
            stream.synchronize()
            self.damage(logical(here))
            put(stream)

        return run_there


def one_percent(data: Array) -> None:
    data *= data.dtype.type(1.01)


def last_element(data: Array) -> None:
    """As a kernel does whose grid is a block too small."""
    last = tuple(size - 1 for size in data.shape)
    data[last] += data.dtype.type(3)


def tail_is_zero(data: Array) -> None:
    """As a kernel does that forgets the rest behind its vectors of four."""
    row = np.atleast_1d(data)
    row[..., max(0, row.shape[-1] // 4 * 4 - 4) :] = 0


def not_a_number(data: Array) -> None:
    data[(0,) * data.ndim] = np.nan


def half_precision(data: Array) -> None:
    data[...] = data.astype(np.float16)


def exchanged_rows(data: Array) -> None:
    data[...] = data[..., ::-1].copy()


def one_step(data: Array) -> None:
    """As a quantization does that cuts off instead of rounding."""
    data.reshape(-1)[::7] -= data.dtype.type(1)


@dataclass(frozen=True)
class Planted:
    """A node of a network and what its kernel does wrong."""

    network: str
    node: str
    damage: Damage

    def __str__(self) -> str:
        return f"{self.network}-{self.node}-{self.damage.__name__}"
