"""What no session has used for longest leaves a folder of compiled kernels that is too large."""

import os
from pathlib import Path

import pytest

from .conftest import in_use


@pytest.fixture
def kernels(tmp_path: Path) -> list[Path]:
    """Files of 100 bytes, the oldest first; the last two are of one folder."""
    names = ("libraries/a.so", "cubins/cuda/b.cubin", "libraries/both/c.hpp", "libraries/both/d.so")
    files = [tmp_path / name for name in names]
    for age, file in enumerate(reversed(files), 1):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(100))
        os.utime(file, (1e9 - age, 1e9 - age))
    return files


def left(kernels: list[Path], room: int) -> str:
    """The first letters of the files that are left for a session that needs nothing else."""
    in_use(kernels[0].parents[1], room)()
    return "".join(file.name[0] for file in kernels if file.exists())


def test_the_oldest_go_first(kernels: list[Path]) -> None:
    assert left(kernels, 400) == "abcd"
    assert left(kernels, 399) == "bcd"
    assert left(kernels, 299) == "cd"
    assert left(kernels, 199) == ""


def test_reading_is_use(kernels: list[Path]) -> None:
    oldest = kernels[0]
    os.utime(oldest, (2e9, oldest.stat().st_mtime))  # as reading does
    assert left(kernels, 399) == "acd"
    assert oldest.stat().st_atime <= oldest.stat().st_mtime, "so that it is noted again"


def test_what_another_session_uses_stays(kernels: list[Path]) -> None:
    end = in_use(kernels[0].parents[1])
    assert left(kernels, 99) == "abcd"
    end()
    assert left(kernels, 99) == ""


def test_what_another_process_takes_away_is_left_alone(kernels: list[Path]) -> None:
    """Such as the file that a compiler is still writing; a link to nothing stands for it."""
    (kernels[0].parent / "gone").symlink_to("nowhere")
    assert left(kernels, 299) == "cd"
