"""Rates that data sheets promise, of the common GPU of each architecture that kernels are made for.

Rates of tensor cores are those of dense matrices with sums in float32 or int32. Sources: NVIDIA's
data sheets of A100 (80 GB SXM), A40, Jetson AGX Orin (64 GB), L40S, H200 (SXM), HGX B200 and RTX
PRO 6000 Blackwell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .roofline import Rates

if TYPE_CHECKING:
    from ...backends.cuda.recipe.targets import Target


@dataclass(frozen=True, slots=True)
class DataSheet:
    """A GPU's rates.

    Attributes:
        gpu: its name.
        memory: bytes per second.
        float32: operations per second without tensor cores.
        tf32: operations per second of tensor cores, as all below.
        float16: likewise, also of bfloat16.
        int8: likewise.
        float8: likewise; that of float16 where there is none.
        float64: by tensor cores or without, whichever is faster.
    """

    gpu: str
    memory: float
    float32: float
    tf32: float
    float16: float
    int8: float
    float8: float
    float64: float

    @property
    def three_float16(self) -> float:
        """Operations in float32 per second, each of which is three of float16."""
        return self.float16 / 3

    @property
    def three_tf32(self) -> float:
        """Operations in float32 per second, each of which is three of TF32."""
        return self.tf32 / 3


#: Seconds of a kernel that does nearly nothing, in a graph of them: measured on an H200.
LAUNCH = 0.5e-6
#: By architecture.
DATA_SHEETS: Mapping[str, DataSheet] = {
    "sm_80": DataSheet("A100", 2.039e12, 19.5e12, 156e12, 312e12, 624e12, 312e12, 19.5e12),
    "sm_86": DataSheet("A40", 696e9, 37.4e12, 74.8e12, 149.7e12, 299.3e12, 149.7e12, 0.58e12),
    "sm_87": DataSheet("Orin", 204.8e9, 5.3e12, 21.2e12, 42.5e12, 85e12, 42.5e12, 0.083e12),
    "sm_89": DataSheet("L40S", 864e9, 91.6e12, 183e12, 362e12, 733e12, 733e12, 1.4e12),
    "sm_90a": DataSheet("H200", 4.8e12, 67e12, 494e12, 989e12, 1979e12, 1979e12, 67e12),
    "sm_100a": DataSheet("B200", 8e12, 75e12, 1125e12, 2250e12, 4500e12, 4500e12, 37e12),
    "sm_120a": DataSheet("RTX PRO 6000", 1.792e12, 125e12, 252e12, 504e12, 1008e12, 1008e12, 2e12),
}


def rates_of(target: Target, precision: str, memory: float | None = None) -> Rates:
    """Return the rates of a GPU, whose units are as fast as those of its architecture's common one.

    Args:
        target: the GPU.
        precision: compute precision of float32 tensors.
        memory: bytes per second of its memory; those of the common GPU if None.
    """
    from ...backends.cuda.recipe.targets import TARGETS

    sheet = DATA_SHEETS[target.arch]
    part = target.processors / TARGETS[target.arch].processors
    float32 = max(sheet.float32, sheet.three_float16, sheet.three_tf32)
    flops = {
        "float32": sheet.tf32 if precision == "tf32" else float32,
        "float16": sheet.float16,
        "bfloat16": sheet.float16,
        "int8": sheet.int8,
        "float64": sheet.float64,
        "float8e4m3fn": sheet.float8,
        "float8e5m2": sheet.float8,
    }
    return Rates(
        memory or sheet.memory, {name: part * rate for name, rate in flops.items()}, LAUNCH
    )
