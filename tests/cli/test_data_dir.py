"""Weights in another folder than the model's, on every command that reads a model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

import tercet as tercet_api

from .conftest import Tercet
from .models import classifier


@pytest.fixture
def apart(folder: Path) -> Path:
    """A model without the weights that it keeps beside it, and the folder that has them."""
    weights = folder / "weights"
    weights.mkdir()
    file = weights / "apart.onnx"
    onnx.save_model(
        classifier(), file, save_as_external_data=True, location="apart.data", size_threshold=0
    )
    return file.rename(folder / "apart.onnx")


@pytest.mark.parametrize(
    "words",
    [
        "run apart.onnx --repeat 0",
        "inspect apart.onnx",
        "compare apart.onnx -b numpy -b onnxruntime -b onnx.reference --repeat 1",
        "export apart.onnx written.onnx",
        "simplify apart.onnx written.onnx",
        "bench apart.onnx -b numpy --duration 0.01 --warm-up 0",
    ],
)
def test_weights_in_another_folder(tercet: Tercet, apart: Path, words: str) -> None:
    refused = tercet(*words.split())
    assert (refused.code, refused.out) == (2, "")
    assert "is not there; expected in" in refused.err
    assert tercet(*words.split(), "--external-data-dir", "weights").code == 0
    assert tercet(*words.split()).code == 2, "the folder is for one command"


PAIR = ["numpy", "onnxruntime"]
#: Public functions that read a model, each with what it needs besides.
CALLS = {
    "bench": {"runners": ["numpy"], "duration": 0.01, "warm_up": 0.0},
    "bisect": {"runners": ["numpy", "numpy"]},
    "compare": {"runners": PAIR, "repeat": 0},
    "compare_layers": {"runners": PAIR},
    "export": {},
    "extract": {"outputs": ["r"]},
    "inspect": {},
    "keep_float32": {"tolerance": 1e9},
    "load": {},
    "profile": {"repeat": 2, "peaks": False},
    "simplify": {},
}


@pytest.mark.parametrize("name", CALLS)
def test_every_function_that_reads_a_model_takes_the_folder(name: str, apart: Path) -> None:
    call = partial(getattr(tercet_api, name), apart, **CALLS[name])
    with pytest.raises(tercet_api.TercetError, match="is not there; expected in"):
        call()
    found = call(external_data_dir=apart.parent / "weights")
    if isinstance(found, tercet_api.Model):
        found.close()
    with pytest.raises(tercet_api.TercetError, match="is not there; expected in"):
        call()


#: What of a result tells that the nodes of the model were looked at.
FACTS: dict[str, Callable[[Any], Any]] = {
    "bench": lambda found: [(case.error is not None, case.verdict) for case in found.cases],
    "bisect": lambda found: (found.fault, found.runs),
    "compare_layers": lambda found: [layer.nodes for layer in found.layers],
    "inspect": lambda found: [str(node) for node in found.graph.nodes],
    "keep_float32": lambda found: found.candidates,
    "profile": lambda found: len(found.rows),
}


@pytest.mark.parametrize("name", FACTS)
def test_weights_in_files_of_their_own_change_no_finding(name: str, apart: Path) -> None:
    facts, call = FACTS[name], partial(getattr(tercet_api, name), **CALLS[name])
    want = facts(call(classifier()))
    assert want
    assert facts(call(apart, external_data_dir=apart.parent / "weights")) == want
    beside = apart.rename(apart.parent / "weights" / apart.name)
    assert facts(call(beside)) == want


@pytest.mark.parametrize("chosen", ["bisect", "compare --layers", "compare --layers --cumulative"])
def test_runtimes_that_read_files_get_all_nodes(tercet: Tercet, apart: Path, chosen: str) -> None:
    words = [*chosen.split(), "apart.onnx", "-b", "onnxruntime", "-b", "numpy", "--json"]
    done = tercet(*words, "--external-data-dir", "weights")
    assert done.code == 0, done.err
    assert "Conv" in done.out or chosen == "bisect"
