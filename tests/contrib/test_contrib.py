"""Operators of com.microsoft, held against onnxruntime's CPU, which defines them."""

import numpy as np
import pytest

from ..packages import needs_cuda
from .draws_attention import DRAWS as ATTENTION
from .draws_decoder import DRAWS as DECODER
from .draws_experimental import DRAWS as EXPERIMENTAL
from .draws_experts import DRAWS as EXPERTS
from .draws_gated import DRAWS as GATED
from .draws_hyper import DRAWS as HYPER
from .draws_newer import DRAWS as NEWER
from .draws_packed import DRAWS as PACKED
from .draws_products import DRAWS as PRODUCTS
from .draws_quantized import DRAWS as QUANTIZED
from .draws_quantized_layers import DRAWS as LAYERS
from .draws_simple import DRAWS as SIMPLE
from .draws_standardized import DRAWS as STANDARDIZED
from .draws_unpadded import DRAWS as UNPADDED
from .draws_words import DRAWS as WORDS
from .samples import Draw, against, expected, unclaimed

DRAWS: dict[str, Draw] = {
    **ATTENTION,
    **DECODER,
    **EXPERIMENTAL,
    **EXPERTS,
    **GATED,
    **HYPER,
    **LAYERS,
    **PACKED,
    **PRODUCTS,
    **QUANTIZED,
    **SIMPLE,
    **STANDARDIZED,
    **NEWER,
    **UNPADDED,
    **WORDS,
}
SAMPLES = 32
#: Operators whose results have shapes that only the data tell: the host runs them.
COUNTED = {
    *("BifurcationDetector", "ConvTransposeWithDynamicPads", "DynamicTimeWarping"),
    *("RemovePadding", "Unique"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_samples(name: str) -> None:
    samples = [DRAWS[name](np.random.default_rng(seed)) for seed in range(SAMPLES)]
    wanted = expected(samples)
    against(samples, wanted, symbolic=True)
    against(samples[::4], wanted[::4], stop_at=0)


@needs_cuda
@pytest.mark.parametrize("name", [name for name in DRAWS if name not in COUNTED])
def test_cuda_leaves_nothing(name: str) -> None:
    assert not unclaimed([DRAWS[name](np.random.default_rng(seed)) for seed in range(6)])
