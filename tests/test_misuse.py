"""Wrong calls of every public function: a TercetError that names the argument, and never another.

`MISUSES` are mistakes that people make, with what the message must name; the sweep gives every
argument of every function values that cannot be meant.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tercet
from tercet.arguments import RULES
from tercet.runtime.base.arguments import anything

DIGITS = str(Path(tercet.__file__).parent / "demo" / "digits.onnx")
DECODER = str(Path(__file__).parent / "producers" / "transformers" / "genai_llama_fp32.onnx")
LLAMA = str(Path(__file__).parent / "producers" / "decoders" / "optimum_llama")
X = np.zeros((1, 1, 8, 8), np.float32)
PAIR = ["numpy", "onnx.reference"]
TEXTS = """<ir_version: 10, opset_import: ["" : 21]>
    g (string[n] x) => (string[n] y) { y = Identity (x) }"""


@pytest.fixture(scope="module")
def model():
    with tercet.load(DIGITS) as loaded:
        yield loaded


def load(**given: Any) -> Callable[[tercet.Model], object]:
    return lambda _: tercet.load(DIGITS, **given)


def call(name: str, *given: Any, **more: Any) -> Callable[[tercet.Model], object]:
    return lambda _: getattr(tercet, name)(*given, **more)


def on(name: str, *given: Any, **more: Any) -> Callable[[tercet.Model], object]:
    return lambda model: getattr(model, name)(*given, **more)


#: A call, and words of its message.
MISUSES: list[tuple[Callable[[tercet.Model], object], str]] = [
    # load
    (call("load"), "source"),
    (call("load", 5), "int"),
    (call("load", None), "NoneType"),
    (call("load", BytesIO()), "what its read() gives"),
    (load(external_data_dir="nowhere"), "no folder 'nowhere'"),
    (call("load", "gone.onnx"), "gone.onnx"),
    (call("load", ""), "no such file"),
    (call("load", DIGITS, "numpy", "cuda"), "positional"),
    (load(backend=None), "backend"),
    (load(backend=[]), "backend"),
    (load(backend=[None]), "backend"),
    (load(backend=["numpy", "nunpy"]), "did you mean 'numpy'"),
    (load(backend="cpu"), "backend"),
    (load(fallback=3), "fallback"),
    (load(fallback="nunpy"), "did you mean 'numpy'"),
    (load(backend="cpu"), "did you mean 'numpy'"),
    (load(backend="GPU"), "did you mean 'cuda'"),
    (load(providers=["CUDAExecutionProvider"]), "did you mean 'cuda'"),
    (load(bakend="numpy"), "did you mean 'backend'"),
    (load(fall_back="numpy"), "did you mean 'fallback'"),
    (load(precison="float16"), "did you mean 'precision'"),
    (load(operater={}), "did you mean 'operators'"),
    (load(stop=3), "did you mean 'stop_at'"),
    (load(precision=None), "precision"),
    (load(precision=np.float16), "precision"),
    (load(precision="fp16"), "precision"),
    (load(max_plans="x"), "max_plans"),
    (load(max_plans=0), "max_plans"),
    (load(max_plans=2.5), "max_plans"),
    (load(max_plans=True), "max_plans"),
    (load(fold_bytes="64 apples"), "fold_bytes"),
    (load(fold_bytes=-1), "fold_bytes"),
    (load(max_bytes=float("nan")), "max_bytes"),
    (load(workspace="-1MB"), "workspace"),
    (load(freeze=[1]), "freeze"),
    (load(freeze={"imag": X}), "did you mean 'image'"),
    (load(freeze={1: X}), "freeze"),
    (load(freeze={"image": "x"}), "image"),
    (load(skip=("nope",)), "'nope'"),
    (load(skip="fold_constant"), "did you mean 'fold_constants'"),
    (load(skip=3), "skip"),
    (load(stop_at=-1), "stop_at"),
    (load(stop_at="all"), "stop_at"),
    (load(tune="yes"), "tune"),
    (load(finite=1), "finite"),
    (load(streams=0), "streams"),
    (load(device=-1), "device"),
    (load(device="cuda:0"), "device"),
    (load(control="gpu"), "control"),
    (load(conv="winograd"), "conv"),
    (load(conv=["fft", "winograd"]), "winograd"),
    (load(algorithms=["Conv=fft"]), "algorithms"),
    (load(algorithms={"nobody": "fft"}), "nobody"),
    (load(keep_float32=["nobody"]), "nobody"),
    (load(keep_float32=5), "keep_float32"),
    (load(ranges={"batch": 4}), "ranges"),
    (load(ranges={"batch": (4, 2, 1)}), "ranges"),
    (load(cache=5), "cache"),
    (load(operators=[len]), "operators"),
    (load(operators={"Swish": len}), "operators"),
    (load(operators={("d", "Swish"): 5}), "Swish"),
    (call("Options", foo=1), "foo"),
    (call("Options", precison="tf32"), "did you mean 'precision'"),
    # a model
    (on("run", 5), "image"),
    (on("run", None), "inputs"),
    (on("run"), "inputs"),
    (on("run", {1: X}), "inputs"),
    (on("run", {"imag": X}), "did you mean 'image'"),
    (on("run", {"image": X, "more": X}), "more"),
    (on("run", [X, X]), "inputs"),
    (on("run", "image"), "image"),
    (on("run", {"image": None}), "image"),
    (on("run", {"image": {"image": X}}), "image"),
    (on("run", {"image": [[1, [2]]]}), "image"),
    (on("run", {"image": "cat"}), "has dtype string"),
    (lambda _: tercet.load(TEXTS).run({"x": np.ones(2, np.int64)}), "array.astype(str)"),
    (on("run", {"image": [[[[True] * 8] * 8]]}), "has dtype bool"),
    (on("run", {"image": [[[[X[0, 0, 0, 0].astype(np.float64)] * 8] * 8]]}), "has dtype float64"),
    (pickle.dumps, "a Model cannot be copied or pickled"),
    (copy.copy, "a Model cannot be copied or pickled"),
    (copy.deepcopy, "load it again where it is needed"),
    (on("run", {"image": np.ma.array(X, mask=X == 0)}), "masked"),
    (on("run", {"image": X.astype(">f8")}), "float64"),
    (on("run", {"image": X}, {"probabilities": X}), "outputs"),
    (on("run", ["probabilites"], {"image": X}), "did you mean 'probabilities'"),
    (on("run", ["elsewhere"], {"image": X}), "'elsewhere' (its outputs: probabilities)"),
    (on("run", {"image": X}, 5), "outputs"),
    (on("run", {"image": X}, [5]), "outputs"),
    (on("run", {"image": X}, to="gpu"), "to="),
    (on("run", {"image": X}, stream=5), "stream"),
    (on("__call__", X, X), "image"),
    (on("__call__"), "inputs"),
    (on("__call__", X, image=X), "image"),
    (on("__call__", imag=X), "did you mean 'image'"),
    (on("run", image=X), "run: there is no option 'image'"),
    (on("run", {"image": X}, output=["probabilities"]), "did you mean 'outputs'"),
    (on("run", {"image": X}, None, "host"), "run: too many positional arguments"),
    (on("placement", shape={}), "did you mean 'shapes'"),
    (on("bind", {"image": X}), "shapes"),
    (on("bind", {"image": (1, 1, 8, -8)}), "shapes"),
    (on("bind", X), "shapes"),
    (on("prepare", {"imag": (1, 1, 8, 8)}), "did you mean 'image'"),
    (on("prepare", {"image": 5}), "shapes"),
    (on("placement", "image"), "shapes"),
    (on("memory", outputs=5), "outputs"),
    (on("pipeline", depth=0), "depth"),
    (lambda m: list(m.map(cast("Any", 5))), "batches"),
    (lambda m: m.bind().run(cast("Any", X)), "inputs"),
    # one operator, arrays on a device
    (call("run_op", "Cnov", X), "did you mean 'Conv'"),
    (call("run_op", 5, X), "operator"),
    (call("run_op", "Conv", X, X, pads="same"), "pads"),
    (call("run_op", "Conv", X, X, pad=[1, 1, 1, 1]), "did you mean 'pads'"),
    (call("run_op", "Relu", X, backend="nunpy"), "did you mean 'numpy'"),
    (call("compare", DIGITS, ["numpy", "ort"]), "did you mean 'onnxruntime'"),
    (call("run_op", "Relu", X, outputs=0), "outputs"),
    (call("run_op", "Relu", X, outputs=2), "Relu"),
    (call("run_op", "Relu", object()), "Relu"),
    (call("run_op", "Relu", [1.0]), "expected a tensor"),
    (call("run_op", "Add", X), "Add takes 2 inputs, not 1"),
    (call("run_op", "Relu", X, X), "Relu takes 1 input, not 2"),
    (call("to_device", X, "numpy"), "numpy"),
    (call("to_device", X, device=-1), "device"),
    (call("pinned", 5), "shape"),
    (call("pinned", (1,), "no such dtype"), "dtype"),
    # tools
    (call("compare", DIGITS, 5), "runners"),
    (call("compare", DIGITS, ["numpy"]), "two"),
    (call("compare", DIGITS, ["numpy", "onnxrutime"]), "did you mean 'onnxruntime'"),
    (call("compare", DIGITS, ["numpy", "gone.npz"]), "gone.npz"),
    (call("compare", DIGITS, PAIR, [X, X]), "inputs"),
    (call("compare", DIGITS, PAIR, {"imag": X}), "did you mean 'image'"),
    (call("compare", DIGITS, PAIR, X.astype(float)), "image"),
    (call("compare", DIGITS, PAIR, "gone"), "gone"),
    (call("compare", DIGITS, PAIR, seed=-1), "seed"),
    (call("compare", DIGITS, PAIR, seed="x"), "seed"),
    (call("compare", DIGITS, PAIR, dims={"bach": 2}), "did you mean 'batch'"),
    (call("compare", DIGITS, PAIR, dims={"batch": "2"}), "dims"),
    (call("compare", DIGITS, PAIR, dims=4), "dims"),
    (call("compare", DIGITS, PAIR, shapes={"image": "1x1"}), "shapes"),
    (call("compare", DIGITS, PAIR, [X], dims={"batch": 2}), "dims"),
    (call("compare", DIGITS, PAIR, rtol=-1), "rtol"),
    (call("compare", DIGITS, PAIR, atol={"nothing": 1.0}), "nothing"),
    (call("compare", DIGITS, PAIR, repeat=-1), "repeat"),
    (call("compare", DIGITS, PAIR, timeout=0), "timeout"),
    (call("compare", DIGITS, PAIR, outputs=["nothing"]), "nothing"),
    (call("compare", DIGITS, PAIR, load="gone.npz"), "gone.npz"),
    (call("compare", DIGITS, PAIR, threads=0), "threads"),
    (call("compare", DIGITS, PAIR, foo=1), "foo"),
    (call("compare_layers", DIGITS, PAIR, foo=1), "foo"),
    (call("compare_layers", DIGITS, ["numpy"]), "two"),
    (call("bisect", DIGITS, ["numpy", "onnxruntime"], foo=1), "foo"),
    (call("bisect", DIGITS, ["numpy", "onnxruntime", "onnx.reference"]), "3"),
    (call("bisect", DIGITS, say="loud"), "say"),
    (call("keep_float32", DIGITS, 0), "tolerance"),
    (call("keep_float32", DIGITS, 1e-3, "float32"), "float32"),
    (call("profile", DIGITS, "nunpy"), "did you mean 'numpy'"),
    (call("profile", DIGITS, repeat="often"), "repeat"),
    (call("bench", []), "sources"),
    (call("bench", DIGITS, duraton=1), "did you mean 'duration'"),
    (call("bench", DIGITS, ["numpy"], duration=0), "duration"),
    (call("bench", DIGITS, ["numpy"], batch=0), "batch"),
    (call("bench", DIGITS, ["numpy"], precision="float33"), "float33"),
    (call("bench", DIGITS, ["numpy"], assert_p50="fast"), "fast"),
    (call("bench", DIGITS, ["numpy"], compare="gone.json"), "gone.json"),
    (call("inspect", 5), "int"),
    (call("inspect", DIGITS, placement="nunpy"), "did you mean 'numpy'"),
    (call("inspect", DIGITS, passes="yes"), "passes"),
    (call("export", DIGITS, "/nonexistent/e.onnx"), "/nonexistent/e.onnx"),
    (call("export", DIGITS, "e.pb"), "e.pb"),
    (call("export", DIGITS, 5), "file"),
    (call("export", DIGITS, opset="new"), "opset"),
    (call("simplify", DIGITS, inputs=[]), "inputs"),
    (call("extract", DIGITS, outputs=["nothing"]), "nothing"),
    (call("extract", DIGITS, inputs=5), "inputs"),
    (call("compress", DIGITS), "sparsity"),
    (call("compress", DIGITS, sparsity=2), "sparsity"),
    (call("compress", DIGITS, bits={"conv": 9}), "bits"),
    (call("report", []), "report"),
    (call("report", 5), "sources"),
    (call("report", ["gone.json"]), "gone.json"),
    (call("report", [{}]), "comparison"),
    (call("diagnose", -1), "patience"),
]


@pytest.mark.parametrize(("wrong", "word"), MISUSES)
def test_a_wrong_call_names_the_argument(
    model: tercet.Model, wrong: Any, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    absent = (tercet.BackendUnavailable,) if "cuda" not in word else ()
    with pytest.raises(tercet.TercetError) as caught:
        wrong(model)
    if not isinstance(caught.value, absent):
        assert word in str(caught.value)


# ── every argument ───────────────────────────────────────────────────────────────────────────────

NESTED: list[Any] = [[[]]]
for _ in range(40):
    NESTED = [NESTED]
VALUES: list[Any] = [
    *(None, -1, 0, 10**400, "", "nothing", b"x", object(), [], {}, [None], {"image": None}),
    *(3.5, float("nan"), 1e308, 1j, True, {1, 2}, NESTED, np.zeros(3), np.array(None), len, int),
]
#: Seconds, of which 3.5 is no mistake.
LASTING = ("duration", "warm_up", "patience", "peaks")
BRIEF = {"duration": 0.001, "warm_up": 0.0, "accuracy": False}
FIRST: dict[str, dict[str, Any]] = {
    "bench": {"sources": DIGITS, "runners": ["numpy"], **BRIEF},
    "bisect": {"source": DIGITS, "runners": ["numpy"]},
    "compare": {"source": DIGITS, "runners": PAIR, "repeat": 0},
    "compress": {"source": DIGITS, "sparsity": 0.5},
    "compile": {"source": DIGITS, "target": "sm_80"},
    "compile_generation": {"folder": LLAMA, "target": "sm_80", "capacity": 4, "prefill_chunk": 2},
    "compare_layers": {"source": DIGITS, "runners": PAIR},
    "decode_inputs": {"source": DECODER, "tokens": [3, 4]},
    "diagnose": {"patience": 0.1},
    "export": {"source": DIGITS},
    "extract": {"source": DIGITS},
    "inspect": {"file": DIGITS},
    "keep_float32": {"source": DIGITS, "tolerance": 1e9},
    "load": {"source": DIGITS},
    "pinned": {"shape": (1,)},
    "profile": {"source": DIGITS, "repeat": 1, "peaks": False},
    "report": {"sources": [{}]},
    "run_op": {"operator": "Relu"},
    "simplify": {"source": DIGITS},
    "to_device": {"array": X},
}
#: Arguments that mean something in one function only, and have a rule there.
OWN = {
    "bench": {"batch", "concurrency", "compare", "schedule", "limits", "old"}
    | {f"assert_{what}" for what in ("p50", "ops", "error", "ratio")},
    "compress": {"sparsity", "bits", "min_elements"},
    "compile_generation": {"folder", "variant", "batch", "capacity", "prefill_chunk"},
    "decode_inputs": {"tokens", "step"},
    "diagnose": {"patience"},
}
FUNCTIONS = [
    name
    for name in tercet.__all__
    if inspect.isfunction(getattr(tercet, name)) and name != "available"
]


def test_every_public_function_is_swept() -> None:
    assert set(FUNCTIONS) == set(FIRST)


def _parameters(name: str) -> list[str]:
    kinds = inspect.signature(getattr(tercet, name)).parameters
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    own = [n for n, p in kinds.items() if p.kind not in variable]
    fields = list(tercet.Options.__dataclass_fields__) if "options" in kinds else []
    return list(dict.fromkeys([*own, *(fields if name == "load" else fields[:2])]))


def _cases() -> list[tuple[str, str]]:
    """Every argument with a rule of its function's own, and each shared rule once."""
    shared: set[str] = set()
    cases: list[tuple[str, str]] = []
    for name in ("load", "export", "inspect", *FUNCTIONS):
        own = inspect.getclosurevars(getattr(tercet, name)).nonlocals["settle"].__self__
        for parameter in _parameters(name):
            common = own.rules[parameter] is RULES.get(parameter, anything)
            if (name, parameter) in cases or (common and parameter in shared - {"source"}):
                continue
            shared.add(parameter)
            cases.append((name, parameter))
    return cases


def test_every_argument_has_a_rule() -> None:
    """But for those that `load` or the function itself looks at."""
    free = {"source", "sources", "array", "stream", "other", "file"}
    for name in FUNCTIONS:
        for parameter in _parameters(name):
            assert parameter in RULES or parameter in free | OWN.get(name, set()), (name, parameter)


@pytest.mark.parametrize(("name", "parameter"), _cases())
def test_no_value_of_an_argument_is_an_untyped_error(
    name: str, parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(tercet, name)
    given = (X,) if name == "run_op" and parameter != "operator" else ()
    for value in VALUES:
        if (parameter, value is int) == ("say", True):  # what a callback raises is its own
            continue
        if parameter in LASTING and isinstance(value, float | bool) and value > 0:
            continue
        if (name, parameter) == ("run_op", "operator"):
            arguments: dict[str, Any] = {"operator": value}
        else:
            arguments = {**FIRST[name], parameter: value}
        if given:
            arguments.pop("operator")
            given = ("Relu", X)
        try:
            _close(function(*given, **arguments))
        except tercet.TercetError:
            continue


def _close(found: object) -> None:
    if isinstance(found, tercet.Model):
        found.close()


@pytest.mark.parametrize("name", ["run", "prepare", "placement", "memory", "bind", "pipeline"])
def test_no_value_given_to_a_model_is_an_untyped_error(model: tercet.Model, name: str) -> None:
    method = getattr(model, name)
    for parameter in inspect.signature(method).parameters:
        for value in VALUES:
            more = {"inputs": {"image": X}} if name == "run" and parameter != "inputs" else {}
            try:
                found = method(**{**more, parameter: value})
            except tercet.TercetError:
                continue
            if name in ("bind", "pipeline"):
                found.close()
