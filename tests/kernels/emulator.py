"""A GPU made of a C++ compiler: kernels as they are, run on the host, one thread after the other.

It finds wrong results where there is no GPU, and accesses outside of the tensors of a launch, see
`guarded.py`. It shows no speed, and of races only those of copies.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pytest

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen.copies import reformat
from tercet.backends.cuda.driver import step as stepping
from tercet.backends.cuda.driver.memory import CudaBuffer, address
from tercet.backends.cuda.driver.step import cell
from tercet.backends.cuda.recipe.launch import Launch, base_of
from tercet.backends.cuda.recipe.operands import Scratch, Tensor, TensorMap
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import A100, Target
from tercet.runtime.errors import KernelError
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.plan.backend import View
from tercet.runtime.plan.host import HostBuffer

from .guarded import ALIGNMENT, OutOfBounds, Place, guarded, moved

COMPILER = shutil.which("g++")
#: What the address of a tensor in halves is a multiple of, of which kernels flip one bit.
IN_HALVES = 128
#: For tests that emulate kernels.
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler: install g++")
_HEADER = Path(__file__).with_name("emulator.hpp")
_RUNNER = Path(__file__).with_name("emulator.cpp")
#: Headers of PTX, up to where the file that includes them goes on, have files here in their place.
_PTX = re.compile(
    r'#line 1 "(?:\w+/)?(cp_async|ldmatrix|load|wgmma|cluster|grid|mbarrier|tma|greater)\.cuh"\n'
    r".*?(?=^#line )",
    re.DOTALL | re.MULTILINE,
)
#: Those that have one together with `cp_async.cuh`.
_TOGETHER = {"cp_async": "tensor_cores", "ldmatrix": "", "wgmma": "", "cluster": ""}
_FEATURES: Any = import_module("numpy._core._multiarray_umath").__cpu_features__
#: Of -O1, what takes longer to do than it saves in tests.
_NOT_WORTH_IT = (
    *("tree-pta", "tree-sink", "tree-dse", "tree-dominator-opts", "tree-bit-ccp", "ivopts", "dse"),
    *("reorder-blocks", "if-conversion", "if-conversion2", "shrink-wrap", "cprop-registers"),
)
_FLAGS = (
    "-std=c++17",
    "-O1",
    *(f"-fno-{each}" for each in _NOT_WORTH_IT),
    "-fPIC",
    "-w",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",  # Ubuntu's default, whose longjmp refuses another fiber's stack
    "-fno-gnu-unique",  # shared memory of an inline function is each library's own
    "-fsanitize=alignment",  # words that are read at once lie at multiples of their size
    "-fsanitize-undefined-trap-on-error",
    *(["-mf16c"] if _FEATURES.get("F16C") else []),  # libgcc's float16, in less time
)
#: The runner's library has all that a kernel's needs, so nothing else is linked to that.
_LINK_FLAGS = ("-shared", "-nodefaultlibs", "-Wl,-Bsymbolic")
_ENTRY = re.compile(
    r'\nextern "C" __global__ void\s*(?:__launch_bounds__\([^\n]*\)\s*)?(\w+)\(.*?^}$',
    re.DOTALL | re.MULTILINE,
)
#: Headers of the system, the order of items, which a library leaves to its caller, generated
#: functions that are one instruction, dynamic shared memory, and the two functions of copy.cuh that
#: are assembly. Patterns that begin with a character are found sooner than those of whole lines.
_REPLACED = (
    (re.compile(r"\n#include <\w+\.h>$", re.MULTILINE), "\n"),
    (
        re.compile(r"\nconstexpr bool BACKWARDS = \w+;$", re.MULTILINE),
        '\nextern "C" bool BACKWARDS = false;',
    ),
    (
        re.compile(
            r"\n__device__ __forceinline__ void (?:wg)?mma\w*\(.*?^}$", re.DOTALL | re.MULTILINE
        ),
        "\n",
    ),
    (
        re.compile(r"extern __shared__ ([^;]*?)(\w+)\[\];"),
        r"static \1\2[DYNAMIC_SHARED]; dynamic_shared = (char*)\2;",
    ),
    (
        re.compile(r'asm volatile\("cp\.async\.ca[^;]*;[^;]*;'),
        "copy_now(target, source, bytes, 4 * N);",
    ),
    (re.compile(r"asm volatile\([^;]*;[^;]*;"), ";"),
)
_COPY = """
inline void copy_now(void* target, const void* source, int bytes, int room)
{
    memset(target, 0, room);
    if (bytes) memcpy(target, source, bytes);
}
"""


class Grid(ctypes.Structure):
    """What `run_grid` of emulator.cpp reads of a launch, besides the threads of a block."""

    _fields_: ClassVar = [
        ("blocks", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint * 3),
        ("cooperative", ctypes.c_uint),
    ]


def grid_of(
    blocks: Sequence[int], cluster: Sequence[int] = (1, 1, 1), *, cooperative: bool = False
) -> Grid:
    """Return a grid of so many blocks a dimension."""
    return Grid(tuple(blocks), tuple(cluster), cooperative)


@dataclass(frozen=True)
class Library:
    """Kernels as a shared library of the host."""

    path: Path

    @cached_property
    def _loaded(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(self.path))

    def kernel(self, entry: str) -> Callable[[object, Grid, int], None]:
        """Return what runs a grid of one kernel; raises OutOfBounds."""
        launch = self._loaded[f"launch_{entry}"]
        launch.restype = ctypes.c_void_p

        def run(table: object, grid: Grid, threads: int) -> None:
            if fault := launch(table, ctypes.byref(grid), ctypes.c_uint(threads)):
                raise OutOfBounds(fault)

        return run

    def forget_clusters(self) -> None:
        """Forget what blocks have left for others of their cluster."""
        self._loaded.forget_clusters()

    def cluster_waits(self) -> int:
        """Return how often a block has waited for its cluster."""
        return self._loaded.cluster_waits()

    def turn(self, *, backwards: bool) -> None:
        """Have blocks take their items from the last to the first, or the other way round."""
        ctypes.c_bool.in_dll(self._loaded, "BACKWARDS").value = backwards

    def sizes(self, entry: str) -> list[int]:
        """Return the bytes of each parameter of a kernel."""
        found = (ctypes.c_int * 512)()
        count = self._loaded[f"sizes_{entry}"](found)
        return list(found[:count])


@dataclass
class HostCompiler:
    """Compiles sources with the host's C++ compiler, each once a folder."""

    folder: Path
    target: Target = A100  # of Hopper's own instructions there is none here
    sources: dict[KernelSource, Future[Library]] = field(default_factory=dict)

    def submit(self, source: KernelSource) -> Future[Library]:
        if source not in self.sources:
            future: Future[Library] = Future()
            future.set_result(Library(self._compile(source)))
            self.sources[source] = future
        return self.sources[source]

    def _compile(self, source: KernelSource) -> Path:
        text = _text(source)
        name = hashlib.sha256(text.encode() + _common()).hexdigest()[:32]
        library = self.folder / f"{name}.so"
        if not library.exists():
            header, runner = self._prepared()
            command = [str(COMPILER), *_FLAGS, *_LINK_FLAGS, "-include", str(header)]
            with TemporaryDirectory(dir=self.folder) as folder:
                file, made = Path(folder, f"{name}.cpp"), Path(folder, library.name)
                file.write_text(text)
                done = subprocess.run(
                    [*command, str(file), str(runner), "-o", str(made)],
                    capture_output=True,
                    text=True,
                )
                if done.returncode:
                    raise KernelError(f"{source.file}: {done.stderr[:3000]}")
                made.replace(library)  # other processes may be at it, too
        return library

    def _prepared(self) -> tuple[Path, Path]:
        """Return the precompiled header, and the library that runs blocks of threads."""
        folder = self.folder / hashlib.sha256(_common()).hexdigest()[:16]
        if not folder.exists():
            with TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as made:
                header, file = (shutil.copy(each, made) for each in (_HEADER, _RUNNER))
                command, runner = [str(COMPILER), *_FLAGS], str(Path(made, "runner.so"))
                subprocess.run(
                    [*command, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True
                )
                subprocess.run([*command, "-shared", file, "-o", runner], check=True)
                with suppress(OSError):  # another process was first
                    Path(made).rename(folder)
        return folder / _HEADER.name, folder / "runner.so"


@cache
def _common() -> bytes:
    """Return what all libraries depend on."""
    version = subprocess.run([str(COMPILER), "--version"], capture_output=True, check=True).stdout
    flags = " ".join((*_FLAGS, *_LINK_FLAGS)).encode()
    return b"\0".join((version, flags, _HEADER.read_bytes(), _RUNNER.read_bytes()))


def _replaced(header: re.Match[str]) -> str:
    name = _TOGETHER.get(header[1], header[1])
    return _HEADER.with_name(f"{name}.hpp").read_text() if name else ""


def _text(source: KernelSource) -> str:
    kernel = _PTX.sub(_replaced, f"\n{source.text()}")
    for pattern, replacement in _REPLACED:
        kernel = pattern.sub(replacement, kernel)
    waits = "true" if re.search(r"__syncthreads|__shfl|__syncwarp|__ballot", kernel) else "false"

    def with_launcher(entry: re.Match[str]) -> str:  # behind it, as it may be one of an #if
        name = entry[1]
        return (
            f'{entry[0]}\nextern "C" void* launch_{name}(void** a, const unsigned* grid, '
            f"unsigned threads) {{ return run_grid([](void** b) {{ call({name}, b); }}, a, grid, "
            f'threads, {waits}); }}\nextern "C" int sizes_{name}(int* found) '
            f"{{ return sizes({name}, found); }}"
        )

    return _COPY + _ENTRY.sub(with_launcher, kernel)


class _Block:
    """Memory of the host in the place of the device's."""

    def __init__(self, nbytes: int) -> None:
        self.buffer = HostBuffer.around(guarded(nbytes))
        self.buffer.memory[:] = 0xAB  # memory that is not written must not look right
        self.handle = self.buffer.memory.ctypes.data

    def close(self) -> None:
        self.buffer.close()


@dataclass(eq=False)
class EmulatedDevice:
    """A GPU for `CudaBackend` whose memory is the host's."""

    compiler: HostCompiler
    name: str = "cuda:0"

    def enter(self) -> None:
        return None

    def allocate(self, nbytes: int) -> CudaBuffer:
        if not nbytes:
            return CudaBuffer(0, 0)
        block = _Block(nbytes)
        return CudaBuffer(block.handle, nbytes, lambda *_: block.close(), block)

    def staging(self, nbytes: int) -> HostBuffer:
        return HostBuffer(nbytes)

    def stream(self) -> EmulatedDevice:
        return self

    def synchronize(self) -> None:
        return None

    def record(self, run: Callable[[Any], None]) -> None:
        return None

    def upload(self, data: Array) -> View:
        data = np.ascontiguousarray(data).reshape(data.shape)
        buffer = self.allocate(data.nbytes)
        ctypes.memmove(buffer.pointer, data.ctypes.data, data.nbytes)
        return View(self, buffer, 0, TensorType(data.dtype, data.shape))

    def packed(
        self, pack: Callable[..., Array], sources: Sequence[Array], copies: Mapping[int, View]
    ) -> View:
        """Give each constant memory of its own, behind which a guard finds what reads on."""
        return self.upload(pack(*sources))

    def copier(self, dst: View, src: View) -> Callable[[Any], None]:
        nbytes = dst.nbytes
        if nbytes == 0:
            return lambda stream: None
        target, source = address(dst), address(src)
        if dst.format is not src.format:
            launch = reformat(dst, src)
            code = self.compiler.submit(launch.source)
            return emulated(self, launch, code, {"y": target, "x": source})

        def copy(stream: Any) -> None:
            ctypes.memmove(target, source, nbytes)

        return copy


def emulated(
    device: Any, launch: Launch, code: Future[Any], pointers: Mapping[str, int]
) -> Callable[[Any], None]:
    """Do what `step.bind_launch` does, on the host."""
    library: Library = code.result()
    if launch.is_reversible and library not in _REVERSED:
        return _in_both_orders(launch, library, pointers)
    return _bound(launch, library, pointers)


def _bound(launch: Launch, library: Library, pointers: Mapping[str, int]) -> Callable[[Any], None]:
    kernel = library.kernel(launch.entry)
    cells = {
        name: _described(argument, pointers.get(name) or 0)
        if isinstance(argument, TensorMap)
        else cell(argument, pointers.get(name))
        for name, argument in launch.arguments.items()
    }
    wanted, given = library.sizes(launch.entry), list(map(ctypes.sizeof, cells.values()))
    if wanted != given:
        raise ValueError(f"{launch.title}: parameters of {wanted} bytes, not {given}")
    table = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells.values()))
    grid = grid_of(launch.grid, launch.cluster, cooperative=launch.cooperative)
    extents = _extents(launch, pointers)
    places = _apart(extents.values())

    def run(stream: Any) -> None:
        here = dict(pointers)
        try:
            with moved(places) as starts:
                for name, extent in extents.items():
                    at = bisect_right(places, extent.address, key=lambda place: place.address) - 1
                    here[name] += starts[at] - places[at].address
                    there = ctypes.c_void_p(here[name])  # that of a tensor map is in front
                    ctypes.memmove(ctypes.addressof(cells[name]), ctypes.byref(there), 8)
                if launch.is_reversible:
                    library.turn(backwards=launch.backwards)
                kernel(table, grid, launch.block)
        except OutOfBounds as error:
            where = _told(error.address, here, extents)
            raise KernelError(f"{launch.title}: {where}") from error

    def run_again(stream: Any) -> None:
        """See emulator.hpp; the second time reads what the first may have overwritten."""
        before = [(one.address, ctypes.string_at(one.address, one.nbytes)) for one in places]
        library.forget_clusters()
        run(stream)
        for _ in range(max(1, library.cluster_waits() - 1)):
            for at, content in before:
                ctypes.memmove(at, content, len(content))
            run(stream)

    return run if launch.cluster == (1, 1, 1) else run_again


#: Libraries with kernels that have been run in both orders.
_REVERSED: set[Library] = set()


def _in_both_orders(
    launch: Launch, library: Library, pointers: Mapping[str, int]
) -> Callable[[Any], None]:
    """Return what runs a launch from the end to the beginning and then the other way round.

    Both must store the same, bit for bit.
    """
    _REVERSED.add(library)
    runs = [_bound(replace(launch, backwards=way), library, pointers) for way in (True, False)]
    places = _apart(_extents(launch, pointers).values())

    def contents() -> list[bytes]:
        return [ctypes.string_at(place.address, place.nbytes) for place in places]

    def run(stream: Any) -> None:
        before, stored = contents(), list[list[bytes]]()
        for one in runs:
            for place, content in zip(places, before, strict=True):
                ctypes.memmove(place.address, content, len(content))
            one(stream)
            stored.append(contents())
        if stored[0] != stored[1]:
            raise KernelError(f"{launch.title}: other results in the other order")

    return run


def _extents(launch: Launch, pointers: Mapping[str, int]) -> dict[str, Place]:
    """Return where what arguments are part of lies, but for constants."""
    found: dict[str, Place] = {}
    for name, argument in launch.arguments.items():
        base, address = base_of(argument), pointers.get(name)
        if not address:
            continue
        if isinstance(base, Scratch) and launch.scratch:
            alignment = IN_HALVES if name == "halves" else ALIGNMENT
            found[name] = Place(address - base.offset, launch.scratch, alignment)
        elif isinstance(base, Tensor) and not base.value.is_constant:
            nbytes = base.extent * base.dtype.itemsize
            found[name] = Place(address, nbytes, IN_HALVES if base.format.in_halves else ALIGNMENT)
    return found


def _apart(extents: Iterable[Place]) -> list[Place]:
    """Return the extents in order, those that overlap as one."""
    found: list[Place] = []
    for place in sorted(extents, key=lambda place: place.address):
        overlaps = found and place.address < found[-1].end
        found.append(found.pop().joined(place) if overlaps else place)
    return found


def _told(address: int, pointers: Mapping[str, int], extents: Mapping[str, Place]) -> str:
    """Say where an address is, by the argument next to it."""

    def distance(name: str) -> int:
        behind = address - pointers[name]
        return max(-behind, behind - extents[name].nbytes if name in extents else behind)

    name = min((name for name, at in pointers.items() if at), key=distance)
    size = f", which has {extents[name].nbytes} bytes" if name in extents else ""
    return f"there is no byte {address - pointers[name]} of {name}{size}"


def _described(map: TensorMap, address: int) -> Any:
    """Return a tensor map as bulk.hpp takes it."""
    size = map.dtype.itemsize
    rest = 4 - len(map.dims)
    strides = (size, *(stride * size for stride in map.strides), *(0,) * rest)
    box = (*map.box, *(1,) * (4 - len(map.box)))
    words = struct.pack("<14q", address, size, *map.dims, *(1,) * rest, *strides, *box)
    lower, upper = map.corners or ((0, 0), (0, 0))
    windows = struct.pack("<4h2i", *lower, *upper, *(map.steps[1:3] or (1, 1)))
    return (ctypes.c_char * 128).from_buffer_copy(words + windows)


def open_emulated(folder: Path, patch: Callable[[Any, str, Any], None]) -> CudaBackend:
    """Return the cuda backend on an emulated device.

    Args:
        folder: keeps compiled kernels.
        patch: sets an attribute of a module: pytest's `monkeypatch.setattr`, which undoes it, or
            `setattr` in a separate process.
    """
    patch(stepping, "bind_launch", emulated)
    device: Any = EmulatedDevice(HostCompiler(folder))
    return CudaBackend(device)
