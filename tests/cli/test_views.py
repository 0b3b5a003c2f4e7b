"""Results are data: their views are found by the names of their types."""

from __future__ import annotations

import pytest

from tercet.tools.common.views import VIEWS, view_of


@pytest.mark.parametrize("kind", VIEWS)
def test_every_result_has_its_view(kind: str) -> None:
    module, function = VIEWS[kind]
    view = view_of(type(kind, (), {}))
    assert (view.__module__, view.__name__) == (f"tercet.tools.{module}", function)
