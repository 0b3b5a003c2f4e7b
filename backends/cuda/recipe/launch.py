"""Recipes: what a step launches, as plain data.

A recipe is made without a GPU, can be compared and printed, and says everything: which file and
entry, the types and constants it is compiled with, the grid, and the arguments by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

from ....runtime.ir.dtypes import DType
from ....runtime.ir.graph import Value
from .arguments import arranged, check_grid
from .layout import ceil_div
from .operands import Argument, Arguments, Tensor, TensorMap
from .source import C_TYPES, Source, begins_early
from .targets import Target


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; raises TooLarge where CUDA could not make it.

    Attributes:
        file: the file in `kernels/`.
        entry: its ``extern "C"`` function.
        grid: blocks along x, y and z; no launch happens where one is 0.
        block: threads of a block.
        args: what the function takes, by the names of its parameters and in their order; see
            `Given` for what may be given. Raises ArgumentError unless they fit.
        types: element type by C++ alias, in pairs.
        constants: compile-time constants by name, in pairs.
        code: generated functions and macros that the file uses.
        shared: bytes of dynamic shared memory.
        scratch: bytes of the workspace that the step needs because of it.
        cluster: blocks along x, y and z that reach each other's memory (Hopper and newer).
        early: whether it may begin while the kernel before it runs (PDL): those that call
            `grid_dependency_sync` do, unless they read before it what others have written.
        note: what tells it from other launches of its entry, for reports: ``64x64 split 4``.
        pitched: operands whose `Tensor.row` or `Tensor.strides` it goes by, so that they may be
            slices of tensors with more channels; it is a promise, that nothing else tells. Those
            of its epilogue are read by the row of the result, and so can only be the same slice.
        moot: two arguments, one copied to the other; where both are the same memory, there is
            nothing to launch.
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
    scratch: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    early: bool = True
    note: str = ""
    pitched: tuple[Tensor, ...] = ()
    moot: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        check_grid(self.entry, self.grid)
        made = arranged(self.file, self.entry, self.args, self.types, self.constants, self.code)
        object.__setattr__(self, "args", made)
        object.__setattr__(self, "early", self.early and begins_early(self.file, self.entry))

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """`args`, numbers in the types of their parameters."""
        return cast("Mapping[str, Argument]", self.args)

    @property
    def title(self) -> str:
        """The entry with what tells it apart."""
        return f"{self.entry} {self.note}".strip()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return 0 in self.grid

    @property
    def source(self) -> Source:
        """What must be compiled."""
        names = tuple((alias, C_TYPES[dtype]) for alias, dtype in self.types)
        return Source(self.file, names, self.constants, self.code)


#: Threads of a block of a kernel that gives each result its own thread.
THREADS = 256


def each(
    file: str,
    entry: str,
    count: int,
    args: Arguments,
    *,
    types: tuple[tuple[str, DType], ...],
    constants: tuple[tuple[str, int | bool | float], ...] = (),
    code: str = "",
    note: str = "",
) -> Launch:
    """Return the launch of a kernel that gives each of `count` results a thread; see `Launch`."""
    grid = (-(-count // THREADS), 1, 1)
    return Launch(file, entry, grid, THREADS, args, types, constants, code, note=note)


Recipe = Launch | tuple[Launch, ...]


def launches_of(recipe: Recipe) -> tuple[Launch, ...]:
    """Return a recipe's launches in order."""
    return (recipe,) if isinstance(recipe, Launch) else recipe


def pitched_by(recipe: Recipe) -> frozenset[Value]:
    """Return the values that may be slices: all launches that touch them name them so."""
    named: set[Value] = set()
    refused: set[Value] = set()
    for launch in launches_of(recipe):
        able = {operand.value for operand in launch.pitched}
        named |= able
        touched = (base_of(argument) for argument in launch.arguments.values())
        refused |= {base.value for base in touched if isinstance(base, Tensor)} - able
    return frozenset(named - refused)


#: Threads and blocks that a multiprocessor holds at most.
MAX_THREADS, MAX_BLOCKS = 2048, 32


def fill_of(launch: Launch, target: Target) -> float:
    """Return the blocks of a launch by those that a GPU holds, as threads and memory allow."""
    memory = (target.shared + 1024) // (launch.shared + 1024)
    resident = max(1, min(MAX_THREADS // launch.block, MAX_BLOCKS, memory))
    return prod(launch.grid) / (target.processors * resident)


def base_of(argument: Argument) -> Argument:
    """Return what an argument points to; of numbers and structs the argument itself."""
    return argument.base if isinstance(argument, TensorMap) else argument


def sharing(*launches: Launch) -> tuple[Launch, ...]:
    """Return launches that have the workspace in common."""
    maximum = max(launch.scratch for launch in launches)
    return tuple(replace(launch, scratch=maximum) for launch in launches)


def behind(launches: tuple[Launch, ...]) -> int:
    """Return where the workspace is free that these launches use the beginning of, in bytes."""
    return ceil_div(max((launch.scratch for launch in launches), default=0), 256) * 256
