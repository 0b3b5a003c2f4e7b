"""Settings of sampling that every implementation is tested with."""

from __future__ import annotations

from tercet.runtime.session.sampling import SamplingSettings

DRAWS = [
    SamplingSettings(1.0),
    SamplingSettings(0.3),
    SamplingSettings(2.5, top_k=1),
    SamplingSettings(1.0, top_k=7),
    SamplingSettings(1.0, top_k=1000),
    SamplingSettings(1.0, top_p=0.5),
    SamplingSettings(1.3, top_p=0.95, top_k=20),
    SamplingSettings(1.0, min_p=0.1),
    SamplingSettings(0.8, top_k=30, top_p=0.8, min_p=0.05, repetition_penalty=1.4),
    SamplingSettings(1.0, repetition_penalty=0.7),
    SamplingSettings(1.0, top_p=1e-9),
    SamplingSettings(1.0, min_p=1.0),
]
