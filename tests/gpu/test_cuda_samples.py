"""Every kernel on the GPU, against the numpy backend, and at sizes beside those of warps.

Also what to run under compute-sanitizer:

    compute-sanitizer --tool memcheck python -m pytest -m gpu tests/gpu/test_cuda_samples.py
"""

from __future__ import annotations

from math import inf
from typing import cast

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.conv import scaled
from tercet.backends.cuda.ops import pool
from tercet.runtime.ir.dtypes import DType, float16, float32

from ..kernels import (
    index_samples,
    integer_samples,
    norm_samples,
    recurrent_samples,
    test_chosen,
    test_chunks,
    test_dots,
    test_epilogue_operands,
    test_excite,
    test_few_terms,
    test_gathered,
    test_masks,
    test_norm_twice,
    test_operand_graphs,
    test_pad_channels,
    test_placed_chains,
    test_places_first,
    test_pool,
    test_pooled_heads,
    test_rotated_heads,
    test_row_chain,
    test_scaled,
    test_scan_chain,
    test_segments,
    test_shared_chains,
    test_short,
    test_short_stacks,
    test_slices_beside,
    test_softmax_chains,
)
from ..kernels.edge_samples import edges
from ..kernels.samples import ERROR, OPTIONS, Sample, compare, sample_of, samples

pytestmark = pytest.mark.gpu

ALL = [
    *(*samples(), *norm_samples.samples(), *integer_samples.samples()),
    *index_samples.samples(),
    *test_chunks.samples(),
    *test_pad_channels.samples(),
]


@pytest.mark.parametrize("sample", ALL, ids=str)
def test_kernels(sample: Sample) -> None:
    compare(sample, *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize("name", test_scan_chain.BUILDS)
def test_kernels_of_scans(name: str) -> None:
    sample = sample_of(test_scan_chain.BUILDS[name])
    compare(sample, *open_backends("cuda", OPTIONS), error=test_scan_chain.limit(name))


@pytest.mark.parametrize("name", test_row_chain.BUILDS)
def test_kernels_of_rows(name: str) -> None:
    sample = sample_of(test_row_chain.BUILDS[name])
    compare(sample, *open_backends("cuda", OPTIONS), error=test_row_chain.limit(name))


@pytest.mark.parametrize("name", test_softmax_chains.BUILDS)
def test_kernels_of_softmax(name: str) -> None:
    sample = sample_of(test_softmax_chains.BUILDS[name])
    compare(sample, *open_backends("cuda", OPTIONS), error=test_softmax_chains.limit(name))


@pytest.mark.parametrize("much", [pool.MUCH, 0])
@pytest.mark.parametrize("sample", test_pool.samples())
def test_kernels_of_pooling(sample: Sample, much: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few results, and as if they were many."""
    monkeypatch.setattr(pool, "MUCH", much)
    compare(sample, *open_backends("cuda", OPTIONS), error=4e-3)


@pytest.mark.parametrize("twice", [*test_norm_twice.TOGETHER, *test_norm_twice.APART], ids=str)
def test_kernels_of_rows_normalized_twice(twice: test_norm_twice.Twice) -> None:
    compare(
        twice.sample(),
        *open_backends("cuda", OPTIONS),
        error=None if twice.cast else ERROR[twice.dtype],
    )


@pytest.mark.parametrize("case", test_excite.CASES.values(), ids=test_excite.CASES)
def test_kernels_of_squeeze_and_excite(case: test_excite.Case) -> None:
    sample = Sample(*test_excite.graph_of(case, float16, float16))
    compare(sample, *open_backends("cuda", OPTIONS), error=4e-3)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((case, float16) for case in test_scaled.CASES.values()),
        *((case, float32) for case, _ in test_scaled.WIDE.values()),
    ],
    ids=str,
)
def test_kernels_of_multiplied_images(
    case: test_scaled.Case, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small images are."""
    monkeypatch.setattr(scaled, "LAUNCH", inf)
    monkeypatch.setattr(scaled, "LARGE", 0)
    sample = Sample(*test_scaled.graph_of(case, dtype, dtype))
    compare(sample, *open_backends("cuda", OPTIONS), error=ERROR[dtype])


@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_kernels_of_pooled_heads(count: int, dtype: DType) -> None:
    net = test_pooled_heads.Heads(dtype, count)
    sample = Sample(net.outputs(net.rows(net.pooled(net.heads()))), net.feeds)
    compare(sample, *open_backends("cuda", OPTIONS), error=test_pooled_heads.ERROR[dtype])


@pytest.mark.parametrize("tiled", [False, True], ids=["constant", "Tile"])
@pytest.mark.parametrize("case", test_masks.REPEATED, ids=str)
def test_kernels_of_repeated_masks(case: test_masks.Repeated, tiled: bool) -> None:
    compare(case.sample(tiled=tiled), *open_backends("cuda", OPTIONS), error=ERROR[case.dtype])


@pytest.mark.parametrize("case", test_masks.SUMMED, ids=str)
def test_kernels_of_masks_that_are_sums(case: test_masks.Summed) -> None:
    compare(case.sample(), *open_backends("cuda", OPTIONS), error=ERROR[case.dtype])


@pytest.mark.parametrize(("case", "dtype"), [each[:2] for each in test_slices_beside.CASES])
def test_kernels_of_slices(case: test_slices_beside.Case, dtype: DType) -> None:
    sample = test_slices_beside.Halves(dtype).sample(case)
    compare(sample, *open_backends("cuda", OPTIONS), error=test_slices_beside.ERROR[dtype])


@pytest.mark.parametrize("seed", range(test_operand_graphs.SAMPLES))
def test_kernels_of_drawn_operands(seed: int) -> None:
    (cuda,) = open_backends("cuda", OPTIONS)
    test_operand_graphs.compare_drawn(seed, cuda, test_operand_graphs.SKIPPED[seed % 2])


@pytest.mark.parametrize("heads", test_rotated_heads.SAMPLES.values(), ids=str)
def test_kernels_of_rotated_heads(heads: test_rotated_heads.Heads) -> None:
    compare(heads.sample(), *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize(
    "sample",
    [
        *(*test_chosen.samples(), *test_gathered.samples(), *test_placed_chains.samples()),
        *(*test_segments.samples(), *test_shared_chains.samples()),
        *(*recurrent_samples.tiled(), *recurrent_samples.multiplied()),
        *(*recurrent_samples.resident(), *recurrent_samples.batch_first()),
    ],
    ids=lambda sample: sample.graph.name,
)
def test_kernels_of_patterns(sample: Sample) -> None:
    compare(sample, *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize(
    "sample",
    [
        *(*test_short.samples(), *test_few_terms.samples()),
        *(*test_dots.samples(), *test_short_stacks.samples()),
    ],
    ids=lambda sample: sample.graph.name,
)
def test_short_products(sample: Sample) -> None:
    compare(sample, *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize(
    "sample", [*recurrent_samples.large()], ids=lambda sample: sample.graph.name
)
def test_large_recurrent_layers(sample: Sample) -> None:
    compare(sample, *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize("case", test_epilogue_operands.BY_LINE)
def test_numbers_of_rows_and_pixels(
    case: test_epilogue_operands.Case, batch: int, dtype: DType
) -> None:
    (backend,) = open_backends("cuda", OPTIONS)
    test_epilogue_operands.assert_exact(case, batch, dtype, cast("CudaBackend", backend))


@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("places", [5, 200, 700])
@pytest.mark.parametrize(("mask", "crossed"), [(False, False), (True, False), (False, True)])
def test_places_before_samples(dtype: DType, places: int, mask: bool, crossed: bool) -> None:
    (backend,) = open_backends("cuda", OPTIONS)
    test_places_first.assert_exact(
        dtype, cast("CudaBackend", backend), places=places, mask=mask, crossed=crossed
    )


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 127, 1009])
def test_edges(n: int) -> None:
    backends = open_backends("cuda", OPTIONS)
    for sample in edges(n):
        compare(sample, *backends)
