"""Several small steps as one: a kernel of one block that does what their kernels would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ....runtime.plan.arena import ALIGNMENT
from ....runtime.plan.backend import PackedConstant, Step, View
from ....runtime.plan.bind import sequence
from ....runtime.plan.joining import Part
from ..recipe.launch import MAX_THREADS, Launch, fill_of
from ..recipe.one_block import MAX_ELEMENTS, BlockLaunch, fits, of, pays
from ..recipe.operands import ceil_div
from . import step as stepping
from .step import KernelStep

if TYPE_CHECKING:
    from .device import CudaStream, DriverDevice


class JoinedStep:
    """A step that consists of others, which run in order.

    Attributes:
        before: launches of the first of them that are too large.
        launch: all others as one.
        kernel: what it consists of.
        scratch: bytes of workspace: of each step by itself.
        fill: see `runtime.backend.Filling`.
    """

    capturable = True

    def __init__(self, device: DriverDevice, parts: Sequence[Part]) -> None:
        self._device, self._parts = device, parts
        self._steps = own_steps(part.step for part in parts)
        first = self._steps[0]
        begin = len(first.launches) - first.small
        self.before = first.launches[:begin]
        self.scratch, self._scratch = 0, list[int]()
        for step in self._steps:
            self._scratch.append(self.scratch)
            self.scratch += ceil_div(step.scratch, ALIGNMENT) * ALIGNMENT
        order = _order(parts, [len(step.launches) for step in self._steps])
        self._order = [each for each in order if each[1] or each[2] >= begin]
        launches = tuple(self._steps[step].launches[i] for _, step, i in self._order)
        self.launch = BlockLaunch(launches, tuple(level for level, *_ in self._order))
        compiler = device.compiler
        self._codes = [compiler.submit(one.source) for one in (*self.before, self.launch)]
        self.kernel = " + ".join(one.title for one in (*self.before, self.launch))
        own = self.launch.block / (compiler.target.processors * MAX_THREADS)
        self.fill = max((own, *(fill_of(one, compiler.target) for one in self.before)))

    @property
    def fewest_launches(self) -> int:
        """Its launches."""
        return len(self.before) + 1

    @property
    def constants(self) -> Iterator[PackedConstant]:
        """The constants that its launches read; see `runtime.backend.Reading`."""
        for step in self._steps:
            yield from step.constants

    @property
    def details(self) -> tuple[str, ...]:
        """The kernel and the nodes of each step, and why they are one."""
        nodes = (" + ".join(node.name for node in step.site.nodes) for step in self._steps)
        each = (f"{s.kernel}: {names}" for s, names in zip(self._steps, nodes, strict=True))
        return (f"started at once, as each has at most {MAX_ELEMENTS} elements", *each)

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Callable[[CudaStream], None]:
        """Load the kernel and return a function that launches it on these addresses."""
        views, found = (*inputs, *outputs), list[list[dict[str, int]]]()
        for part, step, offset in zip(self._parts, self._steps, self._scratch, strict=True):
            reads, writes = (tuple(views[i] for i in at) for at in (part.inputs, part.outputs))
            own = replace(scratch, offset=scratch.offset + offset) if scratch else None
            found.append(step.addresses(reads, writes, own))
        launches, pointers = list[Launch](), dict[str, int]()
        for number, (_, step, i) in enumerate(self._order):
            launch, own = self.launch.parts[number], found[step][i]
            pointers |= {of(number, name): address for name, address in own.items()}
            launches.append(replace(launch, grid=(0, 0, 0)) if launch.does_nothing(own) else launch)
        whole = replace(self.launch, parts=tuple(launches))
        addresses = (*found[0][: len(self.before)], pointers)
        runs = [
            stepping.bind_launch(self._device, launch, code, places)
            for launch, code, places in zip(
                (*self.before, whole), self._codes, addresses, strict=True
            )
        ]
        return runs[0] if len(runs) == 1 else sequence(runs)


def _order(parts: Sequence[Part], counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return level, step and number of each launch, in the order of levels.

    Args:
        parts: the steps.
        counts: of their launches.
    """
    ends, found = list[int](), list[tuple[int, int, int]]()
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        begin = max((ends[i] for i in part.after), default=0)
        ends.append(begin + count)
        found += [(begin + i, number, i) for i in range(count)]
    return sorted(found)


def can_join(steps: Sequence[Step]) -> bool:
    """Whether a kernel of one block can do all but what the first of steps begins with."""
    own = own_steps(steps)
    if len(own) < len(steps) or any(step.small < len(step.launches) for step in own[1:]):
        return False
    return fits(_joined(own))


def gains(steps: Sequence[Step]) -> bool:
    """Whether that kernel stands for more launches than its block takes turns beyond the first."""
    return pays(_joined(own_steps(steps)))


def own_steps(steps: Iterable[Step]) -> list[KernelStep]:
    """Return the steps that can be part of a `JoinedStep`."""
    return [step for step in steps if isinstance(step, KernelStep) and step.small]


def _joined(steps: Sequence[KernelStep]) -> list[Launch]:
    first, *others = steps
    launches = [launch for step in others for launch in step.launches]
    return [*first.launches[-first.small :], *launches]
