"""What nodes mean in files of producers that compute otherwise than ONNX's cases say."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import pytest
from onnx.reference import ReferenceEvaluator

import tercet
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

X = np.random.default_rng(1).standard_normal((1, 2, 5, 7)).astype(np.float32)


def resized(producer: str, mode: str, scales: str, x: str = "1, 2, 5, 7") -> onnx.ModelProto:
    """Return a model that aligns the corners of an image and its result."""
    return onnx.parser.parse_model(f"""
      <ir_version: 8, opset_import: ["" : 18], producer_name: "{producer}",
       producer_version: "2.9.0">
      g (float[{x}] x) => (float[a, b, c, d] y)
      <float[4] s = {{1, 1, {scales}}}> {{
        y = Resize <mode = "{mode}", coordinate_transformation_mode = "align_corners"> (x, , s)
      }}""")


@pytest.mark.parametrize("producer", ["pytorch", "onnx.quantize"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", ["1.7, 0.6", "2, 1.3", "2, 3"])
@pytest.mark.parametrize("x", ["1, 2, 5, 7", "n, c, h, w"])
def test_pytorch_aligns_corners_over_whole_sizes(
    producer: str, mode: str, scales: str, x: str
) -> None:
    model = resized(producer, mode, scales, x)
    (y,) = tercet.load(model, backend="numpy")(X)
    np.testing.assert_allclose(y, run_onnxruntime(model, {"x": X})["y"], 1e-5, 1e-5)


def test_what_is_for_sizes_is_not_for_factors() -> None:
    """They are written as sizes, which alone may have an aspect ratio to keep."""
    model = resized("pytorch", "linear", "1.7, 0.6")
    model.graph.node[0].attribute.append(
        onnx.helper.make_attribute("keep_aspect_ratio_policy", "not_larger")
    )
    (y,) = tercet.load(model, backend="numpy")(X)
    assert y.shape == (1, 2, 8, 4)


def test_other_files_align_corners_as_onnx_does() -> None:
    model = resized("", "linear", "1.7, 0.6")
    (y,) = tercet.load(model, backend="numpy")(X)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": X})
    np.testing.assert_allclose(y, np.asarray(expected), 1e-5, 1e-5)
    assert np.abs(y - run_onnxruntime(model, {"x": X})["y"]).max() > 0.1


def test_the_file_of_pytorch_plans_for_a_gpu() -> None:
    found = tercet.inspect(
        resized("pytorch", "linear", "1.7, 0.6"), placement="cuda", target="sm_90a"
    )
    assert found.placement is not None
    assert {row.operators for row in found.placement if row.backend == "cuda"} == {"Resize"}


@pytest.mark.parametrize("shape", ["2, 40", "b, n"])
def test_signals_without_parts_are_real(shape: str) -> None:
    """PyTorch's exporter of TorchScript writes them so."""
    model = onnx.parser.parse_model(f"""
      <ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => (float[a, b, c, d] y)
      <int64 step = {{8}}, float[16] window> {{ y = STFT (x, step, window) }}""")
    window = np.hanning(16).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(window, "window"))
    x = np.random.default_rng(0).standard_normal((2, 40), np.float32)
    (y,) = tercet.load(model, backend="numpy")(x)
    np.testing.assert_allclose(y, run_onnxruntime(model, {"x": x})["y"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["int64", "int32", "int8", "uint8"])
def test_integers_in_masks_are_added_to_scores(kind: str) -> None:
    """Builders of encoders hand their attention_mask on as it is."""
    model = onnx.parser.parse_model(f"""
      <ir_version: 10, opset_import: ["" : 23]>
      g (float[1, n, 8] q, {kind}[n, n] mask) => (float[1, n, 8] y) {{
        y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, q, q, mask)
      }}""")
    rng = np.random.default_rng(0)
    given = {
        "q": rng.standard_normal((1, 6, 8)).astype(np.float32),
        "mask": rng.integers(0, 3, (6, 6)).astype(kind),
    }
    with tercet.load(model) as loaded:
        found = loaded.run(given)["y"]
    wanted = run_onnxruntime(model, given)["y"]
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)
    planned = tercet.inspect(model, placement="cuda", target="sm_90a", dims={"n": 6}).placement
    assert planned
    assert all(row.backend.startswith("cuda") for row in planned)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_integers_of_a_few_bits_are_no_mask(kind: str) -> None:
    model = onnx.parser.parse_model(f"""
      <ir_version: 13, opset_import: ["" : 24]>
      g (float[1, n, 8] q, {kind}[n, n] mask) => (float[1, n, 8] y) {{
        y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, q, q, mask)
      }}""")
    with pytest.raises(tercet.ModelError, match=f"attn_mask of Attention is {kind}; ONNX allows"):
        tercet.load(model)


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
@pytest.mark.parametrize(("parts", "axis"), [("e, x", 0), ("x, e, x", -2)])
def test_operands_without_elements_do_not_count(
    parts: str, axis: int, options: dict[str, Any]
) -> None:
    """onnxruntime skips them, too, unless it knows their sizes before it runs the model.

    With optimisations, it computes them.
    """
    model = onnx.parser.parse_model(f"""
      <ir_version: 8, opset_import: ["" : 18]>
      g (float[2, 4] x) => (float[a, b] y) <int64[2] divisors = {{2, 3}}> {{
        shape = Shape (x)
        sizes = Mod (shape, divisors)
        e = ConstantOfShape (sizes)
        y = Concat <axis = {axis}> ({parts})
      }}""")
    x = X[0, :, 0, :4]
    (y,) = tercet.load(model, backend="numpy", **options)(x)
    wanted = run_onnxruntime(model, {"x": x}, "ORT_DISABLE_ALL")["y"]
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("shape", [(0, 5), (0,), (1, 0, 3)])
def test_operands_with_elements_have_to_agree(shape: tuple[int, ...]) -> None:
    text = """
      <ir_version: 8, opset_import: ["" : 18]>
      g (float[%s] x, float[2, 3] y) => (float[a, b] z) { z = Concat <axis = 0> (x, y) }"""
    y = np.ones((2, 3), np.float32)
    dims = ", ".join(map(str, shape))
    with tercet.load(onnx.parser.parse_model(text % dims)) as model:
        (found,) = model(np.zeros(shape, np.float32), y)
        np.testing.assert_array_equal(found, y)
    for others in (dims.replace("0", "1"), "2, 0"):
        with pytest.raises(tercet.ModelError, match=r"to be concatenated|must agree"):
            tercet.load(onnx.parser.parse_model(text % others))


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
@pytest.mark.parametrize("count", [2, 0])
@pytest.mark.parametrize(
    "join",
    [
        "y = Concat <axis = 0> (rows, z)",
        "both = SequenceConstruct (rows, z) y = ConcatFromSequence <axis = 0> (both)",
    ],
    ids=["tensors", "a sequence"],
)
def test_a_loop_without_iterations_adds_nothing(
    join: str, count: int, options: dict[str, Any]
) -> None:
    """The sizes of what it would have stacked are not known; onnxruntime takes 0, too."""
    model = onnx.parser.parse_model(
        """
      <ir_version: 8, opset_import: ["" : 18]>
      g (float[N, K] x, int64 count, float[P, Q] z) => (float[A, B] y)
      <int64[1] first = {0}, float zero = {0}> {
        rows = Loop <body = one (int64 i, bool c) => (bool again, float[U] row) {
          again = Identity (c)
          place = Unsqueeze (i, first)
          some = Gather (x, place)
          above = Greater (some, zero)
          which = Squeeze (above, first)
          row = Compress (some, which)
        }> (count, "")
        JOIN
      }""".replace("JOIN", join)
    )
    ones = np.ones((3, 4), np.float32)
    feeds = {"x": ones, "count": np.array(count), "z": 2 * ones}
    with tercet.load(model, backend="numpy", **options) as loaded:
        (y,) = loaded.run(feeds).values()
    np.testing.assert_array_equal(y, run_onnxruntime(model, feeds)["y"])


@pytest.mark.parametrize("x", ["1, 2, 5, 7", "n, c, h, w"])
@pytest.mark.parametrize("perm", [(0, -2, -1, 1), (-1, 0, -3, -2), (0, -9, -1, 1)])
def test_axes_from_the_end(x: str, perm: tuple[int, ...]) -> None:
    """What torch.onnx.export writes of Mamba-2's permute(0, -2, -1, 1), for one."""
    model = onnx.parser.parse_model(f"""
      <ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
      g (float[{x}] x) => (float[a, b, c, d] y) {{ y = Transpose <perm = {list(perm)}> (x) }}""")
    if min(perm) < -4:
        with pytest.raises(tercet.TercetError, match="not an order of 4 axes"):
            tercet.load(model)
        return
    (y,) = tercet.load(model, backend="numpy")(X)
    np.testing.assert_array_equal(y, np.transpose(X, perm))
    model.producer_name = "other"
    with pytest.raises(tercet.TercetError, match="not an order of 4 axes"):
        tercet.load(model)


@pytest.mark.parametrize("opset", [7, 9, 16, 24])
@pytest.mark.parametrize("x", ["1, 2, 5, 7", "n, 2, 5, 7", "n, 2, h, 7"])
def test_mxnet_and_caffe_align_vectors_with_channels(x: str, opset: int) -> None:
    """Networks for faces: slopes of one number per channel, and `spatial = 0` for such scales."""
    body = """
      <ir_version: 4, opset_import: ["" : %d]>
      g (float[%s] x) => (float[a, b, c, d] y)
      <float[2] one = {1, 1}, float[2] m = {2, 3}, float[2] v = {2, 3}, float[%s] s = {2, 3}> {
        n = BatchNormalization <epsilon = 2e-5%s> (x, one, m, m, v)
        y = PRelu (n, s)
      }"""
    spatial = ", spatial = 0" if opset < 9 else ""
    model = onnx.parser.parse_model(body % (opset, x, "2", spatial))
    (y,) = tercet.load(model, backend="numpy")(X)
    wanted = run_onnxruntime(onnx.parser.parse_model(body % (opset, x, "2, 1, 1", "")), {"x": X})
    np.testing.assert_allclose(y, wanted["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("x", "slope"), [("1, 7, 2, 7", 7), ("1, 2, 5, 7", 7), ("1, 2, 5, 7", 1)])
def test_slopes_that_broadcast_are_not_of_channels(x: str, slope: int) -> None:
    slopes = ", ".join(map(str, range(1, slope + 1)))
    model = onnx.parser.parse_model(f"""
      <ir_version: 4, opset_import: ["" : 9]>
      g (float[{x}] x) => (float[a, b, c, d] y) <float[{slope}] s = {{{slopes}}}> {{
        y = PRelu (x, s)
      }}""")
    shape = [int(n) for n in x.split(",")]
    feeds = {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    (y,) = tercet.load(model, backend="numpy")(feeds["x"])
    np.testing.assert_array_equal(y, run_onnxruntime(model, feeds)["y"])


def test_columns_of_scales_are_vectors() -> None:
    """What caffe2onnx writes of an Upsample layer."""
    model = onnx.parser.parse_model("""
      <ir_version: 8, opset_import: ["" : 13], producer_name: "caffe">
      g (float[1, 2, 5, 7] x) => (float[1, 2, 10, 14] y)
      <float[8, 1] r = {0, 0, 0, 0, 1, 1, 1, 1}, float[4, 1] s = {1, 1, 2, 2}> {
        y = Resize <mode = "nearest"> (x, r, s)
      }""")
    (y,) = tercet.load(model, backend="numpy")(X)
    np.testing.assert_array_equal(y, run_onnxruntime(model, {"x": X})["y"])


@pytest.mark.parametrize("opset", [7, 21])
def test_two_versions_of_a_domain_without_nodes(opset: int) -> None:
    """skl2onnx imports ONNX's domain twice, and ONNX's converter changes the first import."""
    tree = Path(__file__).parents[1] / "producers/recorded/sklearn_tree"
    model = onnx.version_converter.convert_version(onnx.load(f"{tree}.onnx"), opset)
    assert sum(not each.domain for each in model.opset_import) == 2
    with np.load(f"{tree}.npz") as file:
        feeds = {key[6:]: file[key] for key in file.files if key.startswith("input/")}
    for name, wanted in run_onnxruntime(model, feeds).items():
        np.testing.assert_array_equal(tercet.load(model, backend="numpy").run(feeds)[name], wanted)


def test_two_versions_of_a_domain_with_nodes_in_bodies() -> None:
    model = onnx.parser.parse_model("""
      <ir_version: 8, opset_import: ["a" : 1, "" : 17]> g (bool x) => (float y) {
        y = a.If (x) <then_branch = t () => (z) { z = Constant <value = float {1}> () }>
      }""")
    model.opset_import.add(version=16)
    with pytest.raises(tercet.ModelError, match="imports domain '' in two versions"):
        tercet.load(model)
