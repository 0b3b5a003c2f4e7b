"""The nine light models: their shipped outputs, onnxruntime's logits, and the passes' exactness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tercet
from tercet.tools.workshop.light_models import NAMES, light_inputs, light_model

from .slim import WHOLE, exact_logits, slim_model

Feeds = dict[str, np.ndarray]


@pytest.mark.parametrize("name", NAMES)
def test_shipped_outputs(name: str, backend: str, light_models: Path) -> None:
    """The files' own weights are one constant each, so this proves little."""
    tensor = onnx.TensorProto.FromString((light_models / f"light_{name}_output_0.pb").read_bytes())
    with tercet.load(light_models / f"light_{name}.onnx", backend) as model:
        (info,) = model.inputs
        # what onnx's own runner feeds: 0, 1, 2, ... over the number of elements
        assert info.shape is not None
        shape = tuple(dim for dim in info.shape if isinstance(dim, int))
        size = int(np.prod(shape))
        x = (np.arange(size) / size).reshape(shape).astype(np.float32)
        np.testing.assert_allclose(model(x)[0], numpy_helper.to_array(tensor), rtol=1e-3, atol=1e-7)


@pytest.fixture(scope="module", params=NAMES)
def light(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, Feeds, np.ndarray]:
    """A model, its inputs and onnxruntime's logits, once for all backends."""
    ort = pytest.importorskip("onnxruntime")
    name = request.param
    proto = light_model(name) if name == WHOLE else slim_model(name)
    feeds = light_inputs(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, feeds)
    return proto, feeds, logits


def test_logits_equal_onnxruntime(
    light: tuple[onnx.ModelProto, Feeds, np.ndarray], backend: str
) -> None:
    proto, feeds, want = light
    with tercet.load(proto, backend) as model:
        (got,) = model.run(feeds).values()
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert np.array_equal(got.argmax(1), want.argmax(1))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("name", ["resnet50", "squeezenet", "inception_v2", "shufflenet"])
def test_passes_keep_results_within_rounding(name: str) -> None:
    """All rewrites together move the logits no further from float64 than rounding does."""
    proto = slim_model(name)
    feeds = light_inputs(proto)
    with tercet.load(proto) as model:
        (optimised,) = model.run(feeds).values()
    with tercet.load(proto, stop_at=0) as model:
        assert len(model.rewrites) == 0
        (plain,) = model.run(feeds).values()
    exact = exact_logits(name)
    assert exact.dtype == np.float64
    rounding = _distance(plain, exact)
    assert 0 < rounding < 1e-5
    assert _distance(optimised, exact) <= 2 * rounding


def test_each_pass_alone_keeps_the_results_of_resnet50() -> None:
    from tercet.runtime.passes import SYMBOLIC_PASSES

    proto = slim_model("resnet50")
    feeds = light_inputs(proto)
    with tercet.load(proto, stop_at=0) as model:
        (plain,) = model.run(feeds).values()
        kinds, options = {type(node.op).__name__ for node in model.imported.walk()}, model.options
    exact = exact_logits("resnet50")
    names = {each.name for each in SYMBOLIC_PASSES}
    able = {each.name: None for each in SYMBOLIC_PASSES if not each.has_nothing(kinds, options)}
    assert len(able) > 10
    for name in able:
        with tercet.load(proto, skip=tuple(n for n in names if n != name)) as model:
            if not len(model.rewrites):
                continue  # it is the graph that `plain` is of
            (got,) = model.run(feeds).values()
        assert _distance(got, exact) <= 2 * _distance(plain, exact), name


def test_resnet50_loses_all_53_batch_norms(light_models: Path) -> None:
    with tercet.load(light_models / "light_resnet50.onnx") as model:
        before = [node.kind for node in model.imported.nodes]
        after = [node.kind for node in model.graph.nodes]
        assert (before.count("BatchNormalization"), after.count("BatchNormalization")) == (53, 0)
        assert model.rewrites.counts["fold_batchnorm"] == 53
        assert len(before) - len(after) >= 53


def test_every_intermediate_of_resnet50_can_be_asked_for() -> None:
    proto = slim_model("resnet50")
    feeds = light_inputs(proto)
    with tercet.load(proto) as model:
        names = [node.output.name for node in model.imported.nodes]
        for name in names[:: len(names) // 8]:
            (got,) = model.run(feeds, [name]).values()
            assert got.shape == model.imported.values[name].tensor.shape
