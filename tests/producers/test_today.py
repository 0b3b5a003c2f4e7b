"""The same models made with the converters that are installed here, where they are."""

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import tercet
from tercet.tools.common.nested import flat

from .record import Made, by_onnxruntime, from_boosters, from_sklearn, from_texts
from .test_recorded import agree

PACKAGES = ("sklearn", "skl2onnx", "onnxmltools", "xgboost", "lightgbm", "catboost", "pandas")
MISSING = [name for name in PACKAGES if find_spec(name) is None]


def every() -> Iterator[tuple[str, Made]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for family in (from_sklearn, from_texts, from_boosters):
            for name, make in family():
                yield name, make()


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_models_made_here() -> None:
    for _, (model, feeds) in every():
        with tercet.load(model) as loaded, warnings.catch_warnings():
            warnings.simplefilter("ignore", tercet.ModelWarning)  # CatBoost's declarations
            found = flat(loaded.run(feeds))
        agree(found, flat(by_onnxruntime(model, feeds)))
