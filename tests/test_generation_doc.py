"""The examples of docs/generation.md and of the README run, and so does examples/generate.py."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from tercet.tools.cli import main

from .generation.folders import DECODERS, told

pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs/generation.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^    ((?:hf|tercet) (?:download|generate) .*)$", TEXT, re.MULTILINE)
SHOWN = re.findall(r"^    ((?:hf|tercet) (?:download|generate) .*)$", README, re.MULTILINE)
SCRIPT = ROOT / "examples" / "generate.py"
ENCODERS = DECODERS.parent / "encoders"


def repository(name: str, target: Path) -> None:
    """Write what a repository of that kind has, with a small model of random weights."""
    if name in ("qwen3", "llama"):
        shutil.copytree(DECODERS / "optimum_llama", target)
        shutil.copytree(DECODERS / "transformersjs_llama" / "onnx", target / "onnx")
        return
    shutil.copytree(ENCODERS / f"optimum_{'bart' if name == 't5' else name}", target)
    (target / "onnx").mkdir()
    for file in list(target.glob("*.onnx")):
        shutil.move(file, target / "onnx" / file.name)


def downloaded(words: Sequence[str], folder: Path) -> None:
    """Copy what the patterns of ``hf download`` name of a repository, and no more."""
    name = words[words.index("--local-dir") + 1]
    patterns = words[words.index("--include") + 1 :]
    repository(name, folder / "hub" / name)
    for file in (folder / "hub" / name).rglob("*"):
        path = file.relative_to(folder / "hub" / name)
        if file.is_file() and any(fnmatch(path.as_posix(), pattern) for pattern in patterns):
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / name / path)


@pytest.mark.parametrize("lines", [COMMANDS, SHOWN], ids=["docs", "README"])
def test_what_is_downloaded_is_enough(
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    speech = ENCODERS / "optimum_whisper"
    shutil.copy(speech / "sound.wav", tmp_path)
    with np.load(speech / "features.npz") as file:
        np.save(tmp_path / "features.npy", file["features"])
    repository("llama", tmp_path / "llama")
    assert any(line.startswith("hf ") for line in lines)
    for line in lines:
        _, verb, *words = shlex.split(line, comments=True)
        if verb == "download":
            downloaded(words, tmp_path)
            continue
        with pytest.raises(SystemExit) as ended:
            main(["generate", *words, "--max-new-tokens", "2"])
        said = capsys.readouterr().err
        assert ended.value.code == 0, f"{line}: {said}"
        assert "2 generated" in said, f"{line}: {said}"


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DECODERS / "optimum_llama", tmp_path / "llama")
    shutil.copytree(ENCODERS / "optimum_t5", tmp_path / "t5")
    shutil.copytree(ENCODERS / "optimum_whisper", tmp_path / "whisper")
    shutil.copy(ENCODERS / "optimum_whisper" / "sound.wav", tmp_path)
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
