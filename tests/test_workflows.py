"""What GitHub runs and asks for: files of the right form that name only what is here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(
    path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"
)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def load(file: Path) -> dict[Any, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    return load(file)["jobs"]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
    ids=["workflows", "forms", "config"],
)
def test_they_have_the_form_that_github_publishes(schema: str, files: list[Path]) -> None:
    pytest.importorskip("check_jsonschema", reason="pip install check-jsonschema")
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_steps_are_make_targets(file: Path) -> None:
    """A developer repeats a failure with the command that failed."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
    for job in jobs(file).values():
        assert job["timeout-minutes"] <= 60
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert commands
        for command in commands:
            target = re.fullmatch(r"make ([a-z-]+) PYTHON=python", command)
            assert target, command
            assert target[1] in targets
        for step in job["steps"]:
            assert "run" in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])


def test_every_supported_python_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    named = [
        each.removeprefix(prefix) for each in project["classifiers"] if each.startswith(prefix)
    ]
    (matrix,) = [
        job["strategy"]["matrix"]["python"]
        for file in WORKFLOWS
        for job in jobs(file).values()
        if "strategy" in job
    ]
    assert matrix == named
    bounds = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"])
    assert bounds is not None, "such as >=3.11,<3.15"
    low, high = bounds.groups()
    assert named == [f"3.{minor}" for minor in range(int(low), int(high))]


def test_the_makefile_names_tests_that_exist() -> None:
    paths = re.findall(r"tests/[\w./]+", MAKEFILE)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_reports_come_with_the_environment(file: Path) -> None:
    fields = {field["id"]: field["attributes"] for field in load(file)["body"]}
    assert "tercet doctor --json" in fields["doctor"]["label"]


def test_options_that_the_forms_name_exist() -> None:
    from typer.testing import CliRunner

    from tercet.tools.cli import app

    texts = [
        path.read_text(encoding="utf-8") for path in (*FORMS, GITHUB / "pull_request_template.md")
    ]
    commands = {command for text in texts for command in re.findall(r"`tercet ([^`]*)`", text)}
    assert len(commands) >= 4
    for command in commands:
        name, *words = command.split()
        help_ = CliRunner().invoke(app, [name, "--help"]).output
        for word in words:
            assert not word.startswith("-") or re.search(rf"(?<!\S){word}\b", help_), command


def test_nobody_owns_files() -> None:
    """Anybody may review anything."""
    assert not [
        place for place in (".", ".github", "docs") if (ROOT / place / "CODEOWNERS").exists()
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_leaves_a_linked_environment_alone(tmp_path: Path) -> None:
    """`venv --clear` would follow the link, and empty the environment of another checkout."""
    kept = tmp_path / "other" / "kept"
    kept.parent.mkdir()
    kept.touch()
    (tmp_path / ".venv").symlink_to(kept.parent)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", "demo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert ".venv is a link" in done.stderr
    assert kept.exists()
