"""Launches of a few small steps as one kernel of one block.

A kernel of this kind calls the bodies of the kernels that it stands for, with barriers between
those of which one needs what the other stores. Sizes, numbers and addresses remain arguments, so
that its text, and the machine code, are the same for steps of other sizes whose words are as wide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from operator import add, ne
from pathlib import Path
from typing import ClassVar

from ....runtime.ir.dtypes import int32
from .launch import Launch
from .operands import Argument, Struct, TensorMap, ceil_div
from .source import (
    KERNELS,
    PRELUDE,
    KernelSignature,
    KernelSource,
    UserSource,
    functions_of,
    read_kernel,
    signature_of,
    text_of,
    without_comments,
)

#: The most threads of a kernel, and of all blocks of a step that share nothing; the most elements
#: of its results. On an H100, a network of 144 lines of 80 elements took 4 us more where steps
#: joined, and one of steps of 2,448 elements 13 us less.
MAX_THREADS, MAX_SIDE_BY_SIDE, MAX_ELEMENTS = 1024, 4096, 4096
#: The most blocks of a step whose threads share something: they run one after the other.
MAX_IN_TURN = 2
#: The most bytes of arguments, and steps of a kernel, and how many of these may have shared memory.
MAX_ARGUMENTS, MAX_STEPS, MAX_SHARING = 3072, 32, 4

#: The member of `Step` that is the grid.
GRID = "blocks_of_step"

_ENTRY = re.compile(
    r'extern "C" __global__ void\s*(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\s*\('
)
_INDICES = "const dim3 gridDim, const dim3 blockDim, const dim3 blockIdx, const dim3 threadIdx"
_MACRO = re.compile(r"^\s*#define (\w+)((?:\\\n|.)*)$", re.MULTILINE)
#: What threads of several warps do together.
_SHARING = re.compile(r"__shared__|__syncthreads")
#: Memory that others write, or that has to be set up; instructions that the compiler does not see.
_ALONE = re.compile(
    r"asm volatile|__ldg|\batomic|extern __shared__|cudaGraph|__constant__|\b__threadfence"
)
_WORD = re.compile(r"\w+")
_INDEX = re.compile(r"\b(?:blockIdx|threadIdx|gridDim|blockDim)\b")


@dataclass(frozen=True, slots=True)
class _Traits:
    """What a kernel does, and functions that it calls.

    Attributes:
        alone: what needs a launch of its own; empty if nothing.
        shares: whether threads of a block share memory or wait for each other, beyond warps.
        counts_blocks: whether functions use indices or sizes of blocks.
        aligned: structs with an alignment of their own.
    """

    alone: str
    shares: bool
    counts_blocks: bool
    aligned: frozenset[str]

    @property
    def together(self) -> bool:
        """Whether the threads of a block have to be those of a block."""
        return self.shares or self.counts_blocks


@cache
def _traits(folder: Path, file: str, entry: str, code: str) -> _Traits:
    text = text_of(folder, file).replace(text_of(folder, "ptx/pdl.cuh"), "")
    text = f"{without_comments(code)}\n{text}"
    macros = _MACRO.findall(text)
    bodies: dict[str, str] = {}
    for name, body in (*macros, *functions_of(_MACRO.sub("", text))):
        bodies[name] = f"{bodies.get(name, '')}\n{body}"

    def reached(*names: str) -> set[str]:
        found, left = set[str](), set(names)
        while left:
            found |= left
            words = {word for name in left for word in _WORD.findall(bodies[name])}
            left = (words & bodies.keys()) - found
        return found

    whole = reached(entry)
    functions = reached(*(whole - {entry} - {name for name, _ in macros}))
    alone = _ALONE.search("\n".join(bodies[name] for name in sorted(whole)))
    shares = any(_SHARING.search(bodies[name]) for name in whole)
    early = shares and _leaves_early(entry, bodies)
    return _Traits(
        alone[0] if alone else "threads that end before others meet" if early else "",
        shares,
        any(_INDEX.search(bodies[name]) for name in functions),
        frozenset(re.findall(r"\bstruct alignas\([^)]*\) (\w+)", text)),
    )


def _leaves_early(entry: str, bodies: Mapping[str, str]) -> bool:
    """Whether threads of a kernel may end before others meet: a barrier would wait for them."""
    meeting = {name for name in bodies if "__syncthreads" in bodies[name]} - {entry}
    while (
        more := {n for n in bodies if meeting & set(_WORD.findall(bodies[n]))} - meeting - {entry}
    ):
        meeting |= more
    _, left, rest = bodies[entry].partition("return")
    return bool(left) and not (meeting | {"__syncthreads"}).isdisjoint(_WORD.findall(rest))


def _traits_of(source: Launch | KernelSource, entry: str) -> _Traits:
    return _traits(KERNELS, source.file, entry, source.code)


def refusal(launch: Launch) -> str:
    """Return why a launch cannot be part of a kernel of one block, or nothing."""
    blocks, file = prod(launch.grid), launch.file
    if launch.shared or launch.cluster != (1, 1, 1):
        return "dynamic shared memory, or a cluster"
    if blocks * launch.block > MAX_SIDE_BY_SIDE:
        return f"{blocks} blocks of {launch.block} threads"
    if isinstance(file, UserSource):
        return "a source of the user's"
    traits = _traits_of(launch, launch.entry)
    if traits.alone:
        return f"{traits.alone} in its kernel"
    if traits.together and blocks > (1 if traits.counts_blocks else MAX_IN_TURN):
        return f"{blocks} blocks, whose threads share memory"
    given = launch.arguments.values()
    signature = signature_of(file, launch.entry, launch.code)
    types = {each.type for each in signature.parameters.values() if not each.is_pointer}
    if any(isinstance(each, TensorMap) for each in given) or types & traits.aligned:
        return "arguments with an alignment of their own"
    return ""


def shares(launch: Launch) -> bool:
    """Whether threads of a block of a launch share memory or wait for each other."""
    return _traits_of(launch, launch.entry).together


def of(part: int, name: str) -> str:
    """Return the name of the parameter of a kernel of one block for that of a part's kernel."""
    return f"s{part}_{name}"


@dataclass(frozen=True, slots=True)
class BlockSource:
    """The source of a kernel of one block, as a `KernelSource` is one of a kernel.

    Attributes:
        parts: source and entry of each step's kernel, and its threads per block.
        barriers: whether a step has to wait for those before it.
    """

    parts: tuple[tuple[KernelSource, str, int], ...]
    barriers: tuple[bool, ...]

    @property
    def file(self) -> str:
        """The name by which the compiler knows it."""
        return "one_block"

    def text(self) -> str:
        """Return the complete source with line directives."""
        distinct = list(dict.fromkeys(self.parts))
        numbers = [distinct.index(part) for part in self.parts]
        headers = dict.fromkeys(name for source, *_ in distinct for name in source.headers)
        parameters, calls = list[str](), list[str]()
        for i, n in enumerate(numbers):
            source, entry, _ = self.parts[i]
            names = (GRID, *signature_of(source.file, entry, source.code).parameters)
            parameters += [f"const decltype(step{n}::Step::{name}) {of(i, name)}" for name in names]
            calls += ["    __syncthreads();"] if self.barriers[i] else []
            calls += [f"    step{n}::run({{{', '.join(of(i, name) for name in names)}}});"]
        return "\n".join(
            [
                *(f"#include <{header}>" for header in headers),
                *PRELUDE,
                "#define __restrict__",
                '#line 1 "ptx/pdl.cuh"',
                f"namespace launching {{\n{read_kernel('ptx/pdl.cuh')}\n}}",
                '#line 1 "move/one_block.cuh"',
                read_kernel("move/one_block.cuh"),
                *(_namespace(f"step{i}", *part) for i, part in enumerate(distinct)),
                '#line 1 "one_block"',
                f'extern "C" __global__ void __launch_bounds__({MAX_THREADS})',
                f"{BlockLaunch.entry}({', '.join(parameters)})",
                "{",
                "    launching::grid_dependency_sync();",
                *calls,
                "}",
            ]
        )


def _namespace(name: str, source: KernelSource, entry: str, block: int) -> str:
    """Return a namespace with the kernel of a step as a function, `Step` and `run`."""
    text = source.body()
    signature = signature_of(source.file, entry, source.code)
    body = _ENTRY.sub(rf"__device__ __forceinline__ void \1({_INDICES}, ", text)
    members = [f"    {_declared(signature, each)};" for each in signature.parameters]
    passed = ", ".join(f"step.{each}" for each in signature.parameters)
    how = "in_turn" if _traits_of(source, entry).together else "side_by_side"
    macros = dict.fromkeys(name for name, _ in _MACRO.findall(body))
    return "\n".join(
        [
            f"namespace {name} {{",
            f"#define __syncthreads first_threads_sync<{block}>",
            body,
            f'#line 1 "{name}"',
            "struct Step {",
            f"    Blocks {GRID};",
            *members,
            "};",
            "__device__ __forceinline__ void run(const Step& step)",
            "{",
            f"    {how}<{block}>(step.{GRID}, [&](dim3 grid, dim3 block, dim3 at, dim3 own) {{",
            f"        {entry}(grid, block, at, own, {passed});",
            "    });",
            "}",
            *(f"#undef {macro}" for macro in macros),
            "#undef __syncthreads",
            "}",
        ]
    )


def _declared(signature: KernelSignature, name: str) -> str:
    parameter = signature.parameters[name]
    return f"{parameter.type}{'*' if parameter.is_pointer else ''} {name}"


@dataclass(frozen=True, slots=True)
class BlockLaunch:
    """The launch of several as one kernel of one block.

    Attributes:
        parts: the launches, in order.
        levels: of each, greater than those of the ones that it has to wait for; ascending.
    """

    parts: tuple[Launch, ...]
    levels: tuple[int, ...]

    entry: ClassVar[str] = "steps"
    grid: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    cluster: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    shared: ClassVar[int] = 0
    early: ClassVar[bool] = True
    prefers_shared: ClassVar[bool] = False

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """Those of all parts, and where their blocks are, by the names of parameters."""
        found: dict[str, Argument] = {}
        for i, (part, first) in enumerate(zip(self.parts, self._firsts(), strict=True)):
            members = zip(("x", "y", "z", "first"), (*part.grid, first % self.block), strict=True)
            found[of(i, GRID)] = Struct(tuple((name, (n,)) for name, n in members), int32)
            found |= {of(i, name): each for name, each in part.arguments.items()}
        return found

    def _firsts(self) -> list[int]:
        """Return the threads of the parts of the same level that are before each part."""
        ends: dict[int, int] = {}
        firsts = list[int]()
        for part, level in zip(self.parts, self.levels, strict=True):
            firsts.append(0 if shares(part) else ends.get(level, 0))
            ends[level] = ends.get(level, 0) + _threads(part)
        return firsts

    @property
    def block(self) -> int:
        """Threads per block."""
        return min(MAX_THREADS, max(map(add, self._firsts(), map(_threads, self.parts))))

    @property
    def source(self) -> BlockSource:
        """The source to compile."""
        parts = tuple((part.source, part.entry, part.block) for part in self.parts)
        barriers = (False, *map(ne, self.levels, self.levels[1:]))
        return BlockSource(parts, barriers)

    @property
    def title(self) -> str:
        """Their entries, each once; the steps have the details."""
        return f"one block of {', '.join(dict.fromkeys(part.entry for part in self.parts))}"


def _threads(launch: Launch) -> int:
    """Return how many threads a launch keeps busy, rounded up to warps."""
    blocks = 1 if shares(launch) else prod(launch.grid)
    return ceil_div(blocks * launch.block, 32) * 32


def fits(parts: Sequence[Launch]) -> bool:
    """Whether launches, none of which is refused, can be one kernel."""
    sharing = [part for part in parts if shares(part)]
    few = len(parts) <= MAX_STEPS and len(sharing) <= MAX_SHARING
    return few and sum(map(_nbytes, parts)) <= MAX_ARGUMENTS


def pays(parts: Sequence[Launch]) -> bool:
    """Whether one kernel saves more launches than its block takes turns that several would not.

    Blocks that run at the same time by themselves take turns in one block: each costs about what a
    launch does. Launches that some addresses make moot may cost nothing anyway.
    """
    saved = sum(part.moot is None for part in parts) - 1
    return saved > sum(_turns(part) - 1 for part in parts)


def _turns(launch: Launch) -> int:
    """Return how often the threads of one block have to run to do what those of a launch do."""
    return prod(launch.grid) if shares(launch) else ceil_div(_threads(launch), MAX_THREADS)


def _nbytes(launch: Launch) -> int:
    """Return the bytes of the arguments of a launch, rounded up."""
    return sum(
        len(each.values) * each.dtype.itemsize + 4 if isinstance(each, Struct) else 8
        for each in (*launch.arguments.values(), None, None)
    )
