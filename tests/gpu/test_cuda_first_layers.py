"""First layers on a GPU in tiles of warpgroups, whose images arrive in words or not."""

from __future__ import annotations

from typing import Any

import pytest

from tercet.backends import open_backends

from ..kernels import test_few_channels as first
from ..kernels.samples import OPTIONS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("pooled", [False, True], ids=["plain", "pooled"])
@pytest.mark.parametrize(("case", "wide"), first.OF_WARPGROUPS)
@pytest.mark.parametrize("patches", [2, 4])
def test_warpgroups(
    patches: int, case: str, wide: bool, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: Any = open_backends("cuda", OPTIONS)
    first.compare_warpgroups(patches, case, backends[0], monkeypatch, wide=wide, pooled=pooled)
