"""Compiles `.cu` files with NVRTC, which needs no GPU, and caches the machine code on disk."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import cuda.pathfinder
from cuda.bindings import nvrtc

from ....runtime.base import forks
from ....runtime.base.cache import Cache
from ....runtime.base.parallel import usable_cpus
from ....runtime.errors import CustomKernelError, KernelError, UncompiledError
from ..recipe.source import KernelSource, UserSource
from ..recipe.targets import Target

#: Maximum kernels that are compiled at a time.
MAX_COMPILERS = 16
#: Environment variable: ``never`` makes it an error that the cache lacks a kernel.
COMPILE = "TERCET_COMPILE"

_MESSAGE = re.compile(r"^(\S+)\((\d+)\): (error: .*)$", re.MULTILINE)


def target_for(major: int, minor: int, processors: int, shared: int) -> Target:
    """Return the target for this compute capability, limited to what NVRTC supports."""
    known = _answer(nvrtc.nvrtcGetSupportedArchs())
    capability = 10 * major + minor
    if capability in known:
        # From Hopper on, the suffix 'a' enables architecture-specific instructions.
        return Target(f"sm_{capability}{'a' if major >= 9 else ''}", processors, shared)
    older = max(arch for arch in known if arch < capability)
    return Target(f"compute_{older}", processors, shared, "ptx")


@dataclass(slots=True)
class Statistics:
    """What a compiler has done so far.

    Attributes:
        pending: number of kernels being compiled.
        latest: file of the most recently started one.
        compiled: number of kernels compiled by NVRTC.
        cached: number of kernels found in the disk cache.
        milliseconds: time spent in NVRTC, summed over threads.
        measuring: what the tuner is measuring; empty if nothing.
    """

    pending: int = 0
    latest: str = ""
    compiled: int = 0
    cached: int = 0
    milliseconds: float = 0.0
    measuring: str = ""


@dataclass(slots=True, eq=False)
class Compiler:
    """Compiles in the background, each source once per process; results are cached on disk.

    Attributes:
        target: the target architecture.
        cache: folder of compiled code, see `Cache`.
        statistics: counts and times.
        on_change: called with `statistics` whenever they change, on any thread.
        on_code: called with the code of each kernel submitted, on the thread that obtained it and
            before anyone else gets it, but not while the tuner measures; must raise nothing.
    """

    target: Target
    cache: Path | None = None
    statistics: Statistics = field(default_factory=Statistics)
    on_change: Callable[[Statistics], None] | None = None
    on_code: Callable[[bytes], None] | None = None
    _codes: dict[KernelSource, Future[bytes]] = field(
        default_factory=dict[KernelSource, Future[bytes]]
    )
    _pool: ThreadPoolExecutor | None = None
    _lock: Lock = field(default_factory=forks.lock)

    def submit(self, source: KernelSource, *, here: bool = False) -> Future[bytes]:
        """Return a future of the code; its `result` raises KernelError on failure.

        Args:
            source: the kernel.
            here: whether it is compiled on this thread, which needs it before it goes on, and not
                behind all others.
        """
        with self._lock:
            if source in self._codes:
                return self._codes[source]
            if not here:
                if self._pool is None:
                    workers = min(MAX_COMPILERS, usable_cpus())
                    self._pool = ThreadPoolExecutor(workers, thread_name_prefix="nvrtc")
                self._codes[source] = self._pool.submit(self._obtain, source)
                return self._codes[source]
            code = self._codes[source] = Future()
        try:
            code.set_result(self._obtain(source))
        except BaseException as error:
            code.set_exception(error)
        return code

    def finish(self) -> tuple[bytes, ...]:
        """Return the code of all kernels submitted so far, each once; waits for it.

        Raises:
            KernelError: a source is wrong; names file and line.
        """
        with self._lock:
            submitted = list(self._codes.values())
        return tuple(code.result() for code in submitted)

    def lacking(self) -> tuple[str, ...]:
        """Return the files of all kernels submitted so far whose code the cache does not have."""
        with self._lock:
            submitted = list(self._codes)
        kept = Cache(self.cache / "cuda") if self.cache else None
        return tuple(
            source.file
            for source in submitted
            if kept is None or kept.read(self._entry(source.text())) is None
        )

    def uncompiled(self) -> UncompiledError:
        """Return the error that names all kernels submitted so far that must not be compiled."""
        with self._lock:
            submitted = list(self._codes.items())
        errors = {source: code.exception() for source, code in submitted}
        lacking = [s for s, error in errors.items() if isinstance(error, UncompiledError)]
        with self._lock:
            for source in lacking:  # the cache may have them when they are submitted again
                self._codes.pop(source, None)
        return self._uncompiled(source.file for source in lacking)

    def _uncompiled(self, files: Iterable[str]) -> UncompiledError:
        kernels = tuple(dict.fromkeys(files))
        return UncompiledError(
            f"{COMPILE}=never, and the cache {self.cache} has no code for {self.target.arch} of "
            f"{', '.join(kernels)}; run the model once without {COMPILE}, or `tercet compile` it",
            kernels,
        )

    def _obtain(self, source: KernelSource) -> bytes:
        code = self.code(source)
        if self.on_code is not None and not self.statistics.measuring:
            self.on_code(code)
        return code

    def code(self, source: KernelSource) -> bytes:
        """Compile synchronously, or read the code from the cache.

        Raises:
            KernelError: the source is wrong; names file and line. CustomKernelError if it is a
                user's.
            UncompiledError: the cache lacks it, and it must not be compiled.
        """
        text = source.text()
        kept = Cache(self.cache / "cuda") if self.cache else None
        entry = self._entry(text)
        code = kept.read(entry) if kept else None
        if code is None:
            if os.environ.get(COMPILE) == "never":
                raise self._uncompiled([source.file])
            try:
                code = self._build(source.file, text)
            except KernelError as error:
                if isinstance(source.file, UserSource):
                    raise CustomKernelError.of(error) from error
                raise
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
            code = compiled(file, text, self.options(text), self.target.code)
        except KernelError:
            self._note(pending=-1)
            raise
        self._note(pending=-1, compiled=1, milliseconds=1e3 * (perf_counter() - start))
        return code

    def options(self, text: str) -> list[str]:
        """Return NVRTC's options for a source."""
        return [
            f"--gpu-architecture={self.target.arch}",
            "--std=c++17",
            "--generate-line-info",  # tells compute-sanitizer and profilers the source line
            *(f"--include-path={folder}" for folder in toolkit_headers(text)),
        ]

    def announce(self, measuring: str) -> None:
        """Report what is being measured with the kernels; empty when done."""
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
        """Return the cache entry name of a source."""
        parts = (text, self.target.arch, self.target.code, str(nvrtc.nvrtcVersion()[1:]))
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return f"{key[:40]}.{self.target.code}"


def compiled(file: str, text: str, options: Sequence[str], kind: str) -> bytes:
    """Compile a source with NVRTC.

    Args:
        file: its name, for messages.
        text: the source.
        options: of NVRTC.
        kind: ``cubin`` or ``ptx``.

    Raises:
        KernelError: the source is wrong; names file and line.
    """
    program = _answer(nvrtc.nvrtcCreateProgram(text.encode(), file.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [each.encode() for each in options]
        )
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytes(_answer(nvrtc.nvrtcGetProgramLogSize(program)))
            _answer(nvrtc.nvrtcGetProgramLog(program, log))
            said = log.decode(errors="replace").rstrip("\0 \n")
            raise _kernel_error(file, f"{status.name}\n{said}")
        size, get = {
            "cubin": (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
            "ptx": (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
        }[kind]
        code = bytes(_answer(size(program)))
        _answer(get(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _answer(answer: tuple[Any, ...]) -> Any:
    """Return the result of a call of NVRTC."""
    status, *results = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"NVRTC failed with {status.name}")
    return results[0] if results else None


def _kernel_error(file: str, log: str) -> KernelError:
    found = _MESSAGE.search(log)
    if found is None:
        return KernelError(f"{file}: {log}", file=file)
    return KernelError(
        f"{found[1]}:{found[2]}: {found[3]}\n{log[found.end() :]}",
        file=found[1],
        line=int(found[2]),
    )


def toolkit_headers(text: str) -> list[str]:
    """Return the folder of CUDA headers if the source includes one; float32 needs none."""
    if "#include <" not in text:
        return []
    folder = cuda.pathfinder.find_nvidia_header_directory("cudart")
    if folder is None:
        raise KernelError(
            "float16 and bfloat16 kernels need the CUDA headers (cuda_fp16.h): "
            "pip install 'tercet[cuda13]'"
        )
    return [folder]
