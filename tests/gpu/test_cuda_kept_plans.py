"""Plans that were kept on disk, on a GPU: results are those of plans that are made, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tercet
from tercet.importers import onnx as importer
from tercet.runtime.options import Precision

from ..session.test_kept_plans import NETWORKS, entries, sizes_of, written

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", [name for name, (_, is_kept) in NETWORKS.items() if is_kept])
def test_results(
    name: str, precision: Precision, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the model was read again")

    monkeypatch.delenv("TERCET_VERIFY_PASSES")
    path = written(tmp_path, name, external=name == "attention")
    results = list[list[np.ndarray]]()
    for _ in range(2):
        with tercet.load(path, "cuda", precision=precision, cache=tmp_path / "cache") as model:
            for sizes in (sizes_of(model), sizes_of(model, 3)):
                rng = np.random.default_rng(0)
                feeds = {
                    each.name: rng.integers(0, 3, sizes[each.name]).astype(each.dtype)
                    for each in model.inputs
                }
                results.append(list(model.run(feeds).values()))
        assert entries(tmp_path, "program")
        monkeypatch.setattr(importer, "load", fail)
    for made, kept in zip(results[:2], results[2:], strict=True):
        for one, other in zip(made, kept, strict=True):
            np.testing.assert_array_equal(one, other)
