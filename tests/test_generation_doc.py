"""The examples of docs/generation.md run, and so does examples/generate.py."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from .generation.folders import DECODERS, told

pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs/generation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SCRIPT = ROOT / "examples" / "generate.py"


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DECODERS / "optimum_llama", tmp_path / "llama")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/generation.md", "exec"), {"__name__": "example"})


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("name", ["optimum_llama", "optimum_gpt2", "optimum_qwen3"])
def test_the_loop_by_hand(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tokenizers

    expected = told(name)
    monkeypatch.setattr(sys, "argv", ["generate.py", str(DECODERS / name), expected["prompts"][0]])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    tokenizer = tokenizers.Tokenizer.from_file(str(DECODERS / name / "tokenizer.json"))
    assert capsys.readouterr().out == tokenizer.decode(expected["alone"][0]) + "\n"


def test_the_loop_by_hand_is_short() -> None:
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 60
