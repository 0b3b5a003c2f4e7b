"""A row that sees no key: scores are sums of the bias of attention with -10000."""

import numpy as np

import tercet

from .samples import Sample, expected, feeds_of, model_of


def test_sixteen_bits_keep_the_bias() -> None:
    """Of -10000 plus a bias, 16 bits would hold a multiple of 8; onnxruntime adds in float32."""
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((1, 3, 4)).astype(np.float16),
        "weights": rng.standard_normal((4, 24)).astype(np.float16),
        "bias": np.zeros(24, np.float16),
        "mask": np.zeros((1, 3, 3), np.int32),
        "past": None,
        "added": (3 * rng.standard_normal((1, 2, 3, 3))).astype(np.float16),
    }
    sample = Sample("Attention", inputs, {"num_heads": 2}, wide=True)
    (theirs,) = expected([sample])[0]
    with tercet.load(model_of(sample)) as loaded:
        (mine,) = loaded.run(feeds_of(sample)).values()
    np.testing.assert_allclose(mine.astype(np.float32), theirs, 1e-2, 1e-2)
