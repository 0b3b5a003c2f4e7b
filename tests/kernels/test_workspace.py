"""What algorithms of convolutions keep in global memory between their kernels."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.conv.estimates import fft_tiling

from .algorithm_cases import BIG, offered, tasked


@pytest.mark.parametrize(("size", "mib"), [(3, 72), (11, 968)])
def test_the_matrix_of_im2col_is_all_that_explicit_gemm_needs(size: int, mib: int) -> None:
    """Of float32: k * k * c * p * q * 4 bytes, 72.0 and 968.0 MiB."""
    how = {"x": (1, 128, 128, 128), "pads": (size // 2,) * 4}
    candidate = offered("explicit_gemm", 128, 128, size, size, **how)
    assert candidate.workspace == mib << 20 == 128 * size * size * 128 * 128 * 4


@pytest.mark.parametrize(
    "algorithm", ["implicit_gemm", "direct", "winograd_f2", "winograd_f4", "naive"]
)
def test_algorithms_without_a_workspace(algorithm: str) -> None:
    """Direct, implicit and fused algorithms keep nothing in global memory between kernels."""
    assert offered(algorithm, 128, 128, 3, 3, **BIG).workspace == 0


@pytest.mark.parametrize(
    ("algorithm", "out"), [("winograd_f2_nonfused", 2), ("winograd_f4_nonfused", 4)]
)
def test_the_workspace_of_nonfused_winograd(algorithm: str, out: int) -> None:
    tiles = (128 // out) ** 2
    assert offered(algorithm, 128, 128, 3, 3, **BIG).workspace == 4 * (out + 2) ** 2 * tiles * 256


def test_the_workspace_of_fft() -> None:
    selector, task = tasked(128, 128, 11, 11, x=(1, 128, 128, 128), pads=(5,) * 4)
    tiling = fft_tiling(task)
    assert tiling is not None
    algorithm = selector.named("fft")
    assert not isinstance(algorithm, str)
    assert (
        selector.candidate(task, algorithm).workspace == 8 * tiling.frequencies * tiling.tiles * 256
    )


@pytest.mark.parametrize("algorithm", ["winograd_f2_nonfused", "winograd_f4_nonfused", "fft"])
def test_spaces_that_32_bits_cannot_count(algorithm: str) -> None:
    refused = offered(algorithm, 64, 64, 3, 3, x=(800, 64, 224, 224), pads=(1,) * 4)
    assert "elements, not fewer than 2^31" in refused.reason


def test_a_limit_of_the_workspace() -> None:
    """What needs more is refused in words, and without any there is an algorithm all the same."""
    how = {"options": {"workspace": 0}, **BIG}
    refused = offered("explicit_gemm", 128, 128, 3, 3, **how)
    assert refused.reason == "workspace over the limit: needs 75497472 bytes, 0 are allowed"
    selector, task = tasked(
        512, 512, 3, 3, x=(1, 512, 7, 7), pads=(1,) * 4, options={"workspace": 0}
    )
    picked = selector.pick(task)
    assert picked.recipe is not None
    assert picked.workspace == 0
