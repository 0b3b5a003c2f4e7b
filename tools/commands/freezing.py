"""The option for frozen inputs, of every command that reads a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from .added_option import added_option
from .options import Freeze


def _around(texts: Sequence[str]) -> AbstractContextManager[Any]:
    from ...runtime.session.freeze import frozen_in
    from ..common.arrays import read_named

    return frozen_in(read_named("--freeze-input", texts))


#: Adds the option to a command that reads a model, unless it has its own.
with_frozen_inputs = added_option("freeze", Freeze, _around, frozenset({"model", "models"}))
