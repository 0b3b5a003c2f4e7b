"""docs/cli.md and docs/performance.md: examples run; options, exit codes, JSON fields are named."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from PIL import Image

import tercet as api
from tercet.tools.bench.bench import Schedule, bench
from tercet.tools.cli import app
from tercet.tools.commands.help import split_examples
from tercet.tools.common.console import finite
from tercet.tools.compare.compare import compare
from tercet.tools.compare.layers import compare_layers
from tercet.tools.profile.profiling import profile
from tercet.tools.verdict.error_bounds import INCONCLUSIVE_CODE

from ..generation.folders import DECODERS
from . import models
from .conftest import Tercet

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
PAGES = TEXT + (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ tercet (.*?)(?: +#.*)?$", PAGES, re.MULTILINE)
SCHEMA = json.loads((ROOT / "docs" / "json.schema.json").read_text(encoding="utf-8"))
#: Options with which a command prints something else.
OTHERS = ("--layers", "--tolerance", "--algorithms", "--diff", "--show-space")
#: A command in a line of code, perhaps run by another program, or in a text.
_COMMAND = r"(?:^(?:    |\$ )(?:[^#\n]* )?|`)tercet ([a-z]+)((?: [^#`\n]*)?)"
NAMING = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob(".github/*.md"))
    if "tercet " in path.read_text(encoding="utf-8")
)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What commands write with --json, by the names that the examples give it."""
    file = models.write(models.classifier(), tmp_path_factory.mktemp("saved") / "model.onnx")
    title = "model.onnx"
    pair = ["numpy", "onnxruntime"]
    compared = compare(file, pair, repeat=1).to_dict()
    layers = compare_layers(file, pair).to_dict()
    profiled = profile(file, repeat=2, peaks=False).to_dict()
    benched = bench(file, ["numpy"], schedule=Schedule(duration=0.01, warm_up=0.0)).to_dict()
    for case in benched["cases"]:
        case["model"] = title
    found = {"compare": compared, "layers": layers, "bench": benched, "old": benched}
    found["generated"] = {
        "prompts": [[0, 5]],
        "continuations": [{"prompt": 0, "ids": [6, 7]}],
    }
    found |= dict.fromkeys(("profile", "before", "after"), profiled)
    return {f"{name}.json": json.dumps(finite(data)) for name, data in found.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, saved: dict[str, str]) -> Path:
    """A folder with the files that the examples speak of."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        models.write(models.classifier(), folder / "model.onnx")
        shutil.copytree(DECODERS / "optimum_llama", folder / "llama")
        shutil.copytree(DECODERS.parent / "encoders" / "optimum_whisper", folder / "whisper")
        shutil.copy("whisper/sound.wav", "sound.wav")
        for name, text in saved.items():
            Path(name).write_text(text, encoding="utf-8")
        x = np.random.default_rng(0).random((1, 3, 8, 8), np.float32)
        np.save("x.npy", x)
        Image.fromarray((x[0].transpose(1, 2, 0) * 255).astype(np.uint8)).save("cat.png")
        _save_tensors(x)
    return folder


@pytest.fixture
def examples(folder: Path, made: Path) -> None:
    """A copy of them for each test."""
    shutil.copytree(made, folder, dirs_exist_ok=True)


def _save_tensors(x: np.ndarray) -> None:
    """What commands save: tensors, outputs, comparisons, and names of nodes."""
    with api.load("model.onnx") as model:
        scores = model.run({"image": x})["scores"]
        np.savez("tensors.npz", **model.run({"image": random_image()}, ["r", "scores"]))
    np.savez("out.npz", scores=scores)
    Path("test_data_set_0").mkdir()
    for kind, data in (("input", x), ("output", scores)):
        held = numpy_helper.from_array(data).SerializeToString()
        Path(f"test_data_set_0/{kind}_0.pb").write_bytes(held)
    compare("model.onnx", ["numpy", "onnxruntime"], {"image": x}, repeat=0).save("saved.npz")
    Path("keep.txt").write_text("conv\n", encoding="utf-8")


def random_image() -> np.ndarray:
    """What the command line feeds if nothing is asked for."""
    return np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("command", COMMANDS)
def test_examples_run(tercet: Tercet, command: str) -> None:
    done = tercet(*shlex.split(command))
    absent = {f"'{found.name}'" for found in api.available() if not found}
    if done.code == 5:
        assert any(name in done.err for name in absent)
    else:
        assert done.code == 0, done.err
        assert done.out
        if "--json" in command:
            check_schema(command, done.json)


#: Calls in Python, as docs/cli.md has them in the text.
CALLS = [
    call for call in re.findall(r"`(tercet\.[a-z_0-9]+\([^`]*\)[^`]*)`", TEXT) if "..." not in call
]


def _run_python(text: str) -> dict[str, Any]:
    """Execute a piece of Python; on a backend that cannot run here, on numpy."""
    for found in api.available():
        if not found:
            text = text.replace(f'"{found.name}"', '"numpy"')
    names: dict[str, Any] = {"tercet": api, "np": np}
    exec(text, names)
    return names


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("call", CALLS)
def test_calls_in_python_run(call: str) -> None:
    if call.startswith("tercet.bench("):
        call = call.replace(")", ", duration=0.05, warm_up=0)")
    assert _run_python(f"found = {call}")["found"] is not None


def test_the_readme_s_python_runs(folder: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    source = '<ir_version: 10, opset_import: ["" : 21, "my.domain" : 1]>\n'
    plain = "g (float[1, 3, 224, 224] image) => (float[1, 3] y) { relu_1 = Relu (image) "
    plain += "m = GlobalMaxPool (relu_1)  y = Flatten (m) }"
    models.write(parse_model(source + plain), folder / "model.onnx")
    names = _run_python(first)
    assert names["scores"].shape == (1, 3)
    assert set(names["inside"]) == {"relu_1"}
    custom = "g (float[2] x) => (float[2] y) { y = my.domain.Swish <beta = 2.0> (x) }"
    models.write(parse_model(source + custom), folder / "model.onnx")
    with _run_python(first.split("\n\n")[0] + "\n\n" + second)["model"] as model:
        assert model(np.zeros(2, np.float32))[0].tolist() == [0, 0]


def test_every_command_and_option_is_named() -> None:
    sections = {part.split("\n")[0]: part for part in TEXT.split("\n## ")}
    shared = sections["Models"] + sections["Inputs"] + sections["Exit codes"] + TEXT[:900]
    for command in app.registered_commands:
        name = command.callback.__name__ if command.callback else ""
        section = sections[f"tercet {name}"] + shared
        for option in re.findall(r"--[a-z-]+", _help(name)):
            assert option in section, f"{option} of tercet {name}"


def test_examples_in_the_help_are_run() -> None:
    """Each is an example of the pages, perhaps without some of its options."""
    for command in app.registered_commands:
        _, examples = split_examples(command.callback.__doc__ or "" if command.callback else "")
        assert examples, command.callback
        for line in examples.splitlines():
            words = set(shlex.split(line)[1:])
            assert any(words <= set(shlex.split(each)) for each in COMMANDS), line


@cache
def _help(name: str) -> str:
    from typer.testing import CliRunner

    text = CliRunner().invoke(app, [name, "--help"]).output
    return "\n".join(line for line in text.splitlines() if line.lstrip().startswith("-"))


@pytest.mark.parametrize("page", NAMING)
def test_commands_and_their_options_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, rest in re.findall(_COMMAND, text, re.MULTILINE):
        given = set(re.findall(r"(?<!\S)--?[a-z-]+", rest))
        assert given <= set(re.findall(r"(?<![\w-])--?[a-z-]+", _help(name))), f"tercet {name}"


def test_every_exit_code_is_named() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    raised = {kind.exit_code for kind in (api.TercetError, *_heirs(api.TercetError))}
    assert documented == raised | {0, 1, INCONCLUSIVE_CODE, 9, 130, 141}


def _heirs(kind: type[api.TercetError]) -> list[type[api.TercetError]]:
    return [heir for child in kind.__subclasses__() for heir in (child, *_heirs(child))]


def fields(data: Any) -> set[str]:
    """The keys of all objects in JSON, those that are a model's own names left out."""
    own = {"metadata", "shapes", "opsets", "by_dtype", "counts", "skipped", "ran_on", "rewrites"}
    own |= {"environment", "phases_ms", "alone", "macs", "flops", "others"}
    if isinstance(data, list):
        return {name for item in data for name in fields(item)}
    if not isinstance(data, dict):
        return set()
    deeper = {
        name
        for key, value in data.items()
        if key not in own
        for name in (set() if key == "operators" and isinstance(value, dict) else fields(value))
    }
    return deeper | (set() if set(data) <= {"cpu", "cuda:0"} else set(data))


def check_schema(command: str, found: Any, name: str = "") -> None:
    """Compare what a command has printed with the schema of its name."""
    words = command.split()
    name = name or " ".join(words[:1] + [word for word in words if word in OTHERS])
    assert name in SCHEMA["$defs"]
    where = f"#/$defs/{name.replace(' ', '%20')}"
    jsonschema.Draft202012Validator({**SCHEMA, "$ref": where}).validate(found)


def test_a_field_that_the_schema_lacks_does_not_pass() -> None:
    found = {"error": {"type": "InputError", "message": "no", "notes": [], "exit_code": 2}}
    check_schema("run", found, "error")
    with pytest.raises(jsonschema.ValidationError, match="'code' was unexpected"):
        check_schema("run", {**found, "code": 2}, "error")


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    "command", ["run no.onnx", "run x.npy", "inspect model.onnx --placment", "run model.onnx -b no"]
)
def test_errors_are_as_their_schema_says(tercet: Tercet, command: str) -> None:
    check_schema(command, tercet(*command.split(), "--json").json, "error")


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    "command",
    [
        "bisect model.onnx -b numpy -b onnxruntime",
        "compare model.onnx -b numpy -b onnxruntime -b onnx.reference --stats --repeat 1",
        "compare model.onnx --layers -b numpy -b onnxruntime -b onnx.reference",
        "compress model.onnx small.onnx --sparsity 0.5 --min-elements 100",
        "extract model.onnx part.onnx --outputs r",
        "generate llama/model.onnx --ids 0,5 --max-new-tokens 2",
        "inspect model.onnx --algorithms --target sm_90a",
        "inspect model.onnx --placement cuda --target sm_90a --memory --lint",
        "simplify model.onnx small.onnx",
        "tune model.onnx --show-space",
    ],
)
def test_json_is_as_its_schema_says(tercet: Tercet, command: str) -> None:
    """So are the examples of the pages, and all whose fields are looked for."""
    check_schema(command, tercet(*command.split(), "--json").json)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    "command",
    [
        "run model.onnx --trace-shapes",
        "compare model.onnx -b numpy -b onnxruntime --rtol 0 --repeat 1",
        "compare model.onnx --layers -b numpy -b onnxruntime --runs 2",
        "export model.onnx out.onnx",
        "inspect model.onnx --passes --placement numpy --memory --cost --capability numpy",
        "bisect model.onnx --precision float16 --tolerance 1e-9",
        "doctor",
        "profile model.onnx --repeat 2 --no-peaks",
        "profile --diff before.json after.json",
        "bench model.onnx -b numpy --duration 0.1 --compare old.json",
        "report profile.json",
        "generate llama --prompt a --max-new-tokens 2 --twice",
    ],
)
def test_every_field_of_json_is_named(tercet: Tercet, command: str) -> None:
    done = tercet(*command.split(), "--json")
    check_schema(command, done.json)
    section = TEXT.split(f"\n## tercet {command.split()[0]}\n")[1].split("\n## ")[0]
    inputs = {"name", "dtype", "shape", "origin"}
    layers = {"before", "after", "number", "text", "index", "found", "reference"}
    latencies = {"median", "p10", "p90", "runs"}
    latencies |= {"warnings"}  # described once, for all commands
    missing = {name for name in fields(done.json) if f"`{name}`" not in section}
    assert missing <= inputs | layers | latencies
