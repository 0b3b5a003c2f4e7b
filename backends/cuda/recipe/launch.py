"""Recipes: the launches of a step as plain data.

A recipe is made without a GPU, can be compared and printed, and is complete: file and entry point,
types and constants, the grid, and the arguments by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from math import prod
from typing import Any, cast

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.graph import Value
from .arguments import arranged, check_grid
from .operands import Argument, Arguments, Operand, Tensor, TensorMap, ceil_div
from .source import C_TYPES, KernelSource, begins_early, is_reversible
from .targets import Target


@record
class Launch:
    """One kernel launch; raises TooLarge if CUDA could not launch it.

    Attributes:
        file: the file in `kernels/`.
        entry: its ``extern "C"`` function.
        grid: blocks along x, y and z; nothing is launched if one is 0.
        block: threads per block.
        args: arguments by parameter name, in the order of the parameters; see `Given` for their
            forms. Raises ArgumentError unless they match.
        types: element type by C++ alias, in pairs.
        constants: compile-time constants by name, in pairs.
        code: generated functions and macros used by the file.
        shared: dynamic shared memory in bytes.
        concurrent: whether its blocks, without shared memory, should start beside those of kernels
            that have some, rather than find a large first-level cache; see `prefers_shared`.
        of_images: whether its step is a convolution or a pooling of images; see `prefers_shared`.
        scratch: bytes of workspace that the step needs for it.
        cluster: blocks along x, y and z of a cluster (Hopper and newer).
        cooperative: whether its blocks wait for one another, and so run all at once or not at all.
        early: whether it may start before the previous kernel ends (PDL): kernels that call
            `grid_dependency_sync` may, unless they read results of others before it.
        note: what distinguishes it from other launches of its entry, for reports: ``64x64 split
            4``.
        pitched: operands that it addresses by `Tensor.row` or `Tensor.strides`, so that they may be
            slices of tensors with more channels; `finds` checks that a recipe for slices has their
            pitches wherever it reads them. Operands of an epilogue are where its code says.
        moot: two arguments, one copied to the other; nothing is launched if both are the same
            memory.
        backwards: whether blocks take items of a reversible kernel from the last to the first.
    """

    file: str
    entry: str
    grid: tuple[int, int, int]
    block: int
    args: Arguments = field(hash=False)
    types: tuple[tuple[str, DType], ...] = ()
    constants: tuple[tuple[str, int | bool | float], ...] = ()
    code: str = ""
    shared: int = 0
    concurrent: bool = False
    of_images: bool = False
    scratch: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    early: bool = True
    note: str = ""
    pitched: tuple[Tensor, ...] = ()
    moot: tuple[str, str] | None = None
    backwards: bool = False

    def __post_init__(self) -> None:
        check_grid(self.entry, self.grid)
        made = arranged(self.file, self.entry, self.args, self.types, self.constants, self.code)
        object.__setattr__(self, "args", made)
        object.__setattr__(self, "early", self.early and begins_early(self.file, self.entry))

    def noted(self, **changes: Any) -> Launch:
        """Return a copy with other fields, on which arguments and their types do not depend.

        `dataclasses.replace` would arrange the arguments again.

        Args:
            changes: of `note`, `scratch`, `of_images` and `backwards`.
        """
        made = object.__new__(Launch)
        for name in _FIELDS:
            setattr(made, name, changes.get(name, getattr(self, name)))
        return made

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """`args` with numbers converted to the types of their parameters."""
        return cast("Mapping[str, Argument]", self.args)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The memory that its arguments point to, in their order."""
        bases = map(base_of, self.arguments.values())
        return tuple(base for base in bases if isinstance(base, Operand))

    @property
    def title(self) -> str:
        """The entry with its note."""
        return f"{self.entry} {self.note}".strip()

    @property
    def is_reversible(self) -> bool:
        """Whether its blocks can take their items in either order; see `backwards`."""
        return is_reversible(self.file)

    @property
    def prefers_shared(self) -> bool:
        """Whether multiprocessors should have all their memory as shared memory but 28 KB of cache.

        They change that only when they are idle, so a block waits for those of another kernel to
        end unless both kernels prefer the same. Kernels of images follow one another. Those of rows
        have others in between (norms, products of few rows) that live off the cache: on an H100,
        decoding steps of Llama-3.2-1B took 15 to 20 % longer where some kernels preferred this.
        """
        return self.of_images and (self.shared > 0 or self.concurrent)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return 0 in self.grid

    @property
    def source(self) -> KernelSource:
        """The source to compile."""
        names = tuple((alias, C_TYPES[dtype]) for alias, dtype in self.types)
        order = (("BACKWARDS", self.backwards),) if self.is_reversible else ()
        return KernelSource(self.file, names, (*self.constants, *order), self.code)


_FIELDS = tuple(each.name for each in fields(Launch))
#: Threads per block of kernels with one thread per result.
THREADS = 256


def each(
    file: str,
    entry: str,
    count: int,
    args: Arguments,
    *,
    block: int = THREADS,
    types: tuple[tuple[str, DType], ...],
    constants: tuple[tuple[str, int | bool | float], ...] = (),
    code: str = "",
    concurrent: bool = False,
    note: str = "",
    pitched: tuple[Tensor, ...] = (),
) -> Launch:
    """Return the launch of a kernel with one thread for each of `count` results; see `Launch`."""
    grid = (ceil_div(count, block), 1, 1)
    return Launch(
        file,
        entry,
        grid,
        block,
        args,
        types,
        constants,
        code,
        concurrent=concurrent,
        note=note,
        pitched=pitched,
    )


Recipe = Launch | tuple[Launch, ...]


def launches_of(recipe: Recipe) -> tuple[Launch, ...]:
    """Return the launches of a recipe, in order."""
    return (recipe,) if isinstance(recipe, Launch) else recipe


def accessed_by(recipe: Recipe) -> frozenset[Value]:
    """Return the values that launches access."""
    found = set[Value]()
    for launch in launches_of(recipe):
        for argument in launch.args.values():
            base = argument.base if isinstance(argument, TensorMap) else argument
            if isinstance(base, Tensor):
                found.add(base.value)
    return frozenset(found)


def pitched_by(recipe: Recipe) -> frozenset[Value]:
    """Return the values that may be slices: those pitched in all launches that access them."""
    named: set[Value] = set()
    refused: set[Value] = set()
    for launch in launches_of(recipe):
        able = {operand.value for operand in launch.pitched}
        named |= able
        refused |= accessed_by(launch) - able
    return frozenset(named - refused)


def finds(recipe: Recipe, pitches: Mapping[Value, int]) -> bool:
    """Whether launches take these tensors as slices, and find each where it lies wherever they do.

    A tensor may be several operands of a launch: a factor, and what is added behind it.
    """
    if not pitched_by(recipe).issuperset(pitches):
        return False
    operands = (each for launch in launches_of(recipe) for each in launch.operands)
    tensors = (each for each in operands if isinstance(each, Tensor))
    return all(each.pitch == pitches.get(each.value, 0) for each in tensors)


#: Maximum threads and blocks per multiprocessor.
MAX_THREADS, MAX_BLOCKS = 2048, 32


def fill_of(launch: Launch, target: Target) -> float:
    """Return the blocks of a launch divided by the number that the GPU can hold at a time."""
    memory = target.resident(launch.shared)
    resident = max(1, min(MAX_THREADS // launch.block, MAX_BLOCKS, memory))
    return prod(launch.grid) / (target.processors * resident)


def base_of(argument: Argument) -> Argument:
    """Return the memory that an argument points to; for numbers and structs the argument itself."""
    return argument.base if isinstance(argument, TensorMap) else argument


def reading(launch: Launch, change: Callable[[Operand], Operand]) -> Launch:
    """Return a launch with other operands in memory in the place of its own."""

    def changed(argument: Argument) -> Argument:
        if isinstance(argument, TensorMap):
            return replace(argument, base=change(argument.base))
        return change(argument) if isinstance(argument, Operand) else argument

    args = {name: changed(argument) for name, argument in launch.arguments.items()}
    return replace(launch, args=args)


def sharing(*launches: Launch) -> tuple[Launch, ...]:
    """Return launches that share one workspace."""
    maximum = max(launch.scratch for launch in launches)
    return tuple(launch.noted(scratch=maximum) for launch in launches)


def behind(launches: tuple[Launch, ...]) -> int:
    """Return the first free byte of the workspace after that used by these launches."""
    return ceil_div(max((launch.scratch for launch in launches), default=0), 256) * 256
