"""What is said where cuDNN or its frontend is missing."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tercet.backends.cudnn.library import load
from tercet.runtime.errors import BackendUnavailable


def absent() -> int:
    raise RuntimeError("Unable to find symbol cudnnGetVersion")


@pytest.mark.parametrize(
    ("frontend", "missing"),
    [
        (None, "the package nvidia-cudnn-frontend"),
        (SimpleNamespace(__version__="1.22.1"), "nvidia-cudnn-frontend 1.28 (found 1.22.1)"),
        (SimpleNamespace(__version__="1.32.0"), "nvidia-cudnn-frontend 1.28 (found 1.32.0)"),
        (
            SimpleNamespace(__version__="1.28.0", Handle=int, backend_version=absent),
            "libcudnn.so.9, cuDNN's library,",
        ),
    ],
)
def test_what_is_missing_is_named(
    frontend: object, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    with pytest.raises(BackendUnavailable) as caught:
        load.__wrapped__()
    assert caught.value.missing.startswith(missing)
    assert caught.value.missing.removeprefix(missing).startswith(" is not installed")
    assert "pip install 'tercet[cuda13]'" in caught.value.remedy
