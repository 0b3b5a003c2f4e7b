"""Hand-written CUDA kernels, compiled by NVRTC and launched through the driver."""

from __future__ import annotations

from ...runtime.errors import BackendUnavailable
from ...runtime.options import Options
from ...runtime.plan.backend import Backend
from .integers import why_floats

#: See `Options.integers`.
INTEGERS = why_floats
#: Products read packed weights.
PACKS = True
#: Options that only some backends use.
USES = ("device", "tune", "tf32")
_OF_CONV, _OF_PRODUCTS = ("Conv",), ("MatMul", "Gemm")
_OF_BOTH = (*_OF_CONV, *_OF_PRODUCTS)
_OF_CONVS = ("Conv", "ConvTranspose")
#: Names for `Options.conv` and `Options.algorithms`, with the operators that have such an
#: algorithm; docs/algorithms.md describes them.
ALGORITHMS = {
    "naive": (*_OF_CONVS, *_OF_PRODUCTS),
    "naive_nhwc": _OF_CONV,
    "direct": _OF_CONV,
    "explicit_gemm": _OF_CONVS,
    "volume": _OF_CONV,
    "subpixel": ("ConvTranspose",),
    "implicit_gemm": _OF_CONVS,
    "implicit_precomp_gemm": _OF_CONV,
    "gemm_1x1": _OF_CONV,
    "winograd_f2": _OF_CONV,
    "winograd_f4": _OF_CONV,
    "winograd_f2_nonfused": _OF_CONV,
    "winograd_f4_nonfused": _OF_CONV,
    "fft": _OF_CONV,
    "depthwise": _OF_CONVS,
    "few_channels": _OF_CONV,
    "few_channels_mma": _OF_CONV,
    "grouped": _OF_CONV,
    "tensor_cores": _OF_BOTH,
    "half_sums": _OF_BOTH,
    "in_halves": _OF_BOTH,
    "strided": _OF_PRODUCTS,
    "gemv": _OF_PRODUCTS,
    "short": _OF_PRODUCTS,
    "few_terms": _OF_PRODUCTS,
    "short_stacks": _OF_PRODUCTS,
    "dots": _OF_PRODUCTS,
    "gemm": _OF_PRODUCTS,
    "gemm_naive": ("MatMul",),
    "gemm_blocked": ("MatMul",),
    "gemm_registers": ("MatMul",),
    "gemm_vectors": ("MatMul",),
}


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
