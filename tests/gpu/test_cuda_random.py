"""Seeded random numbers on the GPU are those of the numpy backend."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends

from ..kernels.samples import OPTIONS, Sample
from ..kernels.test_random import same, samples

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("each", samples(), ids=str)
def test_numbers_are_those_of_numpy(each: Sample) -> None:
    (backend, *_) = open_backends("cuda", OPTIONS)
    same(each, backend)
