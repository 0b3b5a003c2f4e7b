"""Plans for a GPU on a machine without the packages for CUDA, as after a plain `pip install`."""

import os
import subprocess
import sys

from onnx.parser import parse_model

PLAN = """
import sys
sys.modules["cuda"] = None
import tercet
found = tercet.inspect(sys.stdin.buffer.read(), placement="cuda", target="sm_90a")
print(found.backend, *(f"{row.operators}:{row.backend}" for row in found.placement))
"""


def test_a_plan_needs_no_packages() -> None:
    model = parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2, 4] x) => (float[2, 4] y)\n'
        "{ a = Relu (x)\n y = Softmax (a) }"
    )
    done = subprocess.run(
        [sys.executable, "-c", PLAN],
        input=model.SerializeToString(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"cuda on sm_90a, 132 multiprocessors")
    for operator in (b"Relu:cuda", b"Softmax:cuda"):
        assert operator in done.stdout
