"""Kernels compiled without a GPU: NVRTC accepts them, and they take what a launch gives them."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Hashable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

from tercet.backends.cuda.driver.compile import Compiler, compiled
from tercet.backends.cuda.driver.step import sizes
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.graph import Graph

from .dry import DryCompiler, DryDevice, launches, planned

#: Attributes of a kernel: bytes of its stack, where registers go that it has no room for; the
#: number of its registers.
_STACK, _REGISTERS = 0x11, 0x2F
_WITH_SIZE = 4
#: Bytes of shared memory that a kernel may declare with a size.
_MAX_SHARED = 48 << 10
#: Registers of a multiprocessor.
_MAX_REGISTERS = 65536
#: By this, code differs from architecture to architecture.
_ASKS = "__CUDA_ARCH__"
_ASSEMBLY = re.compile(r"// begin inline asm\n(.*?)// end inline asm", re.DOTALL)
_REGISTER = re.compile(r"%[a-z]+\d+")
#: A parameter, or shared memory whose size is in the source: bits of an element, and how many.
_DECLARED = re.compile(
    r"^\s*\.(param|shared) (?:\.align \d+ )?\.[a-z](\d+) [^,;\[]*(?:\[(\d+)\])?", re.MULTILINE
)


class QuickCompiler(Compiler):
    """Optimises nothing: the code is accepted and takes the same arguments, only sooner."""

    def options(self, text: str) -> list[str]:
        quick = (each for each in super().options(text) if each != "--generate-line-info")
        return [*quick, "--Ofast-compile=max", "--minimal"]

    def _entry(self, text: str) -> str:
        return f"quick-{super()._entry(text)}"


class PtxCompiler(QuickCompiler):
    """Leaves the assembler out, which takes two thirds of the time."""

    def _build(self, file: str, text: str) -> bytes:
        options = [each.replace("=sm_", "=compute_") for each in self.options(text)]
        return compiled(file, text, options, "ptx")

    def _entry(self, text: str) -> str:
        return f"ptx-{super()._entry(text)}"


class OptimizedPtxCompiler(PtxCompiler):
    """Leaves only the assembler out: PTX shows which loads and stores have been combined."""

    def options(self, text: str) -> list[str]:
        return Compiler.options(self, text)

    def _entry(self, text: str) -> str:
        return f"optimized-{super()._entry(text)}"


def all_compile(
    sources: Iterable[KernelSource],
    target: Target,
    cache: Path,
    files: Set[str] = frozenset(),
    *,
    every: bool = False,
) -> None:
    """Compile sources to PTX, in the background and those only that are not in the cache.

    Code that does not ask for the architecture is the same for all of them in PTX, so it is
    compiled once, for the oldest. Which instructions a kernel has is a matter of the types, the
    flags and the generated code of a source. Of those that differ in sizes alone, the one with the
    largest is compiled; emulated tests compile the others. The assembler accepts what the compiler
    writes; what it may refuse is assembly in the sources, and too much shared memory.
    So it gets those sources that have assembly which none before them had, but for the numbers of
    registers.

    Args:
        sources: kernels, in any number of variants.
        target: the architecture.
        cache: folder of compiled code.
        files: what the sources must be of. A test module calls them `COMPILES`; test_compile.py
            adds them up, so that no kernel is left out.
        every: whether sizes matter, as in tables of tiles: the newest architecture gets them all.
    """
    found = sorted(set(sources), key=str)
    chosen = found if every and target == H200 else _chosen(found, target)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(lambda source: _ptx(source, target, cache), chosen))
    assembler = QuickCompiler(target, cache)
    accepted = _ACCEPTED.setdefault(target, set())
    for source, code in zip(chosen, codes, strict=True):
        ptx = code.decode()
        shared = sum(_declared("shared", ptx))
        assert shared <= _MAX_SHARED, f"{source.file}: {shared} bytes of shared memory"
        if not (found := assembly(ptx)) <= accepted:
            assembler.code(source)
            accepted |= found
    assert assembler.statistics.pending == 0
    assert files <= {source.file for source in chosen}


def _ptx(source: KernelSource, target: Target, cache: Path) -> bytes:
    """Return what a source becomes before it is assembled."""
    compiler = PtxCompiler(target if _ASKS in source.text() else A100, cache)
    code = compiler.code(source)
    assert compiler.statistics.pending == 0
    return code


#: The assembly that has been accepted so far.
_ACCEPTED: dict[Target, set[str]] = {}


def assembly(ptx: str) -> set[str]:
    """Return the assembly of a source's own, without the numbers of registers."""
    return {_REGISTER.sub("%", text) for text in _ASSEMBLY.findall(ptx)}


def _chosen(sources: Iterable[KernelSource], target: Target) -> list[KernelSource]:
    """Return the source with the largest sizes of each kind."""
    by_size = sorted(sources, key=lambda source: (_size(source), str(source)))
    return list({_kind(source, target): source for source in by_size}.values())


def _size(source: KernelSource) -> int:
    return prod(int(v) for _, v in source.constants if not isinstance(v, bool) and v > 0)


def _kind(source: KernelSource, target: Target) -> Hashable:
    """What two sources have in common that differ in sizes alone.

    Numbers in generated code are those of instructions, which the newest architecture gets all.
    """
    constants = [(k, v if isinstance(v, bool) else None) for k, v in source.constants]
    code = source.code if target == H200 else re.sub(r"\d+", "#", source.code)
    return source.file, source.types, tuple(constants), code


def assert_arguments(made: Iterable[Launch], target: Target, cache: Path) -> None:
    """Fail unless every kernel that is compiled takes what a launch gives it."""
    found = {(launch.source, launch.entry): launch for launch in made}
    sources = {source for source, _ in found}
    all_compile(sources, target, cache)
    chosen = set(_chosen(sources, target))
    for (source, entry), launch in found.items():
        if source not in chosen:
            continue
        ptx = _ptx(source, target, cache).decode()
        assert parameters(entry, ptx) == sizes(launch), launch.title


def assert_plans_compile(
    graphs: Iterable[Graph], target: Target, cache: Path, files: Set[str]
) -> list[Launch]:
    """Plan graphs for a target, compile their kernels, and compare arguments; return the launches.

    Args:
        graphs: with integer shapes.
        target: the architecture.
        cache: folder of machine code.
        files: what the kernels must be of; see `all_compile`.
    """
    device = DryDevice(compiler=DryCompiler(target))
    found = [launch for graph in graphs for launch in launches(planned(graph, device))]
    all_compile(list(device.compiler.sources), target, cache, files)
    assert_arguments(found, target, cache)
    return found


def parameters(entry: str, ptx: str) -> list[int]:
    """Return the bytes of each parameter of a kernel."""
    listed = re.search(rf"\.entry {entry}\(([^)]*)\)", ptx)
    assert listed, f"no kernel {entry}"
    return _declared("param", listed[1])


def _declared(space: str, ptx: str) -> list[int]:
    """Return the bytes of everything that is declared in a state space."""
    found = _DECLARED.findall(ptx)
    return [int(bits) // 8 * int(count or 1) for where, bits, count in found if where == space]


def registers(cubin: bytes) -> tuple[int, int]:
    """Return the registers of a thread and the bytes of its stack, of a file of one kernel."""
    found = {
        attribute: struct.unpack_from("<II", data)[1]
        for attribute, data in _attributes(".nv.info", cubin)
        if attribute in (_STACK, _REGISTERS)
    }
    return found[_REGISTERS], found[_STACK]


def assert_nothing_spills(sources: Iterable[KernelSource], compiler: Compiler) -> None:
    """Raise AssertionError if a kernel has a stack; all are compiled at the same time."""
    for source, code in [(source, compiler.submit(source)) for source in sources]:
        code.result()
        _, stack = registers(compiler.code(source))
        assert stack == 0, source.constants


def assert_fits(made: Iterable[Launch], compiler: Compiler) -> None:
    """Raise AssertionError if a kernel has a stack, or its blocks find no room side by side.

    As many as its constant `RESIDENT` says share the registers and the shared memory of a
    multiprocessor; one, if it has none.
    """
    found, target = list(made), compiler.target
    assert_nothing_spills([launch.source for launch in found], compiler)
    for launch in found:
        used, _ = registers(compiler.code(launch.source))
        resident = int(dict(launch.constants).get("RESIDENT", 1))
        assert used * launch.block * resident <= _MAX_REGISTERS, launch.title
        assert resident * (launch.shared + 1024) <= target.shared + 1024, launch.title


def _attributes(name: str, cubin: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a section: a format, a number, and a size or the value itself.

    Those of the format with a size have so many bytes behind it, which are yielded.
    """
    info, at = _section(name, cubin), 0
    while at < len(info):
        format_, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if format_ == _WITH_SIZE:
            yield attribute, info[at : at + size]
            at += size


def _section(name: str, elf: bytes) -> bytes:
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, headers + i * size) for i in range(count)]
    names = sections[of_names][4]
    for at, _, _, _, start, length in sections:
        if elf[names + at : names + at + len(name) + 1] == name.encode() + b"\0":
            return elf[start : start + length]
    raise LookupError(f"no section {name}")
