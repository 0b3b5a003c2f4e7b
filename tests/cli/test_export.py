"""tercet export, simplify and extract."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import tercet as api
from tercet.tools.export import export as module
from tercet.tools.export import writing

from . import models
from .conftest import Tercet


def run(file: Path, *names: str) -> dict[str, np.ndarray]:
    """Return the outputs of a model on fixed inputs; symbolic dimensions are 2."""
    with api.load(file) as model:
        rng = np.random.default_rng(3)
        shapes = {
            i.name: [d if isinstance(d, int) else 2 for d in i.shape or ()] for i in model.inputs
        }
        feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        return model.run(feeds, names or None)


def test_export_writes_the_optimised_graph(tercet: Tercet, folder: Path) -> None:
    done = tercet("export", "classifier.onnx", "out.onnx")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert ["BatchNormalization", "1", "0"] in rows
    onnx.checker.check_model("out.onnx", full_check=True)
    for name, data in run(folder / "classifier.onnx").items():
        np.testing.assert_allclose(run(folder / "out.onnx")[name], data, rtol=1e-5, atol=1e-7)


ZERO = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1, 2] x) => (float[1, 3] y)
<float[2, 3] w = {0, 0, 0, 0, 0, 0}, float[3] b = {1, -2, 3}> { y = Gemm(x, w, b) }"""


def test_weights_of_zero_go_if_all_values_are_finite(tercet: Tercet, folder: Path) -> None:
    onnx.save(onnx.parser.parse_model(ZERO), folder / "zero.onnx")
    for command in ("export", "simplify"):
        for options, left in (((), 1), (("--finite",), 0)):
            found = tercet(command, "zero.onnx", "out.onnx", *options, "--json").json
            assert found["operators"]["Gemm"] == {"before": 1, "after": left}, command
        assert run(folder / "out.onnx")["y"].tolist() == [[1, -2, 3]]
    nodes = tercet("inspect", "zero.onnx", "--passes", "--finite", "--json").json["passes"]
    assert nodes["operators"]["Gemm"]["after"] == 0


def test_export_as_it_is(tercet: Tercet) -> None:
    done = tercet("export", "classifier.onnx", "out.onnx", "--no-optimise", "--json").json
    assert all(pair["before"] == pair["after"] for pair in done["operators"].values())
    stopped = tercet("export", "classifier.onnx", "out.onnx", "--stop-at", 0, "--json").json
    assert stopped["operators"] == done["operators"]


@pytest.mark.parametrize("command", ["export", "simplify", "extract"])
def test_opset(tercet: Tercet, command: str) -> None:
    done = tercet(command, "classifier.onnx", "out.onnx", "--opset", 15, "--json")
    assert done.json["opsets"] == {"ai.onnx": 15}
    assert [entry.version for entry in onnx.load("out.onnx").opset_import] == [15]
    done = tercet(command, "classifier.onnx", "out.onnx", "--opset", 99)
    assert done.code == 2
    assert "opset 99 of ai.onnx cannot be written; 7 to 28 can" in done.err


def test_what_an_opset_cannot_say_is_named(tercet: Tercet) -> None:
    done = tercet("extract", "classifier.onnx", "out.onnx", "--opset", 12)
    assert done.code == 3
    assert "node 'softmax/" in done.err
    assert "opset 12" in done.err
    assert not Path("out.onnx").exists()


def test_half_precision(tercet: Tercet, folder: Path) -> None:
    done = tercet("export", "classifier.onnx", "out.onnx", "--precision", "float16")
    assert done.code == 0
    onnx.checker.check_model("out.onnx", full_check=True)
    weights = onnx.load("out.onnx").graph.initializer
    assert onnx.TensorProto.FLOAT16 in {each.data_type for each in weights}
    session = onnxruntime.InferenceSession("out.onnx")
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    (found,) = session.run(None, {"image": x})
    with api.load(folder / "classifier.onnx", precision="float16") as model:
        (expected,) = model(x)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-2)


def test_nodes_that_stay_float32(tercet: Tercet) -> None:
    words = ("export", "classifier.onnx", "out.onnx", "--precision", "float16", "--json")
    every = tercet(*words).json["rewrites"]["to_half"]
    assert tercet(*words, "--keep-float32", "conv").json["rewrites"]["to_half"] < every


def test_precision_is_the_work_of_a_pass(tercet: Tercet) -> None:
    words = ("--precision", "bfloat16", "--no-optimise")
    done = tercet("export", "classifier.onnx", "out.onnx", *words)
    assert done.code == 2
    assert "a pass lowers the precision to bfloat16, and no pass runs" in done.err


def test_external_data(tercet: Tercet, folder: Path) -> None:
    done = tercet("export", "classifier.onnx", "out.onnx", "--external", 100, "--json").json
    assert done["bytes_beside"] == (folder / "out.onnx.data").stat().st_size > 0
    assert run(folder / "out.onnx").keys() == run(folder / "classifier.onnx").keys()


def test_bound_shapes(tercet: Tercet, folder: Path) -> None:
    tercet("export", "classifier.onnx", "out.onnx", "--dim", "batch=2")
    with api.load(folder / "out.onnx") as model:
        assert model.inputs[0].shape == (2, 3, 8, 8)
    tercet("export", "classifier.onnx", "out.onnx", "--shape", "3x3x8x8")
    with api.load(folder / "out.onnx") as model:
        assert model.inputs[0].shape == (3, 3, 8, 8)
    done = tercet("export", "classifier.onnx", "out.onnx", "--dim", "bach=2")
    assert done.code == 2
    assert "did you mean 'batch'?" in done.err


def test_other_symbols_stay(folder: Path) -> None:
    model = models.model_of(
        [onnx.helper.make_node("Add", ["x", "y"], ["z"])],
        [models.tensor("x", ["n", "m"]), models.tensor("y", ["n", "m"])],
        [models.tensor("z", None)],
    )
    found = module.export(model, dims=["n=4"]).proto.graph.input
    dims = [[d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in found]
    assert dims == [[4, "m"], [4, "m"]]


def test_simplify_checks_what_it_wrote(tercet: Tercet) -> None:
    done = tercet("simplify", "classifier.onnx", "out.onnx", "--dim", "batch=2")
    assert done.code == 0
    assert "checked on image float32[2,3,8,8], random, seed 0" in done.out
    assert "1 output within rounding" in done.out or "1 output equal to the original" in done.out
    found = tercet("simplify", "classifier.onnx", "out.onnx", "--json").json
    assert found["ok"]
    assert [output["output"] for output in found["outputs"]] == ["scores"]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_simplify_allows_for_a_lower_precision(
    tercet: Tercet, folder: Path, precision: str
) -> None:
    options = ("--precision", precision)
    done = tercet("simplify", "classifier.onnx", "out.onnx", *options)
    assert done.code == 0
    assert "1 output within rounding" in done.out
    assert tercet("simplify", "classifier.onnx", "whole.onnx").code == 0
    assert (folder / "out.onnx").stat().st_size < (folder / "whole.onnx").stat().st_size
    kept = tercet("simplify", "classifier.onnx", "kept.onnx", *options, "--keep-float32", "conv")
    assert kept.code == 0
    assert (folder / "out.onnx").stat().st_size < (folder / "kept.onnx").stat().st_size


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_simplify_tells_what_is_wrong(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """The optimised graph is right; what is written loses the bias of the dense layer."""
    genuine = writing.save

    def damaged(graph, *arguments, **named):
        copy = graph.clone()
        (node,) = (node for node in copy.nodes if node.kind == "Gemm")
        copy.set_inputs(node, node.inputs[:2])
        return genuine(copy, *arguments, **named)

    monkeypatch.setattr(writing, "save", damaged)
    done = tercet("simplify", "classifier.onnx", "out.onnx", "--precision", precision)
    assert done.code == 1
    assert "MISMATCH" in done.out


def test_extract(tercet: Tercet, folder: Path) -> None:
    done = tercet("extract", "classifier.onnx", "front.onnx", "--outputs", "r")
    assert done.code == 0
    (front,) = run(folder / "front.onnx").values()
    assert np.array_equal(front, run(folder / "classifier.onnx", "r")["r"])
    tercet("extract", "classifier.onnx", "tail.onnx", "--inputs", "r")
    with api.load(folder / "tail.onnx") as tail:
        (scores,) = tail.run({"r": front}).values()
    np.testing.assert_allclose(scores, run(folder / "classifier.onnx")["scores"], rtol=1e-6)


def test_extract_names_what_is_missing(tercet: Tercet) -> None:
    done = tercet("extract", "classifier.onnx", "out.onnx", "--outputs", "scoers")
    assert done.code == 2
    assert "the model has no tensor 'scoers'; did you mean 'scores'?" in done.err
    done = tercet("extract", "classifier.onnx", "out.onnx", "--outputs", "conv")
    assert "the model has no tensor 'conv'; it is a node, which computes 'c'" in done.err
    done = tercet("extract", "adder.onnx", "out.onnx", "--inputs", "a")
    assert done.code == 2
    assert "is read, too; name it among the inputs" in done.err


def test_only_onnx_files_are_written(tercet: Tercet) -> None:
    done = tercet("export", "classifier.onnx", "out.pb")
    assert done.code == 2
    assert "models are written to .onnx files" in done.err


def test_weights_stay_quantized(tercet: Tercet, folder: Path) -> None:
    """They are a quarter of the size, and onnxruntime finds its integer layers by them."""
    from onnxruntime import InferenceSession

    text = """
        <ir_version: 10, opset_import: ["": 21]>
        g (float[1, 16, 6, 6] x) => (float[1, 32, 6, 6] y)
        <float s = {0.04}, int8 z = {3}, float t = {0.02}, int8 o = {0}>
        {
            q = QuantizeLinear (x, s, z)  a = DequantizeLinear (q, s, z)
            w = DequantizeLinear (weights, t, o)
            c = Conv <pads = [1, 1, 1, 1]> (a, w)  r = Relu (c)
            p = QuantizeLinear (r, s, z)  y = DequantizeLinear (p, s, z)
        }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (32, 16, 3, 3), dtype=np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "weights"))
    onnx.save(model, folder / "quantized.onnx")
    found = tercet("simplify", "quantized.onnx", "out.onnx", "--json").json
    assert found["ok"] is True
    assert found["operators"]["DequantizeLinear"] == {"before": 3, "after": 3}
    assert found["bytes"] < 2 * weights.nbytes
    kept = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load("out.onnx").graph.initializer}
    np.testing.assert_array_equal(kept["weights"], weights)
    x = {"x": rng.standard_normal((1, 16, 6, 6), np.float32)}
    before, after = (
        np.asarray(InferenceSession(name).run(None, x)[0])
        for name in ("quantized.onnx", "out.onnx")
    )
    np.testing.assert_array_equal(before, after)


OTHER_DOMAINS = """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>
g (float[2, 3, 8] q, float[2, 3, 8] k) => (float[2, 3, 8] y) <float[8] one = {1,1,1,1,1,1,1,1}> {
    a = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, k)
    b = com.microsoft.SkipLayerNormalization (a, q, one, one)
    y = com.microsoft.QuickGelu (b)
}"""


def test_without_passes_the_opset_stays(folder: Path) -> None:
    """Operators of other domains are no younger than the file when they are written out."""
    from onnxruntime import InferenceSession

    proto, rng = onnx.parser.parse_model(OTHER_DOMAINS), np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 3, 8), np.float32) for name in "qk"}
    expected = np.asarray(InferenceSession(proto.SerializeToString()).run(None, feeds)[0])
    for done in (api.export(proto, optimise=False), api.extract(proto, outputs=["y"])):
        assert done.opsets == {"": 13}
        found = InferenceSession(done.proto.SerializeToString()).run(None, feeds)[0]
        np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-5)
    assert api.export(proto).opsets == {"": 24}


def test_what_the_opset_of_the_file_lacks_is_written_in_a_newer_one() -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>
    g (float[3, 4] x) => (float[3, 4] y) { y = com.microsoft.Trilu (x) }"""
    assert api.export(onnx.parser.parse_model(text), optimise=False).opsets == {"": 14}


@pytest.mark.parametrize("rows", ["5", "n"])
@pytest.mark.parametrize("mask", ["2, 1, 1, 7", "1, 7", "2, 1, 5, 7"])
def test_onnxruntime_reads_attentions_with_masks(rows: str, mask: str) -> None:
    """It wants as many rows in a mask as there are queries, where ONNX broadcasts one."""
    from onnxruntime import InferenceSession

    head = f"g (float[2, 3, {rows}, 4] q, float[2, 3, 7, 4] k, float[{mask}] m)"
    body = f"{head} => (float[2, 3, {rows}, 4] y) {{ y = Attention (q, k, k, m) }}"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {body}')
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 3, 5, 4), "k": (2, 3, 7, 4), "m": tuple(map(int, mask.split(",")))}
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    written = api.export(proto).proto.SerializeToString()
    found = np.asarray(InferenceSession(written).run(None, feeds)[0])
    with api.load(proto) as model:
        np.testing.assert_allclose(found, model.run(feeds)["y"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("opset", [13, 24])
def test_windows_of_attention_are_written_out(opset: int) -> None:
    """The operator has none before opset 25, and there is no such operator before opset 23."""
    from onnx.reference import ReferenceEvaluator
    from onnxruntime import InferenceSession

    proto = onnx.parser.parse_model("""<ir_version: 13, opset_import: ["": 25]>
        g (float[1, 2, 6, 4] q, float[1, 2, 6, 4] k) => (float[1, 2, 6, 4] y)
        { y = Attention <left_window_size = 2, right_window_size = 0> (q, k, k) }""")
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((1, 2, 6, 4), np.float32) for name in "qk"}
    written = api.export(proto, opset=opset).proto.SerializeToString()
    found = np.asarray(InferenceSession(written).run(None, feeds)[0])
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_allclose(found, np.asarray(expected), atol=2e-6)
