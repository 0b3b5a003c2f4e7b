"""Names that a file brings: whatever is in them, the terminal only shows it."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet
from tercet.runtime.errors import TercetError, TercetWarning, UnsupportedError
from tercet.runtime.text import message, printable

ROOT = Path(__file__).resolve().parents[2]
#: Clears the screen, sets the title, colours by C1, returns, steps back, writes from right to left,
#: hides, breaks the line and forges one.
PAYLOAD = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\b\x00\x7f\u202e\u200b\u2028é\nFORGED\n"


def named(kind: str) -> str:
    return f"{kind}{PAYLOAD}"


def hostile(operator: str = "Relu", domain: str = "", **attributes: Any) -> ModelProto:
    """A model in which everything that can have a name has one of those."""
    x, y, w, b = map(named, "xywb")
    nodes = [
        helper.make_node("MatMul", [x, w], [named("h")], name=named("product")),
        helper.make_node("Add", [named("h"), b], [named("s")], name=named("sum")),
        helper.make_node(
            operator, [named("s")], [y], name=named("last"), domain=domain, **attributes
        ),
    ]
    nodes[0].doc_string = PAYLOAD
    constants = {w: np.ones((4, 3), np.float32), b: np.ones(3, np.float32)}
    graph = helper.make_graph(
        nodes,
        named("graph"),
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [named("n"), 4])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, [named("n"), 3])],
        [numpy_helper.from_array(data, name) for name, data in constants.items()],
        doc_string=PAYLOAD,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(named("domain"), 1)]
    model = helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=10,
        producer_name=named("producer"),
        producer_version=PAYLOAD,
        domain=PAYLOAD,
        doc_string=PAYLOAD,
    )
    model.metadata_props.add(key=named("key"), value=named("value"))
    return model


UNKNOWN_ATTRIBUTE: dict[str, Any] = {named("attribute"): 1}
#: Models with a mistake in each place whose message has a name in it.
BROKEN = {
    "operator": hostile(named("Relux")),
    "domain": hostile("Relu", named("domain")),
    "undeclared": hostile("Relu", named("other")),
    "attribute": hostile(**UNKNOWN_ATTRIBUTE),
    "value": hostile("Flatten", axis=named("axis")),
    "shape": hostile("Transpose", perm=[5, 6]),
    "dtype": hostile("Not"),
}
FILES = (
    "doctor",
    "inspect {}",
    "inspect {} --placement numpy --passes --nodes",
    "inspect {} --json",
    "run {}",
    "run {} --layers",
    "run {} --save out.npz",
    "run {} --input absent=absent.npy",
    "run {} --outputs absent",
    "run {} --shape 2x5",
    "run {} --dim absent=3",
    "run {} --backend cuda --fallback numpy",
    "run {} --json",
    "compare {} -b numpy -b onnxruntime --save saved.npz",
    "compare {} -b numpy -b onnxruntime --json",
    "compare {} --load saved.npz",
    "compare {} -b numpy -b onnxruntime --layers",
    "bisect {}",
    "simplify {} small.onnx",
    "export {} out.onnx --opset 13",
    "profile {}",
    "profile {} --json",
    "bench {} -b numpy --warmup 1 --runs 2",
    "extract {} part.onnx --to absent",
    "tune {}",
)
DRIVER = """
import sys
from tercet.tools.cli import main
for line in open("commands.txt", encoding="utf-8").read().splitlines():
    for stream in (sys.stdout, sys.stderr):
        print("#", line, file=stream, flush=True)
    try:
        main(line.split())
    except SystemExit as ended:
        print("exit", ended.code, flush=True)
"""


def finish(tmp_path: Path, lines: list[str], **environment: str) -> str:
    """Run commands in one process with these variables; return all that they wrote."""
    (tmp_path / "commands.txt").write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    return (done.stdout + done.stderr).decode(environment.get("PYTHONIOENCODING", "utf-8"))


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONUTF8": "1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    ],
    ids=["utf-8", "ascii"],
)
def test_every_command_shows_names_and_obeys_none(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    onnx.save(hostile(), tmp_path / "hostile.onnx")
    lines = [command.format("hostile.onnx") for command in FILES]
    for name, model in BROKEN.items():
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
        lines += [f"{command} {name}.onnx" for command in ("inspect", "run --json")]
    if "LC_ALL" in environment:
        lines = lines[:8] + lines[-6:]
    text = finish(tmp_path, lines, **environment)
    assert not [line for line in text.split("\n") if not line.isprintable()]
    assert "Traceback" not in text
    assert "FORGED" in text
    assert not [line for line in text.split("\n") if line.startswith("FORGED")]
    ends = [line for line in text.split("\n") if line.startswith("exit ")]
    assert len(ends) == len(lines)
    assert set(ends) <= {f"exit {code}" for code in (0, 1, 2, 3, 4, 5, 8)}


def test_json_is_faithful(tmp_path: Path) -> None:
    onnx.save(hostile(), tmp_path / "hostile.onnx")
    for encoding in ("utf-8", "ascii"):
        text = finish(tmp_path, ["inspect hostile.onnx --json"], PYTHONIOENCODING=encoding)
        found = json.loads(text[text.index("{") : text.rindex("}") + 1])
        assert found["metadata"][named("key")] == named("value")


@pytest.mark.parametrize("name", BROKEN)
def test_errors_print_safely_and_keep_names(name: str) -> None:
    with pytest.raises(TercetError) as caught:
        tercet.load(BROKEN[name])
    error = caught.value
    error.add_note(PAYLOAD)
    said = [str(error), *error.__notes__, repr(error)]
    assert all(line.isprintable() for text in said for line in text.split("\n"))
    if isinstance(error, UnsupportedError) and error.refusals:
        assert PAYLOAD in error.refusals[0].node


def test_warnings_print_safely() -> None:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        warnings.warn(TercetWarning(PAYLOAD), stacklevel=1)
    assert all(line.isprintable() for line in str(given[0].message).split("\n"))


def test_what_a_model_says_of_itself_prints_safely() -> None:
    with tercet.load(hostile(), backend="numpy") as model:
        model.run({named("x"): np.ones((2, 4), np.float32)})
        said = [str(model.inputs[0]), str(model.placement()), repr(model.inputs), repr(model)]
        for text in (*said, model._repr_html_(), model.placement()._repr_html_()):
            assert all(line.isprintable() for line in text.split("\n"))
        assert model.inputs[0].name == named("x")


@pytest.mark.parametrize("name", ["a\0b", "\x1b[2J", "\u202e", "", "a" * 60_000])
def test_operators_may_be_called_anything(name: str) -> None:
    for domain in ("", "nowhere"):
        with pytest.raises(TercetError, match="node 'last"):
            tercet.load(hostile(name, domain))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢字", "plain é 漢字"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b\u202e\U000e0001", "\\x9b\\u202e\\U000e0001"),
        ("\ud800", "\\ud800"),
        ("a\nb\tc", "a\\nb\\tc"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_messages_of_several_lines_are_indented() -> None:
    assert message("a\nb\n  c\n\n\td") == "a\n  b\n  c\n\n\td"
