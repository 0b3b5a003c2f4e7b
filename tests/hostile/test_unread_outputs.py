"""If some results of an operator are not read, the others are the same as with all of them."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from functools import cache
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.runtime.errors import UnsupportedError
from tercet.runtime.ir.infer import specialise
from tercet.runtime.ir.types import type_of
from tercet.tools.conformance.suite import ConformanceCase, all_cases

from ..kernels.dry import planned

#: Cases of an operator, the first and the last ones.
FEW = 2


@cache
def cases() -> tuple[ConformanceCase, ...]:
    """Return some cases of every operator that gives more than one result there."""
    found: dict[str, list[ConformanceCase]] = defaultdict(list)
    for case in all_cases():
        if case.category == "node" and len(case.content.read()[0].graph.output) > 1:
            found[case.operator].append(case)
    few = (case for each in found.values() for case in (*each[:FEW], *each[-FEW:]))
    return tuple({case.name: case for case in few}.values())


def close(a: Any, b: Any, case: ConformanceCase) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y, case) for x, y in zip(a, b, strict=True))
    if not isinstance(a, np.ndarray) or a.dtype.kind not in "fiubc":
        return bool(np.all(a == b))
    return a.dtype == b.dtype and np.allclose(a, b, case.rtol, case.atol, equal_nan=True)


@pytest.mark.parametrize("part", range(4))
def test_every_subset(part: int) -> None:
    wrong: list[str] = []
    for case in cases()[part::4]:
        proto, ((fed, _), *_) = case.content.read()
        feeds = dict(zip([value.name for value in proto.graph.input], fed, strict=False))
        types = {name: type_of(data) for name, data in feeds.items()}
        with tercet.load(proto.SerializeToString()) as model:
            whole = model.run(feeds)
            subsets = (combinations(whole, count) for count in range(1, len(whole)))
            for wanted in chain.from_iterable(subsets):
                found = model.run(feeds, outputs=wanted)
                if any(not node.op.deterministic for node in model.imported.nodes):
                    same = [data.shape for data in found.values()]
                    assert same == [whole[name].shape for name in wanted]
                elif not close([*found.values()], [whole[name] for name in wanted], case):
                    wrong.append(f"{case.name}: {wanted}")
                if all(type_ is not None for type_ in types.values()):
                    plan_on_cuda(model, wanted, types)
    assert not wrong, "\n".join(wrong)


def plan_on_cuda(model: tercet.Model, wanted: tuple[str, ...], types: Any) -> None:
    """Lay the part out for a GPU: a recipe, or a reason."""
    graph = specialise(model._programs.graph_for(wanted), types)
    with suppress(UnsupportedError):
        planned(graph)
