"""Plans for a GPU on a machine without the packages for CUDA, as after a plain `pip install`."""

import json
import os
import subprocess
import sys

import onnx
import pytest
from onnx.parser import parse_model

PLAN = """
import sys
sys.modules["cuda"] = None
import tercet
found = tercet.inspect(sys.stdin.buffer.read(), placement="cuda", target="sm_90a")
print(found.backend, *(f"{row.operators}:{row.backend}" for row in found.placement))
"""

#: The program, with the arguments of each line: prints exit codes and what is written, as JSON.
PROGRAM = """
import contextlib, io, json, sys
sys.modules["cuda"] = None
from tercet.tools.cli import main
for line in sys.stdin.read().splitlines():
    code, said = 0, io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(json.loads(line))
        except SystemExit as end:
            code = end.code
    print(json.dumps([code or 0, said.getvalue()]))
"""
COMMANDS = [
    ("inspect --capability cuda", 0, "cuda on sm_90a, 132 multiprocessors runs the whole"),
    ("inspect --algorithms", 0, "sm_90a"),
    ("inspect --algorithms --target sm_86", 0, "sm_86"),
    ("tune --show-space --target sm_80", 0, "sm_80"),
    ("inspect --algorithms -b cudnn", 5, "the CUDA packages for Python are missing"),
    ("tune", 5, "the CUDA packages for Python are missing"),
    ("compile --target sm_80", 5, "the CUDA packages for Python are missing"),
    ("compile --target h100", 2, "did you mean 'sm_90a'?"),
]
MODEL = parse_model(
    '<ir_version: 10, opset_import: ["" : 21]>\n'
    "g (float[2, 4] x, float[1, 1, 8, 8] i, float[1, 1, 3, 3] w)\n"
    "=> (float[2, 4] y, float[1, 1, 6, 6] c) { a = Relu (x)\n y = Softmax (a)\n c = Conv (i, w) }"
)


def _python(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        input=given,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )


def test_a_plan_needs_no_packages() -> None:
    done = _python(PLAN, given=MODEL.SerializeToString())
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"cuda on sm_90a, 132 multiprocessors")
    assert b"Relu + Softmax:cuda" in done.stdout


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit code and the output of each command, all in one process without the packages."""
    model = tmp_path_factory.mktemp("models") / "m.onnx"
    onnx.save(MODEL, model)
    lines: list[str] = []
    for command, _, _ in COMMANDS:
        name, *more = command.split()
        lines.append(json.dumps([name, str(model), *more]))
    done = _python(PROGRAM, given="\n".join(lines).encode())
    assert done.returncode == 0, done.stderr.decode()
    found = map(json.loads, done.stdout.splitlines())
    return {command: answer for (command, _, _), answer in zip(COMMANDS, found, strict=True)}


@pytest.mark.parametrize(("command", "code", "said"), COMMANDS)
def test_commands(answers: dict[str, tuple[int, str]], command: str, code: int, said: str) -> None:
    ended, text = answers[command]
    assert ended == code, text
    assert said in text
