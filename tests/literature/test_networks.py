"""What lectures say of whole networks: work, weights, layouts, early exits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx.parser import parse_model
from PIL import Image

import tercet
from tercet.importers.onnx import load
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.infer import specialise
from tercet.runtime.plan.format import Format
from tercet.runtime.session.model import TensorInfo
from tercet.tools.common.cost import constants, operators
from tercet.tools.common.images import Pixels, read_images
from tercet.tools.workshop import light_models
from tercet.tools.workshop.bench_models import bench_model
from tercet.tools.workshop.generated_models import Sheet

Array = np.ndarray[Any, Any]


def model_of(text: str) -> ModelProto:
    return parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


def work(name: str) -> tuple[float, int]:
    """Return the multiply-accumulates of one picture in millions, and the parameters."""
    graph = load(bench_model(name)).graph
    types = {value.name: value.tensor for value in graph.inputs}
    single = {
        input_: type_.with_shape(tuple(d if isinstance(d, int) else 1 for d in type_.shape or ()))
        for input_, type_ in types.items()
    }
    macs = sum(row.macs or 0 for row in operators(graph, specialise(graph, single)))
    return macs / 1e6, constants(graph).parameters


def zeros(sheet: Sheet, *shape: int, scale: float, name: str = "weight") -> str:
    """Stand in for `Sheet.weight` where weights are only counted."""
    return sheet.store(np.zeros(shape, np.float32), name)


@pytest.mark.parametrize(
    ("name", "millions", "parameters"),
    [
        ("vgg16", 15470, 138_357_544),
        ("bvlc_alexnet", 654, 60_965_224),  # 720 in the paper, without groups
        ("inception_v1", 1500, 7_000_000),
        ("mobilenet_v2", 300, 3_500_000),
    ],
)
def test_work_and_weights(
    name: str, millions: float, parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light_models, "_normal", lambda shape, *_: np.zeros(shape, np.float32))
    monkeypatch.setattr(Sheet, "weight", zeros)
    found, weights = work(name)
    assert found == pytest.approx(millions, rel=0.08 if name != "vgg16" else 1e-3)
    assert weights == pytest.approx(parameters, rel=0.01 if name != "vgg16" else 0)


def test_depthwise_separable_convolutions() -> None:
    """Their share of the work is 1/K + 1/9 of a whole convolution's."""
    channels, filters = 32, 64
    x = np.zeros((1, channels, 16, 16), np.float32)

    def macs(text: str, *weights: Array) -> int:
        names = ", ".join(f"float{list(w.shape)} w{i}" for i, w in enumerate(weights))
        head = f"g (float[1,{channels},16,16] x, {names}) => (y)"
        with tercet.load(model_of(f"{head} {{ {text} }}")) as model:
            model(x, *weights)
            graph = model.prepare().graph
            return sum(row.macs or 0 for row in operators(graph))

    deep = np.zeros((channels, 1, 3, 3), np.float32)
    point = np.zeros((filters, channels, 1, 1), np.float32)
    whole = np.zeros((filters, channels, 3, 3), np.float32)
    pads = "pads = [1, 1, 1, 1]"
    apart = macs(f"d = Conv <group = 32, {pads}> (x, w0)  y = Conv (d, w1)", deep, point)
    together = macs(f"y = Conv <{pads}> (x, w0)", whole)
    assert apart / together == pytest.approx(1 / filters + 1 / 9)


def test_gradient_filters(backend: str) -> None:
    """Sobel's filters give whole numbers, and nothing where the picture is flat."""
    picture = np.zeros((1, 1, 8, 8), np.float32)
    picture[..., 4:] = 10
    across = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)
    filters = np.stack([across, across.T])[:, np.newaxis]
    y = tercet.run_op("Conv", picture, filters, backend=backend)
    assert np.unique(y[0, 0]).tolist() == [0, 40]
    assert not y[0, 1].any()


def test_orders_of_elements() -> None:
    """Element 20 of [1, 64, 5, 4] is the first of channel 1, element 1279 the last of all."""
    dims = (1, 64, 5, 4)
    plain = np.arange(1280)
    assert np.unravel_index(20, dims) == (0, 1, 0, 0)
    assert np.unravel_index(1279, dims) == (0, 63, 4, 3)
    last = plain.reshape(dims).transpose(0, 2, 3, 1)
    assert Format.CHANNELS_LAST.physical(dims) == last.shape


def test_preprocessing_as_caffe_has_it(tmp_path: Any) -> None:
    """Blue, green, red, less 103.939, 116.779, 123.68: Keras' `preprocess_input`, mode "caffe"."""
    means = (103.939, 116.779, 123.68)
    rgb = np.random.default_rng(0).integers(0, 256, (6, 7, 3), np.uint8)
    file = tmp_path / "picture.png"
    Image.fromarray(rgb).save(file)
    pixels = Pixels(scale=1, mean=means, bgr=True)
    found = read_images([file], TensorInfo("x", float32, (1, 6, 7, 3)), None, pixels)
    expected = rgb[..., ::-1].astype(np.float32) - np.array(means, np.float32)
    np.testing.assert_array_equal(found[0], expected)


CASCADE = """
g (float[1,16,64,64] x, float[16,16,1,1] small, float[16,16,3,3] large, float limit) => (score) {
  first = Conv (x, small)
  mean = ReduceMean <keepdims = 0> (first)
  easy = Less (mean, limit)
  score = If (easy) <
    then_branch = out () => (a) { a = Identity (mean) },
    else_branch = on () => (b) {
      one = Conv <pads = [1, 1, 1, 1]> (first, large)
      two = Conv <pads = [1, 1, 1, 1]> (one, large)
      three = Conv <pads = [1, 1, 1, 1]> (two, large)
      b = ReduceMean <keepdims = 0> (three)
    }
  >
}
"""


def test_an_early_exit_saves_the_second_stage() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32) / 8 for s in
              ((1, 16, 64, 64), (16, 16, 1, 1), (16, 16, 3, 3))]  # fmt: skip
    easy, hard = np.array(1e6, np.float32), np.array(-1e6, np.float32)
    with tercet.load(model_of(CASCADE)) as model:
        model(*arrays, easy)
        assert not [row for row in model.placement() if "one" in row.nodes], "never planned"
        model(*arrays, hard)
        assert [row for row in model.placement() if "one" in row.nodes]


def test_samples_that_are_finished_leave_the_batch() -> None:
    """Gating by sample: those above a limit go through the second stage, the others do not."""
    text = """
    g (float[n,4] x, float[4,4] w) => (y) {
      axis = Constant <value = int64[1] {1}> ()
      total = ReduceSum <keepdims = 0> (x, axis)
      zero = Constant <value_float = 0.0> ()
      hard = Greater (total, zero)
      rows = Compress <axis = 0> (x, hard)
      better = MatMul (rows, w)
      where = NonZero (hard)
      places = Transpose (where)
      y = ScatterND (x, places, better)
    }"""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((4, 4), np.float32)
    with tercet.load(model_of(text)) as model:
        for size in (1, 5, 32):
            x = rng.standard_normal((size, 4), np.float32)
            hard = x.sum(1) > 0
            expected = x.copy()
            expected[hard] = x[hard] @ w
            np.testing.assert_allclose(model(x, w)[0], expected, rtol=1e-5, atol=1e-6)
