"""Several small steps as one: a kernel of one block that does what their kernels would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ....runtime.plan.backend import PackedConstant, Part, Step, View
from ..recipe.launch import MAX_THREADS, Launch
from ..recipe.one_block import BlockLaunch, fits, of
from . import step as stepping
from .step import KernelStep

if TYPE_CHECKING:
    from .device import CudaStream, DriverDevice


class JoinedStep:
    """A step that consists of others, which run in order.

    Attributes:
        launch: its only launch.
        kernel: what it consists of.
        scratch: bytes that its parts use in turn.
        fill: see `runtime.backend.Filling`.
    """

    capturable = True
    fewest_launches = 1

    def __init__(self, device: DriverDevice, parts: Sequence[Part]) -> None:
        self._device, self._parts = device, tuple(parts)
        self._steps = _own(part.step for part in parts)
        self.launch = BlockLaunch(tuple(one for step in self._steps for one in step.launches))
        self._code = device.compiler.submit(self.launch.source)
        self.kernel = self.launch.title
        self.scratch = max(step.scratch for step in self._steps)
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
        views, launches, pointers = (*inputs, *outputs), list[Launch](), dict[str, int]()
        for part, step in zip(self._parts, self._steps, strict=True):
            reads, writes = (tuple(views[i] for i in at) for at in (part.inputs, part.outputs))
            found = step.addresses(reads, writes, scratch)
            for one, own in zip(step.launches, found, strict=True):
                pointers |= {of(len(launches), name): place for name, place in own.items()}
                launches.append(replace(one, grid=(0, 0, 0)) if one.does_nothing(own) else one)
        launch = BlockLaunch(tuple(launches))
        return stepping.bind_launch(self._device, launch, self._code, pointers)


def can_join(steps: Sequence[Step]) -> bool:
    """Whether a kernel of one block can do what steps do."""
    own = _own(steps)
    return len(own) == len(steps) and fits([one for step in own for one in step.launches])


def _own(steps: Iterable[Step]) -> list[KernelStep]:
    return [step for step in steps if isinstance(step, KernelStep) and step.is_small]
