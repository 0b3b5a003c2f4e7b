"""The program with planted faults still plants them: kernels and lines are where it says."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from onnx.parser import parse_model

import tercet
from tercet.backends.cuda.recipe.source import KERNELS

from ..gpu.planted import EDITS, TEXT
from .dry import DryDevice, launches, planned_model


def test_each_node_is_a_kernel_of_its_own() -> None:
    with tercet.load(parse_model(TEXT)) as model:
        titles = [launch.title for launch in launches(planned_model(model, DryDevice()))]
    assert titles == ["elementwise Cos", "elementwise Sigmoid", "transpose 1 x 40 x 50"]


@pytest.mark.parametrize("kind", EDITS)
def test_edited_lines_exist(kind: str) -> None:
    name, old, _ = EDITS[kind]
    assert old in (KERNELS / name).read_text(encoding="utf-8")
