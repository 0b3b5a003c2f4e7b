"""Inverted residuals whose expanded pixels stay in registers, against float64."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.conv import inverted_residual as fused
from tercet.backends.cuda.conv import residual_patches
from tercet.backends.cuda.conv.residual_patches import PatchForm
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16
from tercet.runtime.ops.elementwise import HardSwish
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, planned
from .emulator import needs_compiler
from .samples import OPTIONS
from .test_inverted_residual import CASES as ALL
from .test_inverted_residual import Case, check, graph_of

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Kernels that this module compiles.
COMPILES = {"conv/residual_patches.cu"}
ENTRY = "residual_patches"

TWICE, LARGE = (2, 2), {"kernel": (5, 5), "pads": (2, 2, 2, 2)}
CASES = {
    **{case: ALL[case] for case in ("residual", "stride", "without expansion", "part")},
    "first layer": ALL["first layer"],
    "first layer, stride": Case((1, 4, 45, 24), 48, 24, strides=TWICE, windows=(3, 4), casts=True),
    "first layer of large windows": Case((2, 1, 23, 32), 40, 16, windows=(5, 7), **LARGE),
    "whole patches": Case((1, 16, 14, 14), 96, 24),
    "whole patches, stride": Case((1, 16, 28, 28), 96, 24, strides=TWICE),
    "large windows": Case((1, 16, 13, 12), 64, 24, activation=HardSwish(), **LARGE),
    "large windows, stride": Case((1, 16, 27, 23), 64, 24, strides=TWICE, **LARGE),
    "without expansion, stride": Case((2, 32, 23, 19), 0, 24, strides=TWICE),
    "without padding": Case((1, 40, 9, 9), 48, 8, pads=(0, 0, 0, 0), bias=False),
}
#: Forms for all cases: several chunks, warps with several walks, tiles of one to eight patches.
FORMS = (
    PatchForm(4, 4, 2, 2, 48, stages=2),
    PatchForm(7, 7, 1, 2, 16),
    PatchForm(4, 7, 2, 4, 32, walks=3),
    PatchForm(3, 4, 1, 1, 96, walks=2),
)


def always(form: PatchForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every inverted residual have a form."""
    monkeypatch.setattr(fused, "forms", lambda p: [])
    monkeypatch.setattr(fused, "MARGIN", inf)
    monkeypatch.setattr(residual_patches, "forms", lambda p: [form])


@needs_compiler
@pytest.mark.parametrize(
    ("case", "form"),
    [*((case, FORMS[0]) for case in CASES), *(("residual", form) for form in FORMS[1:])],
    ids=str,
)
def test_results(
    case: str, form: PatchForm, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles reach over the image's edges, and blocks have several."""
    always(form, monkeypatch)
    check(CASES[case], float16, hopper, ENTRY)


@needs_compiler
@pytest.mark.parametrize("case", ["whole patches", "whole patches, stride"])
def test_whole_patches(case: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only edges of patches may be outside of the image."""
    always(PatchForm(7, 7, 2, 2, 48), monkeypatch)
    check(CASES[case], float16, hopper, ENTRY)


@needs_compiler
def test_bfloat16(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    always(FORMS[0], monkeypatch)
    check(CASES["stride"], bfloat16, hopper, ENTRY)


@needs_compiler
def test_nan_stays_near_its_pixel(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding next to it, and other pixels of its column, are zero and finite."""
    always(FORMS[0], monkeypatch)
    graph, image = graph_of(CASES["whole patches"], float16, float16)
    image[0, 3, 0, 5] = np.nan
    with Model(graph, [hopper], OPTIONS, evaluate) as model:
        (lost,) = np.isnan(model.run({"x": image})["y"]).any(1)
    far = np.ones((14, 14), bool)
    far[:2, 4:7] = False
    assert lost[:2, 4:7].all()
    assert not lost[far].any()


def chosen(case: Case, dtype: DType, **options: Any) -> list[str]:
    """Return the entries of a graph's kernels."""
    return [
        launch.entry for launch in launches(planned(graph_of(case, dtype, dtype)[0], **options))
    ]


def test_those_of_large_images_are_chosen() -> None:
    """MobileNetV2's, in large batches of 16-bit floats; with few pixels others are faster."""
    for case in (
        Case((32, 32, 112, 112), 0, 16),
        Case((32, 16, 112, 112), 96, 24, strides=TWICE),
        Case((32, 24, 56, 56), 144, 24, adds=True),
    ):
        assert chosen(case, float16).count(ENTRY) == 1
    for case in (Case((1, 24, 56, 56), 144, 24), Case((32, 64, 14, 14), 384, 64)):
        assert ENTRY not in chosen(case, float16)
    first = Case((16, 3, 112, 112), 32, 16, windows=(3, 3), casts=True)
    assert chosen(first, float16) == [ENTRY]
    assert ENTRY not in chosen(replace(first, shape=(1, 3, 112, 112)), float16)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_names(form: PatchForm) -> None:
    assert PatchForm.parse(str(form)) == form
    assert PatchForm.parse("7x7x96 split 4") is None


def test_forms_fit() -> None:
    """Those that are yielded leave room for their blocks, and have warps for all walks."""
    found = []

    def keep(p: Any) -> list[PatchForm]:
        found.extend((p, form) for form in plain(p))
        return []

    plain = residual_patches.forms
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(residual_patches, "forms", keep)
        chosen(Case((32, 24, 56, 56), 144, 24), float16)
    assert len(found) > 20
    for p, form in found:
        assert form.shared(p) * form.resident(p) <= p.target.shared
        assert form.warps * form.walks >= form.items


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    found: list[Any] = []
    for form in FORMS:
        always(form, monkeypatch)
        for case, dtype in (
            *(("residual", float16), ("without expansion, stride", bfloat16)),
            *(("first layer", bfloat16), ("first layer of large windows", float16)),
        ):
            found += launches(planned(graph_of(CASES[case], dtype, dtype)[0], device))
    found = [launch for launch in found if launch.entry == ENTRY]
    assert len(found) == 4 * len(FORMS)
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES)
    assert_arguments(found, target, cache)
