"""Small steps as one kernel of one block on a GPU: bit by bit what they give by themselves."""

from __future__ import annotations

import numpy as np
import pytest

import tercet
from tercet.backends.cuda.driver.joined_step import JoinedStep

from ..kernels.test_one_block import GRAPHS, feeds, model

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_those_of_single_steps(name: str) -> None:
    """In any of many runs, and for sizes of which blocks of several warps remain, or of one."""
    for rows, columns in ((2, 3), (3, 31), (5, 64), (7, 200)):
        given = feeds(rows, columns)
        with tercet.load(model(name), "cuda", check_each=True) as single:
            wanted = single.run(given)
        with tercet.load(model(name), "cuda") as together:
            for _ in range(50):
                found = together.run(given)
                for key, array in wanted.items():
                    np.testing.assert_array_equal(found[key], array)
            program = together.prepare({key: data.shape for key, data in given.items()})
            assert any(isinstance(row.step, JoinedStep) for row in program.rows)


def test_other_sizes_compile_nothing() -> None:
    """Of the same steps, whose words are as wide: an odd number of elements has words of one."""
    with tercet.load(model("branches"), "cuda") as together:
        compiler = together.backends[0].device.compiler  # type: ignore[attr-defined]
        together.run(feeds(3, 17))
        before = compiler.statistics.compiled + compiler.statistics.cached
        for rows, columns in ((3, 19), (5, 23), (7, 21), (3, 37)):
            given = feeds(rows, columns)
            found = together.run(given)
            np.testing.assert_allclose(found["y"][:, :columns], np.tanh(np.sin(given["x"])), 1e-5)
        assert compiler.statistics.compiled + compiler.statistics.cached == before
