"""A campaign whose processes read ONNX's cases from where tests keep them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tercet.tools.conformance import suite
from tercet.tools.workshop.fuzz import seeds
from tercet.tools.workshop.fuzz.campaign import Campaign

from .. import kept_cases

if folder := os.environ.get("TERCET_TEST_CACHE"):  # as conftest.py does in the tests' process
    kept_cases.keep(Path(folder).resolve() / "cases")
    seeds.all_cases = suite.all_cases


@dataclass(frozen=True, slots=True)
class KeptCampaign(Campaign):
    """A process that is given one imports this module."""
