"""Hand-written CUDA kernels, compiled by NVRTC and launched through the driver."""

from __future__ import annotations

from ...runtime.errors import BackendUnavailable
from ...runtime.options import Options
from ...runtime.plan.backend import Backend
from .integers import why_floats

#: See `Options.integers`.
INTEGERS = why_floats
#: Options that only some backends use.
USES = ("device", "tune", "tf32")
#: Names for `Options.conv` and `Options.algorithms`; docs/algorithms.md describes them.
ALGORITHMS = (
    "naive",
    "naive_nhwc",
    "direct",
    "explicit_gemm",
    "volume",
    "subpixel",
    "implicit_gemm",
    "implicit_precomp_gemm",
    "gemm_1x1",
    "winograd_f2",
    "winograd_f4",
    "winograd_f2_nonfused",
    "winograd_f4_nonfused",
    "fft",
    "depthwise",
    "few_channels",
    "few_channels_mma",
    "grouped",
    "tensor_cores",
    "half_sums",
    "in_halves",
    "strided",
    "gemv",
    "short",
    "few_terms",
    "short_stacks",
    "dots",
    "gemm",
    "gemm_naive",
    "gemm_blocked",
    "gemm_registers",
    "gemm_vectors",
)


def open_backends(options: Options) -> tuple[Backend, ...]:
    """Return the backend as the only entry of a list.

    Raises:
        BackendUnavailable: no driver, no GPU that can run the kernels, no bindings or no NVRTC.
    """
    try:
        from .driver.wake import waking

        with waking(options.device):
            from .backend import CudaBackend
            from .device import open_device
    except ImportError as error:
        raise BackendUnavailable(
            "cuda", f"the CUDA packages for Python are missing ({error})", REMEDY
        ) from None
    return (CudaBackend(open_device(options.cache, ordinal=options.device)),)


REMEDY = "pip install 'tercet[cuda13]' (or 'tercet[cuda12]' for a driver of CUDA 12)"
