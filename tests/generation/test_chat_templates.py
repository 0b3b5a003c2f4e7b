"""Chat templates: the text that transformers gives, and an error for what takes too much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet import InputError, LimitError, ModelError, TimeLimitError, UnsupportedError
from tercet.generation import chat_template
from tercet.generation.chat_template import ChatTemplates
from tercet.generation.config_file import ConfigFile
from tercet.generation.folder import ModelFolder
from tercet.runtime.base.guard import bounded

from ..processes import is_gone
from .chats import FILE, SPECIAL, TALK, TALKS, TEMPLATES, TOOLS, VALUES, key

pytest.importorskip("jinja2", reason="pip install tercet[generate]")


def folder_of(path: Path, template: str | bytes, **config: Any) -> ModelFolder:
    """Write a folder without a model."""
    data = template if isinstance(template, bytes) else template.encode()
    (path / "chat_template.jinja").write_bytes(data)
    return ModelFolder(path / "model.onnx", path, tokens=ConfigFile(path / "config", config))


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Render one template after the other, each in a process of its own."""
    made: list[ChatTemplates] = []

    def render(template: str | bytes, messages: Any = TALK, **values: Any) -> str:
        made.append(ChatTemplates(folder_of(tmp_path, template)))
        return made[-1].render(messages, values)

    yield render
    for each in made:
        each.close()


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_text_of_transformers(template: str, values: dict[str, Any], tmp_path: Path) -> None:
    wanted = json.loads(FILE.read_text(encoding="utf-8"))["texts"][key(template, values)]
    folder = folder_of(tmp_path, TEMPLATES[template], **SPECIAL)
    with ChatTemplates(folder) as templates:
        for _ in range(2):  # the second time from the same process
            assert templates.render(TALKS[template], values) == wanted


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a' * 10**10 }}", "takes more than 512 MiB of memory"),
        (
            "{% set ns = namespace(x='a') %}{% for i in range(99999) %}"
            "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "takes more than 512 MiB of memory",
        ),
        ("{{ 'a' * 2**24 }}{{ 'a' }}", "writes more than 16,777,216 characters"),
        (
            "{% for i in range(99999) %}" + "a" * 999 + "{% endfor %}",
            "writes more than 16,777,216 characters",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself, or nests, too deeply"),
        ("{{ " + "(" * 9999 + ")" * 9999 + " }}", "calls itself, or nests, too deeply"),
    ],
)
def test_what_takes_too_much(chat: Callable[..., str], template: str, text: str) -> None:
    with pytest.raises(LimitError, match=rf"chat_template\.jinja: the chat template {text}"):
        chat(template)
    assert chat("{{ messages | length }}") == "3", "the next conversation is fine"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% for k in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",  # one call, which Python does not interrupt
    ],
)
def test_what_takes_too_long(
    chat: Callable[..., str], template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    with pytest.raises(LimitError, match="the chat template takes more than 1 s"):
        chat(template)


def test_the_callers_time_is_up(chat: Callable[..., str]) -> None:
    with pytest.raises(TimeLimitError), bounded(0.3):
        chat("{{ 9 ** (9 ** 9) }}")


def test_memory_that_the_system_does_not_limit(
    chat: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no limits for processes, it is watched from outside."""
    watched = chat_template.Isolated

    def unlimited(script: Path, *limits: str, memory: int, **how: Any) -> Any:
        folders, _, *others = limits
        return watched(script, folders, str(1 << 40), *others, memory=memory, **how)

    monkeypatch.setattr(chat_template, "Isolated", unlimited)
    monkeypatch.setattr(chat_template, "MEMORY", 100 << 20)
    with pytest.raises(LimitError, match="takes more than 100 MiB of memory"):
        chat("{% set a = 'a' * (2**27) %}{% set b = 9 ** (9 ** 9) %}")


def test_a_process_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatTemplates(folder_of(tmp_path, "{{ messages[0].content }}")) as templates:
        assert templates.render([{"content": "a"}], {}) == "a"
        worker = templates._worker
        assert worker is not None
        first = worker._process
        assert first is not None
        first.kill()
        first.wait()
        worker._process = first
        with monkeypatch.context() as patch:
            patch.setattr(worker, "start", lambda: True)  # as if it died just now
            died = "the chat template fails: its process died of SIG"
            with pytest.raises(ModelError, match=died):
                templates.render([{"content": "b"}], {})
        assert templates.render([{"content": "c"}], {}) == "c"
        second = worker._process
        assert second is not None
        assert second.pid != first.pid
    assert is_gone(second.pid)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        (
            "from threading import Thread\n"
            "bomb = [{'content': 'x'}], {'n': 9}\n"
            "Thread(target=templates.render, args=bomb, daemon=True).start()\n"
            "while process.cpu() < 0.3: pass\n"
            "os.kill(os.getpid(), 9)\n",
            -9,
        ),
    ],
    ids=["its end", "its death while a template runs"],
)
def test_no_process_outlives_its_owner(end: str, status: int, tmp_path: Path) -> None:
    folder_of(tmp_path, "{% if n %}{{ n ** (n ** n) }}{% endif %}{{ messages[0].content }}")
    script = f"""
import os, sys
from pathlib import Path
from tercet.generation import chat_template
from tercet.generation.folder import ModelFolder
chat_template.SECONDS = 1
templates = chat_template.ChatTemplates(ModelFolder(Path(), Path(sys.argv[1])))
templates._worker = chat_template._worker("")
templates._worker._patience = 600  # processor time alone ends a template
text = templates.render([{{"content": "a"}}], {{}})
class process:
    id = templates._worker._process.pid
    def cpu():
        fields = Path(f"/proc/{{process.id}}/stat").read_text().split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
print(text, process.id, flush=True)
{end}"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == status
    text, process = done.stdout.split()
    assert text == "a"
    end_of_time = time.monotonic() + 60
    while not is_gone(int(process)):
        assert time.monotonic() < end_of_time
        time.sleep(0.02)


def test_the_process_reads_no_module_of_the_user(
    chat: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('read')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert chat("{{ messages | length }}") == "3"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.5), "0.5"),
        (np.bool_(False), "False"),
        ((1, "a"), "[1, 'a']"),
        (np.zeros(2), "<ndarray>"),
        (Path("a"), "<PosixPath>"),
        ("half a pair: \ud83d", "half a pair: \ud83d"),
        (float("inf"), "inf"),
    ],
)
def test_values_of_messages(chat: Callable[..., str], value: object, text: str) -> None:
    assert chat("{{ messages[0].content }}", [{"role": "user", "content": value}]) == text


def test_values_that_cannot_be_passed_on(chat: Callable[..., str]) -> None:
    with pytest.raises(InputError, match="the conversation cannot be passed on: Exceeds the limit"):
        chat("a", [{"role": "user", "content": 10**5000}])
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InputError, match="contains itself"):
        chat("a", [{"role": "user", "content": circle}])


def test_a_template_that_is_no_text(chat: Callable[..., str]) -> None:
    with pytest.raises(ModelError, match=r"chat_template\.jinja: is no text in UTF-8"):
        chat(b"\xff\xfe")


def test_the_template_for_tools(tmp_path: Path) -> None:
    named = {"default": "plain", "tool_use": "{{ tools | length }} tools"}
    stated = [{"name": name, "template": text} for name, text in named.items()]
    config = ConfigFile(tmp_path / "tokenizer_config.json", {"chat_template": stated})
    with ChatTemplates(ModelFolder(tmp_path / "m.onnx", tmp_path, tokens=config)) as templates:
        assert templates.render(TALK, {}) == "plain"
        assert templates.render(TALK, {"tools": TOOLS}) == "1 tools"


def test_where_no_process_can_be_started(
    chat: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(UnsupportedError, match="give the prompt as a text"):
        chat("a")
