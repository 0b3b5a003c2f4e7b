"""Several small steps as one: a kernel of one block that does what their kernels would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ....runtime.plan.arena import ALIGNMENT
from ....runtime.plan.backend import PackedConstant, Part, Step, View
from ..recipe.launch import MAX_THREADS, Launch
from ..recipe.one_block import BlockLaunch, fits, of
from ..recipe.operands import ceil_div
from . import step as stepping
from .step import KernelStep

if TYPE_CHECKING:
    from .device import CudaStream, DriverDevice


class JoinedStep:
    """A step that consists of others, which run in order.

    Attributes:
        launch: its only launch.
        kernel: what it consists of.
        scratch: bytes of workspace: of each step by itself.
        fill: see `runtime.backend.Filling`.
    """

    capturable, fewest_launches = True, 1

    def __init__(self, device: DriverDevice, parts: Sequence[Part]) -> None:
        self._device, self._parts = device, parts
        self._steps = own_steps(part.step for part in parts)
        self.scratch, self._scratch = 0, list[int]()
        for step in self._steps:
            self._scratch.append(self.scratch)
            self.scratch += ceil_div(step.scratch, ALIGNMENT) * ALIGNMENT
        ends = list[int]()
        placed = list[tuple[int, int, int]]()  # level, step, launch
        for number, (part, step) in enumerate(zip(parts, self._steps, strict=True)):
            begin = max((ends[i] for i in part.after), default=0)
            ends.append(begin + len(step.launches))
            placed += [(begin + i, number, i) for i in range(len(step.launches))]
        self._order = sorted(placed)
        launches = tuple(self._steps[step].launches[i] for _, step, i in self._order)
        self.launch = BlockLaunch(launches, tuple(level for level, *_ in self._order))
        self._code = device.compiler.submit(self.launch.source)
        self.kernel = self.launch.title
        target = device.compiler.target
        self.fill = self.launch.block / (target.processors * MAX_THREADS)

    @property
    def constants(self) -> Iterator[PackedConstant]:
        """The constants that its launches read; see `runtime.backend.Reading`."""
        for step in self._steps:
            yield from step.constants

    @property
    def details(self) -> tuple[str, ...]:
        """The kernel and the nodes of each step."""
        nodes = (" + ".join(node.name for node in step.site.nodes) for step in self._steps)
        return tuple(f"{s.kernel}: {names}" for s, names in zip(self._steps, nodes, strict=True))

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
        launch = replace(self.launch, parts=tuple(launches))
        return stepping.bind_launch(self._device, launch, self._code, pointers)


def can_join(steps: Sequence[Step]) -> bool:
    """Whether a kernel of one block can do what steps do."""
    own = own_steps(steps)
    return len(own) == len(steps) and fits([one for step in own for one in step.launches])


def own_steps(steps: Iterable[Step]) -> list[KernelStep]:
    """Return the steps that can be part of a `JoinedStep`."""
    return [step for step in steps if isinstance(step, KernelStep) and step.is_small]
