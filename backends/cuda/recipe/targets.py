"""Target GPUs, by name or as detected: properties that recipes depend on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from ....runtime.base.arguments import refused
from ....runtime.base.record import record
from ....runtime.errors import did_you_mean

#: Bytes of shared memory that CUDA takes for itself in every block.
RESERVED = 1024
#: Registers of a multiprocessor.
REGISTERS = 1 << 16


@record
class Target:
    """The GPU for which kernels are compiled and tuned.

    Attributes:
        arch: NVRTC's name: ``sm_80``, ``sm_90a``.
        processors: number of multiprocessors.
        shared: maximum shared memory per block in bytes.
        code: ``cubin``, or ``ptx`` if NVRTC is older than the GPU and the driver compiles the rest.
        has_clusters: whether it has clusters and programmatic dependent launch: Hopper and newer.
        has_tf32: whether its tensor cores support TF32: Ampere and newer.
        has_wgmma: whether it has wgmma: Hopper only.
    """

    arch: str
    processors: int
    shared: int
    code: str = "cubin"
    has_clusters: bool = field(init=False, repr=False, compare=False)
    has_tf32: bool = field(init=False, repr=False, compare=False)
    has_wgmma: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        generation = int(re.sub(r"\D", "", self.arch))
        object.__setattr__(self, "has_clusters", generation >= 90)
        object.__setattr__(self, "has_tf32", generation >= 80)
        object.__setattr__(self, "has_wgmma", self.arch == "sm_90a")

    def room(self, blocks: int) -> int:
        """Return the most bytes of shared memory per block with which so many share it."""
        return (self.shared + RESERVED) // blocks - RESERVED

    def resident(self, nbytes: int) -> int:
        """Return how many blocks of so many bytes of shared memory fit on a multiprocessor."""
        return (self.shared + RESERVED) // (nbytes + RESERVED)

    def alone(self, nbytes: int) -> int:
        """Return bytes of shared memory, at least this many, with which no two blocks share it.

        Blocks start while those of the preceding kernel still run, on the multiprocessors that are
        idle then: two on each, if they fit, and so twice as slowly. Kernels with at most one block
        per multiprocessor keep them apart.
        """
        return max(nbytes, self.room(2) + RESERVED)

    def spread(self, blocks: int) -> int:
        """Return bytes of shared memory with which multiprocessors have equal shares of blocks.

        Of blocks that start early, see `alone`, small ones all go to the few multiprocessors that
        are idle then, and the others get none. 1024 bytes are left for what kernels declare.
        """
        share = -(-blocks // self.processors)
        return max(0, self.room(share) - 1024) // 16 * 16


def resident_with(registers: int, threads: int) -> int:
    """Return how many blocks a multiprocessor has registers for.

    Args:
        registers: of a thread.
        threads: of a block.
    """
    return REGISTERS // (registers * threads)


H200 = Target("sm_90a", 132, 232448)
A100 = Target("sm_80", 108, 166912)

#: Architectures, with multiprocessors and shared memory per block of a common GPU.
TARGETS: Mapping[str, Target] = {
    "sm_80": Target("sm_80", 108, 166_912),  # A100
    "sm_86": Target("sm_86", 84, 101_376),  # A40
    "sm_87": Target("sm_87", 16, 166_912),  # Jetson AGX Orin
    "sm_89": Target("sm_89", 142, 101_376),  # L40S
    "sm_90a": H200,
    "sm_100a": Target("sm_100a", 148, 232_448),  # B200
    "sm_120a": Target("sm_120a", 188, 101_376),  # RTX PRO 6000
}
#: Parts of the names of GPUs with their architectures; those that contain others come first.
_GPUS: Mapping[str, str] = {
    **dict.fromkeys(("a100", "a30"), "sm_80"),
    **dict.fromkeys(("a10", "a40", "a6000", "3060", "3070", "3080", "3090"), "sm_86"),
    "orin": "sm_87",
    **dict.fromkeys(("l4", "4060", "4070", "4080", "4090"), "sm_89"),
    **dict.fromkeys(("h100", "h200"), "sm_90a"),
    "b200": "sm_100a",
    **dict.fromkeys(("5060", "5070", "5080", "5090"), "sm_120a"),
}


def named_target(text: str) -> Target:
    """Return the target of a name such as ``sm_86``, or ``sm_86:46`` with 46 multiprocessors.

    Raises:
        UsageError: the architecture is unknown, or the number is invalid.
    """
    match = re.fullmatch(r"(sm_\d+a?)(?::([1-9]\d{0,3}))?", text)
    arch = match[1] if match else text.partition(":")[0]
    known = TARGETS.get(arch) or TARGETS.get(f"{arch}a")
    if match is None or known is None:
        meant = (arch for gpu, arch in _GPUS.items() if gpu in text.lower())
        own = next(meant, "")
        hint = f"; did you mean '{own}'?" if own else did_you_mean(arch, TARGETS)
        expected = f"one of {', '.join(TARGETS)}{hint} (sm_86:46 is one with 46 multiprocessors)"
        raise refused("target", text, expected)
    processors = int(match[2]) if match[2] else known.processors
    return Target(known.arch, processors, known.shared)
