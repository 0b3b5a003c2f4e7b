"""Products of rows that another one stores with moments, normalized: which are, and results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.gemm import normalized
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.elementwise import Add, Gelu
from tercet.runtime.session.model import Model

from .cubins import assert_arguments
from .dry import DryCompiler, DryDevice, launches, planned
from .emulator import needs_compiler
from .normalized_cases import Case, exact_of, graph_of
from .samples import ERROR, OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend


CASES = {
    "plain": Case((1, 70)),
    "some rows": Case((1, 17), columns=192, ends=False, is_read=True),
    "several samples": Case((3, 33), columns=192),
    "far from zero": Case((1, 65), offset=4.0, shifted=False),
    "root mean square": Case((1, 72), centred=False, shifted=False, offset=1.0),
    "factor, transposed": Case((130,), columns=64, gemm=True, ends=False),
    "small weights": Case((1, 70), size=1e-3, shifted=False, bias=False),
    "sums of several blocks": Case((1, 80), columns=768, inner=1536, ends=False),
    "few terms": Case((1, 130), terms=192, inner=192),
    "many terms": Case((1, 70), terms=1024, inner=1024),
    "normalized rows are read as well": Case((2, 40), ends=False, is_read=True),
    "both are, without a shift": Case((1, 150), columns=1536, shifted=False, is_read=True),
}
OTHERS = {
    "few rows": Case((1, 16)),
    "large weights of few rows": Case((1, 64), columns=6144),
    "many rows": Case((1, 513)),
    "terms that are no parts": Case((1, 70), terms=776),
    "fewer terms": Case((1, 130), terms=128),
    "few terms of few rows": Case((1, 128), terms=384),
}


def notes(case: Case, dtype: DType = float16, target: Target = H200) -> list[str]:
    device = DryDevice(compiler=DryCompiler(target))
    return [one.title for one in launches(planned(graph_of(case, dtype, dtype)[0], device))]


@needs_compiler
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, float16) for name in CASES), ("plain", bfloat16)]
)
def test_results(
    name: str, dtype: DType, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normalized, "SAVED", 100.0)
    case = CASES[name]
    graph, feeds = graph_of(case, dtype, dtype)
    with Model(graph, [h200], OPTIONS, evaluate) as model:
        (kernel,) = (row.kernel for row in model.prepare().rows if row.kind == "step")
        assert "after" in kernel
        found = model.run(feeds)
    for result, want in exact_of(case, dtype, feeds).items():
        got = found[result].astype(float64)
        np.testing.assert_allclose(got, want, rtol=0, atol=ERROR[dtype] * np.abs(want).max())


@pytest.mark.parametrize(
    ("case", "fused"),
    [
        (Case((1, 197), columns=3072, inner=768), True),  # ViT-B's
        (Case((1, 197), columns=2304, inner=3072), True),
        (Case((1, 197), columns=3072, inner=768, ends=False, is_read=True), True),
        (Case((1, 128), columns=3072, inner=768), True),  # BERT-base's
        (Case((1, 50), columns=3072, inner=768), True),  # ViT-B/32's
        (Case((1, 257), columns=3072, inner=768), True),  # DINOv2's
        (Case((1, 394), columns=2304, inner=3072), True),
        (Case((1, 128), columns=4096, terms=1024, inner=1024), True),  # BERT-large's
        (Case((1, 197), columns=1536, terms=384, inner=384), True),  # ViT-S's
        (Case((1, 600), columns=3072, inner=768), False),
    ],
)
def test_layers(case: Case, fused: bool) -> None:
    titles = notes(case)
    assert len(titles) == (2 if fused else 3)
    assert ("moments" in titles[0], "after LayerNormalization" in titles[-1]) == (fused, fused)


def test_what_waits_for_the_rows_elsewhere_is_added_by_a_kernel_of_its_own() -> None:
    """The second product would wait for itself if it added what others compute of the rows."""
    graph, _ = graph_of(Case((1, 197), columns=768, inner=768), float16, float16)
    y, rows = graph.outputs["y"], graph.outputs["rows"]
    other = graph.insert(Gelu(), [rows]).output
    graph.set_outputs({"y": graph.insert(Add(), [y, other]).output, "rows": rows})
    infer(graph)
    assert not any("moments" in one.title for one in launches(planned(graph)))


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_others_are_two_kernels(case: Case) -> None:
    assert not any("after" in note for note in notes(case))


@pytest.mark.parametrize(("dtype", "target"), [(float32, H200), (float16, A100)], ids=str)
def test_where_no_kernel_has_it(dtype: DType, target: Target) -> None:
    assert len(notes(CASES["plain"], dtype, target)) > 1


def test_they_compile(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized, "SAVED", 100.0)
    graphs = (graph_of(case, t, t)[0] for case in CASES.values() for t in (float16, bfloat16))
    made = [launch for graph in graphs for launch in launches(planned(graph))]
    assert {launch.file for launch in made} == {"gemm/swap_ab.cu"}
    assert_arguments(made, H200, cache)
