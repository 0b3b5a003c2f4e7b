"""CuDNN itself, which plans here for a GPU that is described by a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tercet.runtime.errors import BackendUnavailable

if TYPE_CHECKING:
    from tercet.backends.cudnn.library import CudnnLibrary
    from tercet.backends.cudnn.session import Session


@pytest.fixture(scope="session")
def library() -> CudnnLibrary:
    from tercet.backends.cudnn.library import load

    try:
        return load()
    except BackendUnavailable as error:
        pytest.skip(f"{error.missing}: {error.remedy}")


@pytest.fixture(scope="session")
def session(library: CudnnLibrary) -> Session:
    from tercet.backends.cudnn.session import Session

    properties = Path(__file__).with_name("h200.json").read_text("utf-8")
    return Session.elsewhere(library, properties)
