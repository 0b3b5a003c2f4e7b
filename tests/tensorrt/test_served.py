"""On a GPU that the library serves: the demo, ONNX's suite and the speed table, on engines.

`make gpu-test` runs this with everything else, `python -m tercet.tools.workshop.tensorrt_check` by
itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tercet
from tercet.tools.workshop.tensorrt_check import BACKEND, parts, run

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.alone]
TITLES = ("the demo", "ONNX's own suite", "speed")


@pytest.mark.parametrize("title", TITLES)
def test_on_engines(title: str, tmp_path: Path) -> None:
    (found,) = [each for each in tercet.available() if each.name == BACKEND]
    if not found:
        pytest.skip(f"{found.missing}; {found.remedy}")
    (part,) = [part for part in parts(None, tmp_path) if part.title == title]
    outcome = run(part)
    assert outcome.code == 0, outcome.output
