"""Settings of sampling that every implementation is tested with."""

from __future__ import annotations

from tercet.runtime.session.sampling import Sampling

DRAWS = [
    Sampling(1.0),
    Sampling(0.3),
    Sampling(2.5, top_k=1),
    Sampling(1.0, top_k=7),
    Sampling(1.0, top_k=1000),
    Sampling(1.0, top_p=0.5),
    Sampling(1.3, top_p=0.95, top_k=20),
    Sampling(1.0, min_p=0.1),
    Sampling(0.8, top_k=30, top_p=0.8, min_p=0.05, repetition_penalty=1.4),
    Sampling(1.0, repetition_penalty=0.7),
    Sampling(1.0, top_p=1e-9),
    Sampling(1.0, min_p=1.0),
]
