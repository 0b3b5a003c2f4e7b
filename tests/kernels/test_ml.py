"""Kernels of classical models: they compile, and compute what onnxruntime's CPU does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, planned_model
from .emulator import needs_compiler
from .ml_models import models, own_models

COMPILES = {"ml/features.cu", "ml/linear.cu", "ml/scores.cu", "ml/trees.cu"}
MODELS = [pytest.param(proto, feeds, id=name) for name, proto, feeds in models()]
OWN = [pytest.param(proto, feeds, id=name) for name, proto, feeds in own_models()]


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    found = []
    for _, proto, _ in models():
        with tercet.load(proto) as model:
            found += launches(planned_model(model, device))
    assert {launch.file for launch in found} >= COMPILES
    all_compile(list(device.compiler.sources), target, cache, COMPILES)
    assert_arguments(found, target, cache)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("proto", "feeds"), MODELS)
def test_results(proto: ModelProto, feeds: dict[str, Array], emulated: CudaBackend) -> None:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found, _ = both(proto, feeds, emulated)
    for mine, result in zip(found, session.run(None, feeds), strict=True):
        theirs = np.asarray(result)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("proto", "feeds"), [*MODELS, *OWN])
def test_results_are_those_of_numpy(
    proto: ModelProto, feeds: dict[str, Array], emulated: CudaBackend
) -> None:
    """Labels, features that trees compare, and all of trees, whose sums of float32 are exact."""
    exact = proto.graph.name.startswith(("Tree", "Scaler"))
    for mine, numpys in zip(*both(proto, feeds, emulated), strict=True):
        if mine.dtype.kind == "i" or (exact and mine.dtype == np.float32):
            np.testing.assert_array_equal(mine, numpys)
        elif mine.dtype == np.float64:
            np.testing.assert_allclose(mine, numpys, rtol=1e-14, atol=1e-15)


def both(
    proto: ModelProto, feeds: dict[str, Array], emulated: CudaBackend
) -> tuple[list[Array], list[Array]]:
    """Return what the emulated GPU computes, and what numpy does."""
    with tercet.load(proto) as host, Model(host.imported, [emulated], Options(), evaluate) as model:
        own, found = host.run(feeds).values(), model.run(feeds).values()
        return [np.asarray(x) for x in found], [np.asarray(x) for x in own]
