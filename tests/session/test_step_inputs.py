"""Tokens of a step, made as many as its program has positions for."""

from __future__ import annotations

import numpy as np

from tercet.runtime.session.step_inputs import Tokens


def test_tokens_are_extended_where_there_are_more_positions_only() -> None:
    tokens = Tokens(np.array([[5, 6], [7, 8]]), np.array([[0, 1], [1, 1]]))
    assert tokens.extended(2) is tokens
    longer = tokens.extended(4)
    assert longer.ids.tolist() == [[5, 6, 0, 0], [7, 8, 0, 0]]
    assert longer.mask.tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert (longer.ids.dtype, longer.mask.dtype) == (np.int64, np.int64)
