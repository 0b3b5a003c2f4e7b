"""Compiles `.cu` files with NVRTC, which needs no GPU, and keeps the machine code on disk.

What NVRTC sees is one self-contained text: types and constants, generated functions, then the
file with its own headers inlined. So equal texts mean equal code, and the text is the cache key.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import perf_counter

import cuda.pathfinder
from cuda.bindings import nvrtc
from cuda.core import ObjectCode, Program, ProgramOptions

from ...runtime import forks
from ...runtime.cache import Cache
from ...runtime.dtypes import (
    INTEGERS,
    DType,
    bfloat16,
    bool_,
    float4e2m1,
    float8e4m3fn,
    float8e4m3fnuz,
    float8e5m2,
    float8e5m2fnuz,
    float8e8m0,
    float16,
    float32,
    float64,
    int2,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint2,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ...runtime.errors import KernelError
from .status import NVRTCError

KERNELS = Path(__file__).parent / "kernels"

#: The C++ name of every element type that kernels can read and write.
C_TYPES: Mapping[DType, str] = {
    float32: "float",
    float64: "double",
    float16: "__half",
    bfloat16: "__nv_bfloat16",
    int8: "int8",
    int16: "int16",
    int32: "int32",
    int64: "int64",
    uint8: "uint8",
    uint16: "uint16",
    uint32: "uint32",
    uint64: "uint64",
    bool_: "bool",
    float8e4m3fn: "Float8e4m3fn",
    float8e4m3fnuz: "Float8e4m3fnuz",
    float8e5m2: "Float8e5m2",
    float8e5m2fnuz: "Float8e5m2fnuz",
    float8e8m0: "Float8e8m0",
    float4e2m1: "Float4e2m1",
    int4: "Int4",
    int2: "Int2",
    uint4: "Uint4",
    uint2: "Uint2",
}
#: Those of them that `small.cuh` defines.
SMALL = (float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float8e8m0, float4e2m1)
SMALL += (int4, int2, uint4, uint2)
_SMALL_NAMES = frozenset(C_TYPES[dtype] for dtype in SMALL)
_HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h"}
#: What <cmath> and <cstdint> would bring, which NVRTC does not have.
_PRELUDE = (
    "#define INFINITY __int_as_float(0x7f800000)",
    "#define NAN __int_as_float(0x7fffffff)",
    "using int8 = signed char; using uint8 = unsigned char;",
    "using int16 = short; using uint16 = unsigned short;",
    "using int32 = int; using uint32 = unsigned int;",
    "using int64 = long long; using uint64 = unsigned long long;",
)
_INCLUDE = re.compile(r'^#include "([\w/]+\.cuh)"$', re.MULTILINE)
_MESSAGE = re.compile(r"^(\S+)\((\d+)\): (error: .*)$", re.MULTILINE)


def arithmetic(dtype: DType) -> DType:
    """Return the dtype in which kernels compute with elements of another."""
    if dtype in (float32, float64, int32, int64, uint32, uint64):
        return dtype
    return int32 if dtype in INTEGERS or dtype == bool_ else float32


@dataclass(frozen=True, slots=True)
class Source:
    """What is compiled: a file of `kernels/` with everything that its text leaves open.

    Attributes:
        file: its path in `kernels/`, such as ``conv.cu``.
        types: C++ type names by alias, in pairs: ``("T", "float")``.
        constants: values by name, in pairs; they become `constexpr`.
        code: generated functions and macros that the file uses.
    """

    file: str
    types: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, int | bool | float], ...] = ()
    code: str = ""

    def text(self) -> str:
        """Return the whole source, line directives included."""
        lines = [
            f"#include <{header}>"
            for header in dict.fromkeys(_HEADERS.get(name, "") for _, name in self.types)
            if header
        ]
        lines += _PRELUDE
        if any(name in _SMALL_NAMES for _, name in self.types):
            lines += ['#line 1 "small.cuh"', read_kernel("small.cuh")]
        lines += [f"using {alias} = {name};" for alias, name in self.types]
        lines += [_constant(name, value) for name, value in self.constants]
        if self.code:
            lines += ['#line 1 "generated"', _inlined(self.code, "generated")]
        return "\n".join([*lines, f'#line 1 "{self.file}"', read_kernel(self.file)])


def _constant(name: str, value: int | bool | float) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    kind = "int" if isinstance(value, int) else "float"
    return f"constexpr {kind} {name} = {value!r};"


def read_kernel(file: str) -> str:
    """Return a file of `kernels/` with its headers in place of their #include lines."""
    return _inlined((KERNELS / file).read_text(encoding="utf-8"), file)


def _inlined(text: str, file: str) -> str:
    def inline(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 2
        return f'#line 1 "{match[1]}"\n{read_kernel(match[1])}\n#line {line} "{file}"'

    return _INCLUDE.sub(inline, text)


@dataclass(frozen=True, slots=True)
class Target:
    """The processor that kernels are compiled and sized for.

    Attributes:
        arch: NVRTC's name for it: ``sm_80``, ``sm_90a``.
        processors: number of its multiprocessors.
        shared: bytes of shared memory that one block can have.
        code: ``cubin``, or ``ptx`` where NVRTC is older than the GPU and the driver finishes.
    """

    arch: str
    processors: int
    shared: int
    code: str = "cubin"

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can share their memory, and kernels begin early: Hopper and newer."""
        return int(re.sub(r"\D", "", self.arch)) >= 90

    @property
    def has_tf32(self) -> bool:
        """Whether its tensor cores take float32 numbers of 11 bits: Ampere and newer."""
        return int(re.sub(r"\D", "", self.arch)) >= 80

    @property
    def has_wgmma(self) -> bool:
        """Whether it has the products of four warps that only Hopper has."""
        return self.arch == "sm_90a"


H200 = Target("sm_90a", 132, 232448)
A100 = Target("sm_80", 108, 166912)


def target_for(major: int, minor: int, processors: int, shared: int) -> Target:
    """Return the target for a GPU of this compute capability, as far as NVRTC knows it."""
    status, known = nvrtc.nvrtcGetSupportedArchs()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"nvrtcGetSupportedArchs: {status.name}")
    capability = 10 * major + minor
    if capability in known:
        # From Hopper on, an 'a' opens the instructions that only this generation has.
        return Target(f"sm_{capability}{'a' if major >= 9 else ''}", processors, shared)
    older = max(arch for arch in known if arch < capability)
    return Target(f"compute_{older}", processors, shared, "ptx")


@dataclass(slots=True)
class Statistics:
    """What a compiler has done so far.

    Attributes:
        pending: kernels that are being compiled.
        latest: file of the one that was begun last.
        compiled: kernels that NVRTC compiled.
        cached: kernels that lay in the cache on disk.
        milliseconds: time that NVRTC took, all threads together.
        measuring: what the tuner measures; empty where it does not.
    """

    pending: int = 0
    latest: str = ""
    compiled: int = 0
    cached: int = 0
    milliseconds: float = 0.0
    measuring: str = ""


@dataclass(slots=True, eq=False)
class Compiler:
    """Compiles in the background; each source once a process, and once a machine with a cache.

    Attributes:
        target: what for.
        cache: folder of the machine code, see `Cache`; what it does not have is compiled.
        statistics: counts and times.
        on_change: called with `statistics` whenever they change, on any thread.
    """

    target: Target
    cache: Path | None = None
    statistics: Statistics = field(default_factory=Statistics)
    on_change: Callable[[Statistics], None] | None = None
    _codes: dict[Source, Future[ObjectCode]] = field(
        default_factory=dict[Source, Future[ObjectCode]]
    )
    _pool: ThreadPoolExecutor | None = None
    _lock: Lock = field(default_factory=forks.lock)

    def submit(self, source: Source) -> Future[ObjectCode]:
        """Return the code that will be there; its `result` raises KernelError where it fails."""
        with self._lock:
            if source not in self._codes:
                if self._pool is None:
                    workers = min(8, os.cpu_count() or 1)
                    self._pool = ThreadPoolExecutor(workers, thread_name_prefix="nvrtc")
                self._codes[source] = self._pool.submit(self.compile, source)
            return self._codes[source]

    def compile(self, source: Source) -> ObjectCode:
        """Compile now; see `code`."""
        make = ObjectCode.from_cubin if self.target.code == "cubin" else ObjectCode.from_ptx
        return make(self.code(source), name=source.file)

    def code(self, source: Source) -> bytes:
        """Compile now, or take the code from the disk.

        Raises:
            KernelError: the source is wrong; names file and line.
        """
        text = source.text()
        kept = Cache(self.cache / "cuda") if self.cache else None
        entry = self._entry(text)
        code = kept.read(entry) if kept else None
        if code is None:
            code = self._build(source.file, text)
            if kept:
                kept.write(entry, code)
        else:
            self._note(cached=1)
        return code

    def _build(self, file: str, text: str) -> bytes:
        self.statistics.latest = file
        self._note(pending=1)
        start = perf_counter()
        try:
            options = ProgramOptions(
                name=file,
                arch=self.target.arch,
                std="c++17",
                lineinfo=True,  # which tells compute-sanitizer and the profilers where they are
                include_path=toolkit_headers(text),
            )
            code = Program(text, "c++", options).compile(self.target.code).code
        except NVRTCError as error:
            self._note(pending=-1)
            raise _kernel_error(file, str(error)) from None
        self._note(pending=-1, compiled=1, milliseconds=1e3 * (perf_counter() - start))
        return bytes(code)

    def announce(self, measuring: str) -> None:
        """Tell who watches what is measured with the kernels; empty when it is done."""
        self.statistics.measuring = measuring
        self._note()

    def _note(
        self, pending: int = 0, compiled: int = 0, cached: int = 0, milliseconds: float = 0.0
    ) -> None:
        with self._lock:
            now = self.statistics
            now.pending += pending
            now.compiled += compiled
            now.cached += cached
            now.milliseconds += milliseconds
        if self.on_change is not None:
            self.on_change(now)

    def _entry(self, text: str) -> str:
        """Return the name under which the code of a source is kept."""
        parts = (text, self.target.arch, self.target.code, str(nvrtc.nvrtcVersion()[1:]))
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return f"{key[:40]}.{self.target.code}"


def _kernel_error(file: str, log: str) -> KernelError:
    found = _MESSAGE.search(log)
    if found is None:
        return KernelError(f"{file}: {log.strip()}", file=file)
    return KernelError(
        f"{found[1]}:{found[2]}: {found[3]}\n{log[found.end() :].rstrip()}",
        file=found[1],
        line=int(found[2]),
    )


def toolkit_headers(text: str) -> list[str]:
    """Return the folder of the CUDA headers, if the source includes one; float32 needs none."""
    if "#include <" not in text:
        return []
    folder = cuda.pathfinder.find_nvidia_header_directory("cudart")
    if folder is None:
        raise KernelError(
            "float16 and bfloat16 kernels need the CUDA headers (cuda_fp16.h): "
            "pip install 'tercet[cuda13]'"
        )
    return [folder]
