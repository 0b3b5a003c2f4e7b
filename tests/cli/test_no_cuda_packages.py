"""Plans for a GPU on a machine without the packages for CUDA, as after a plain `pip install`."""

import os
import subprocess
import sys
from pathlib import Path

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

#: The program, with its arguments.
PROGRAM = """
import sys
sys.modules["cuda"] = None
from tercet.tools.cli import main
sys.exit(main())
"""
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
    for operator in (b"Relu:cuda", b"Softmax:cuda"):
        assert operator in done.stdout


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("inspect --capability cuda", 0, "cuda on sm_90a, 132 multiprocessors runs the whole"),
        ("inspect --algorithms", 0, "sm_90a"),
        ("inspect --algorithms --target sm_86", 0, "sm_86"),
        ("tune --show-space --target sm_80", 0, "sm_80"),
        ("inspect --algorithms -b cudnn", 5, "the CUDA packages for Python are missing"),
        ("tune", 5, "the CUDA packages for Python are missing"),
        ("compile --target sm_80", 5, "the CUDA packages for Python are missing"),
        ("compile --target h100", 2, "did you mean 'sm_90a'?"),
    ],
)
def test_commands(tmp_path: Path, command: str, code: int, said: str) -> None:
    onnx.save(MODEL, tmp_path / "m.onnx")
    name, *more = command.split()
    done = _python(PROGRAM, name, str(tmp_path / "m.onnx"), *more)
    assert done.returncode == code, done.stderr.decode()
    assert said in (done.stdout + done.stderr).decode()
