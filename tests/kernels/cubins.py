"""Machine code without a GPU: NVRTC makes it, and it says what its kernels take."""

from __future__ import annotations

import re
import struct
from collections.abc import Hashable, Iterable, Iterator, Set
from pathlib import Path

from cuda.core import ProgramOptions

from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.driver.step import sizes
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.runtime.ir.graph import Graph

from .dry import DryCompiler, DryDevice, launches, planned

#: Attributes of a kernel: one that describes one of its parameters; bytes of its stack, where
#: registers go that it has no room for; the number of its registers.
_PARAMETER, _STACK, _REGISTERS = 0x17, 0x11, 0x2F
_WITH_SIZE = 4


class QuickCompiler(Compiler):
    """Optimises nothing: the code is accepted and takes the same arguments, only sooner."""

    def _options(self, file: str, text: str) -> ProgramOptions:
        options = super()._options(file, text)
        options.ofast_compile, options.lineinfo, options.minimal = "max", False, True
        return options

    def _entry(self, text: str) -> str:
        return f"quick-{super()._entry(text)}"


def all_compile(
    sources: Iterable[KernelSource],
    target: Target,
    cache: Path,
    files: Set[str] = frozenset(),
) -> None:
    """Compile sources, in the background and those only that are not in the cache.

    Every one is compiled for the newest architecture. Which instructions another one has is a
    matter of the types and the flags of a source, not of its sizes: there one of a kind will do.

    Args:
        sources: kernels, in any number of variants.
        target: the architecture.
        cache: folder of machine code.
        files: what the sources must be of. A test module calls them `COMPILES`; test_compile.py
            adds them up, so that no kernel is left out.
    """
    compiler = QuickCompiler(target, cache)
    chosen = list(dict.fromkeys(sources))
    if target != H200:
        chosen = list({_kind(source): source for source in chosen}.values())
    for code in [compiler.submit(source) for source in chosen]:
        code.result()
    assert compiler.statistics.pending == 0
    assert files <= {source.file for source in chosen}


def _kind(source: KernelSource) -> Hashable:
    """What two sources have in common that differ in sizes alone."""
    constants = [(k, v if isinstance(v, bool) else None) for k, v in source.constants]
    return source.file, source.types, tuple(constants), re.sub(r"\d+", "#", source.code)


def assert_arguments(made: Iterable[Launch], target: Target, cache: Path) -> None:
    """Fail unless every kernel takes arguments of the sizes that a launch gives it."""
    found = {(launch.source, launch.entry): launch for launch in made}
    all_compile((source for source, _ in found), target, cache)
    compiler = QuickCompiler(target, cache)
    for (source, entry), launch in found.items():
        assert parameters(entry, compiler.code(source)) == sizes(launch), launch.title


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


def parameters(entry: str, cubin: bytes) -> list[int]:
    """Return the bytes of each parameter of a kernel."""
    found = dict[int, int]()
    for attribute, data in _attributes(f".nv.info.{entry}", cubin):
        if attribute == _PARAMETER:
            _, number, _, word = struct.unpack_from("<IHHI", data)
            found[number] = word >> 18
    return [found[number] for number in sorted(found)]


def registers(cubin: bytes) -> tuple[int, int]:
    """Return the registers of a thread and the bytes of its stack, of a file of one kernel."""
    found = {
        attribute: struct.unpack_from("<II", data)[1]
        for attribute, data in _attributes(".nv.info", cubin)
        if attribute in (_STACK, _REGISTERS)
    }
    return found[_REGISTERS], found[_STACK]


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
