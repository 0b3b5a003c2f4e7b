"""A folder of compiled kernels is emptied when it is large, but never under another session."""

from pathlib import Path

import pytest

from .conftest import in_use


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    file = tmp_path / "libraries" / "kernel.so"
    file.parent.mkdir()
    file.write_bytes(bytes(100))
    return file


def test_a_large_one_is_emptied(kernel: Path) -> None:
    in_use(kernel.parents[1], room=100)()
    assert kernel.exists()
    in_use(kernel.parents[1], room=99)()
    assert not kernel.exists()


def test_what_another_session_uses_stays(kernel: Path) -> None:
    end = in_use(kernel.parents[1])
    in_use(kernel.parents[1], room=99)()
    assert kernel.exists()
    end()
    in_use(kernel.parents[1], room=99)()
    assert not kernel.exists()
