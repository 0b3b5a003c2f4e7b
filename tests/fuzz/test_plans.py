"""What is planned depends on the model alone, not on hashes, addresses, or what was loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: An image of one pixel, whose bytes are the same in any format.
PIXEL = ROOT / "tests" / "producers" / "converted" / "tf2onnx_resized.onnx"


def planned(seed: int, *more: str) -> str:
    target = ["--target", "sm_90a"] if find_spec("cuda") else []
    module = "tercet.tools.workshop.fuzz.plans"
    command = [sys.executable, "-m", module, "--graphs", "2", "--seed", "3", *target, *more]
    command.append(str(PIXEL))
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_two_processes_plan_the_same() -> None:
    one, other = planned(4), planned(1, "--backwards")  # sets of formats have two orders then
    assert one == other
    assert one.count("plan for") >= 4
