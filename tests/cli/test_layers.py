"""tercet compare --layers and tercet bisect."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import tercet as api
from tercet import backends
from tercet.backends.numpy import NumpyBackend
from tercet.runtime.options import Options

from ..faults.faulty import FaultyBackend, one_percent
from .conftest import Tercet


@pytest.fixture
def edited(folder: Path) -> Path:
    """The classifier with another bias in its dense layer."""
    model = onnx.load(folder / "classifier.onnx")
    (bias,) = (tensor for tensor in model.graph.initializer if tensor.name == "fc.b")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.1), "fc.b"))
    onnx.save(model, folder / "edited.onnx")
    return folder / "edited.onnx"


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a backend that is 1 % off in the convolution, and otherwise numpy."""

    def opened(options: Options) -> tuple[NumpyBackend | FaultyBackend, ...]:
        return (FaultyBackend({"conv"}, one_percent),)

    monkeypatch.setattr(backends, "_foreign", lambda: {"faulty": lambda: opened})
    return "faulty"


def test_two_backends(tercet: Tercet) -> None:
    done = tercet("compare", "classifier.onnx", "--layers", "-b", "numpy", "-b", "onnxruntime")
    assert done.code == 0
    assert "no mismatch found on onnxruntime" in done.out
    assert "\nreference  numpy" in done.out
    assert "\nrunner     onnxruntime, each step alone" in done.out


@pytest.mark.parametrize("option", ["--cumulative", "--runs=1"])
def test_outputs_that_passes_make_constants(tercet: Tercet, folder: Path, option: str) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2] x) => (y, shape, sum, a) <float[2] a = {1, 2}>
        { y = Relu(x) shape = Shape(x) sum = Add(a, a) }""")
    onnx.save(model, folder / "constants.onnx")
    runners = "-b", "onnxruntime", "-b", "numpy"
    assert tercet("compare", "constants.onnx", "--layers", *runners, option).code == 0


def test_onnxruntime_does_not_quantize_what_is_folded() -> None:
    """Its optimiser quantizes weights in float32 behind a DequantizeLinear."""
    rng = np.random.default_rng(0)
    model = parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[1,3,12,12] x) => (uint8[1,8,12,12] y) <
            float s = {0.03}, uint8 z = {120}, float t = {0.05}, uint8 u = {100}
        > {
            xq = QuantizeLinear(x, s, z)
            xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear <axis = 0> (w, ws)
            c = Conv(xd, wd, b)
            r = Relu(c)
            y = QuantizeLinear(r, t, u)
        }""")
    weights = {
        "w": rng.integers(-127, 128, (8, 3, 1, 1)).astype(np.int8),
        "ws": rng.uniform(0.002, 0.02, 8).astype(np.float32),
        "b": rng.standard_normal(8).astype(np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in weights.items())
    found = api.compare_layers(model, ["onnxruntime", "numpy"])
    assert found.ok, found
    assert api.bisect(model, ["onnxruntime", "numpy"]).fault == "none"


@pytest.mark.parametrize("runners", [("onnxruntime", "numpy"), ("numpy", "onnxruntime")])
def test_what_onnxruntime_refuses_is_compared_by_its_definition(runners: tuple[str, str]) -> None:
    """Its Attention takes no mask that all queries share, as those of BERT do."""
    model = parse_model("""<ir_version: 10, opset_import: ["" : 23]>
        g (float[2,4,6,8] q, float[2,4,6,8] k, float[2,4,6,8] v, float[2,1,1,6] mask) => (y) {
            x = Attention(q, k, v, mask)
            y = Relu(x)
        }""")
    found = api.compare_layers(model, runners)
    assert found.ok, found
    assert {layer.verdict for layer in found.layers} <= {"equal", "within rounding"}
    assert [layer.nodes for layer in found.layers if "Attention" in layer.operators]


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_bfloat16_on_onnxruntime(dtype: str) -> None:
    """Its Python bindings neither take nor give such arrays."""
    model = parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g ({dtype}[2,3] x, bfloat16[0] nothing) => ({dtype}[2,3] y, bfloat16[0] z) {{
            narrow = Cast <to = 16> (x)
            wide = Cast <to = 1> (narrow)
            half = Sigmoid(wide)
            y = CastLike(half, x)
            z = Identity(nothing)
        }}""")
    runners = ["onnxruntime", "numpy"]
    assert api.compare(model, runners, repeat=2).ok
    assert api.compare_layers(model, runners).ok
    assert api.compare_layers(model, runners[::-1]).ok


@pytest.mark.parametrize(
    "dtype",
    ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "int4", "uint4"],
)
def test_narrow_types_on_onnxruntime(dtype: str) -> None:
    """An odd number of them, and none; whole numbers, as onnxruntime rounds where ONNX cuts off."""
    model = parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g ({dtype}[3,5] x, {dtype}[0] nothing, float[3,5] f)
            => ({dtype}[3,5] y, float[3,5] z, float[0] n) {{
            size = Abs(f)
            whole = Round(size)
            y = CastLike(whole, x)
            z = Cast <to = 1> (x)
            n = Cast <to = 1> (nothing)
        }}""")
    runners = ["onnxruntime", "numpy"]
    assert api.compare(model, runners, repeat=2).ok
    assert api.compare_layers(model, runners).ok
    assert api.compare_layers(model, runners[::-1]).ok


def test_two_files(tercet: Tercet, edited: Path) -> None:
    done = tercet("compare", "classifier.onnx", "--layers", "-b", "numpy", "--other", edited)
    assert done.code == 1
    assert "first diverging step: fc (Gemm)" in done.out
    found = tercet(
        "compare", "classifier.onnx", "--layers", "-b", "numpy", "--other", edited, "--json"
    ).json
    (wrong,) = (layer for layer in found["layers"] if layer["verdict"] == "wrong")
    assert (wrong["nodes"], wrong["number"]) == (["fc"], found["first"])
    assert wrong["excess"] > 1000


def test_a_wrong_kernel(tercet: Tercet, faulty: str) -> None:
    arguments = "compare", "classifier.onnx", "--layers", "-b", "numpy", "-b", faulty
    assert "first diverging step: conv" in tercet(*arguments).out
    done = tercet(*arguments, "--cumulative", "--no-optimise", "--runs", 2, "--json").json
    assert done["mode"] == "cumulative"
    assert done["layers"][done["first"] - 1]["nodes"] == ["conv"]
    assert all(layer["repeatable"] for layer in done["layers"])


@pytest.mark.parametrize("option", ["--cumulative", "--runs=2", "--no-optimise"])
def test_options_of_layers(tercet: Tercet, option: str) -> None:
    done = tercet("compare", "classifier.onnx", option)
    assert done.code == 2
    assert "need --layers" in done.err


def test_layers_of_several_runners(tercet: Tercet, faulty: str) -> None:
    three = "-b", "numpy", "-b", "onnxruntime", "-b", faulty
    done = tercet("compare", "classifier.onnx", "--layers", *three)
    assert done.code == 1
    assert "no mismatch found on onnxruntime" in done.out
    assert "first diverging step: conv" in done.out
    found = tercet("compare", "classifier.onnx", "--layers", *three, "--json").json
    assert found["runner"] == "onnxruntime"
    assert found["first"] is None
    (other,) = found["others"]
    assert other["runner"] == faulty
    assert other["layers"][other["first"] - 1]["nodes"][0] == "conv"
    assert found["ok"] is False


def test_layers_take_two_runners(tercet: Tercet) -> None:
    done = tercet("compare", "classifier.onnx", "--layers", "-b", "numpy")
    assert done.code == 2
    assert "between two runners, not 1" in done.err


@pytest.mark.parametrize(
    "command", ["compare", "compare --layers", "bisect", "profile", "inspect", "export"]
)
def test_shapes_that_contradict_the_file(tercet: Tercet, command: str) -> None:
    name, *options = command.split()
    written = ["out.onnx"] if name == "export" else []
    done = tercet(name, "classifier.onnx", *written, *options, "--shape", "image=1x3x9x8")
    assert done.code == 2
    assert "--shape image=1x3x9x8: axis 2 must be 8; the model expects image: " in done.err


def test_bisect_without_a_fault(tercet: Tercet) -> None:
    done = tercet("bisect", "classifier.onnx", "--reduce", "fault")
    assert done.code == 0
    assert "no mismatch found on numpy" in done.out
    assert not Path("fault").exists()


def test_bisect_reduces(tercet: Tercet, faulty: str) -> None:
    done = tercet("bisect", "classifier.onnx", "-b", "numpy", "-b", faulty, "--reduce", "fault")
    assert done.code == 1
    assert "WRONG on faulty: conv" in done.out
    names = sorted(path.name for path in Path("fault").iterdir())
    assert names == ["reduced.npz", "reduced.onnx", "reproduce.py"]
    onnx.checker.check_model("fault/reduced.onnx", full_check=True)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path("fault/reproduce.py", run_name="__main__")
    assert ended.value.code == 1


def test_the_script_ends_with_0_once_all_is_right(
    tercet: Tercet, faulty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tercet("bisect", "classifier.onnx", "-b", "numpy", "-b", faulty, "--reduce", "fault")
    mended = {"faulty": lambda: lambda options: (NumpyBackend(),)}
    monkeypatch.setattr(backends, "_foreign", lambda: mended)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path("fault/reproduce.py", run_name="__main__")
    assert ended.value.code == 0


def test_bisect_says_it_in_json(tercet: Tercet, faulty: str) -> None:
    found = tercet("bisect", "classifier.onnx", "-b", "numpy", "-b", faulty, "--json").json
    assert found["fault"] == "nodes"
    assert found["nodes"][0] == "conv"
    assert found["rewrite"] is None
    assert "conv" in found["reduced"]["nodes"]


def test_outputs_that_are_constants() -> None:
    """No step computes them, in the file or after folding."""
    proto = parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        "g (float[2] x) => (float[2] y, float[2] z) {\n"
        "c = Constant <value_floats = [1.0, 2.0]> ()  z = Relu (c)  y = Neg (x) }"
    )
    found = api.compare_layers(proto, ["numpy", "onnxruntime"])
    assert found.ok
    x = np.ones(2, np.float32)
    nothing = api.compare_layers(proto, ["numpy", "onnxruntime"], freeze={"x": x})
    assert nothing.ok
    assert "no step has been compared" in str(nothing)
    assert "0 steps" not in str(nothing)
    for shown in (found, nothing):  # nothing differs: there is no table to explain
        assert "excess" not in str(shown)


def test_masks_of_padded_batches() -> None:
    """onnxruntime refuses an Attention whose mask has one row for all queries."""
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 3, 4, 8)).astype(np.float32) for name in "qkv"}
    feeds["m"] = rng.standard_normal((2, 1, 1, 4)).astype(np.float32)
    proto = parse_model(
        '<ir_version: 10, opset_import: ["" : 23]>\n'
        "g (float[b,3,s,8] q, float[b,3,s,8] k, float[b,3,s,8] v, float[b,1,1,s] m)"
        " => (float[b,3,s,8] y) { y = Attention (q, k, v, m) }"
    )
    for cumulative in (False, True):
        assert api.compare_layers(proto, ["onnxruntime", "numpy"], feeds, cumulative=cumulative).ok


def test_what_onnxruntime_lacks_is_computed_as_it_is_defined() -> None:
    """It has no Softplus of float64."""
    proto = parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        "g (double[2,4] x) => (double[2,4] y) { y = Softplus (x) }"
    )
    x = {"x": np.random.default_rng(0).standard_normal((2, 4))}
    assert api.compare_layers(proto, ["onnxruntime", "numpy"], x).ok


def test_a_file_of_some_tensors(tercet: Tercet) -> None:
    """What it lacks is not compared; a file of other tensors proves nothing and is an error."""
    some = tercet("run", "classifier.onnx", "--outputs", "r", "--save", "some.npz", "--repeat", 0)
    assert some.code == 0
    np.savez("other.npz", r_of_another_model=np.zeros(3))
    given = "compare", "classifier.onnx", "--layers", "--cumulative", "-b", "numpy", "-b"
    done = tercet(*given, "some.npz", "--no-optimise", "--json").json
    verdicts = [layer["verdict"] for layer in done["layers"] if not layer["tensors"]]
    assert verdicts == ["not compared"] * (len(done["layers"]) - 1)
    other = tercet(*given, "other.npz", "--no-optimise")
    assert other.code == 2
    assert "other.npz has no tensor that numpy has" in other.err


def test_steps_behind_a_custom_operator() -> None:
    """onnxruntime lacks the operator, whose results have no declared type, but not what follows."""
    proto = parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>\n'
        "g (float[2] x) => (float[2] z) { y = acme.Half (x)  z = Exp (y) }"
    )
    half = {("acme", "Half"): lambda x: x / np.float32(2)}
    found = api.compare_layers(proto, ["numpy", "onnxruntime"], operators=half)
    assert [layer.operators for layer in found.layers] == ["acme::Half", "Exp"]
    assert "acme:Half" in found.layers[0].refused
    assert found.layers[1].verdict in ("equal", "within rounding")


@pytest.mark.parametrize("second", ["numpy", "onnxruntime"])
def test_steps_that_nobody_reads_are_not_compared(second: str) -> None:
    model = parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[3,4] x) => (float[3,4] y) {
            values, places = TopK <axis = 1> (x, two)
            text = Cast <to = 8> (places)
            size = Shape(x)
            y = Relu(x)
        }""")
    model.graph.initializer.append(numpy_helper.from_array(np.array([2], np.int64), "two"))
    found = api.compare_layers(model, ["numpy", second], optimise=False)
    assert found.verdict == "ok"
    assert [layer.operators for layer in found.layers if layer.number] == ["TopK", "Relu"]
