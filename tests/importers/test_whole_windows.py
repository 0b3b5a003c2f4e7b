"""Caches of sliding windows become caches of all positions, for callers that own them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet import Generator
from tercet.runtime.session.cache_layout import DecoderLayout
from tercet.runtime.session.opened_caches import passed_decoder

DECODERS = Path(__file__).parents[1] / "producers" / "decoders"
GEMMA = DECODERS / "genai_gemma2_int4" / "model.onnx"
IDS = np.array([[0, 259, 71, 223, 287, 278, 5, 9, 12, 40, 7, 3]], np.int64)
pytestmark = pytest.mark.filterwarnings("ignore::tercet.ModelWarning")


def test_results_are_those_of_windows() -> None:
    """Of 8 positions in one of two layers, over 20."""
    with tercet.load(GEMMA) as model:
        windowed = DecoderLayout.of(model.imported)
        with passed_decoder(model, windowed, 1, 32) as decoder:
            wanted = [decoder.read(part) for part in (IDS, IDS[:, :1], IDS[:, 3:10])]
    with tercet.load(GEMMA, whole_caches=True) as model:
        layout = DecoderLayout.of(model.imported)
        with passed_decoder(model, layout, 1, 32) as decoder:
            found = [decoder.read(part) for part in (IDS, IDS[:, :1], IDS[:, 3:10])]
            assert {array.shape[2] for array in decoder.caches().values()} == {20}
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert [each.window for each in windowed.caches].count(8) == 2
    assert all(each.grows and each.window is None for each in layout.caches)


def test_lengths_of_a_file_stay(tmp_path: Path) -> None:
    model = onnx.load(GEMMA)
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if "sliding" in dims[2 if len(dims) > 2 else 0].dim_param:
            dims[2].dim_value = 8
    onnx.save(model, tmp_path / "model.onnx")
    with tercet.load(tmp_path / "model.onnx", whole_caches=True) as loaded:
        caches = DecoderLayout.of(loaded.imported).caches
    assert [(each.grows, each.room) for each in caches].count((False, 8)) == 2


def test_generators_own_their_caches() -> None:
    """So they can be rewound."""
    with Generator(GEMMA.parent, reuse=True) as generator:
        generator.generate_ids(IDS[0].tolist(), max_new_tokens=1)
        assert generator.rewind(5) == 5
        assert len(generator.ids) == 5


def test_generators_leave_caches_as_they_are() -> None:
    """If asked to; tokens are the same."""
    prompt = IDS[0].tolist()
    how: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}
    with Generator(GEMMA.parent) as whole, Generator(GEMMA.parent, whole_caches=False) as windows:
        assert all(each.window is None for each in whole.layout.caches)
        assert [each.window for each in windows.layout.caches].count(8) == 2
        texts = [each.generate_ids(prompt, **how).continuations[0].ids for each in (whole, windows)]
    assert texts[0] == texts[1]
