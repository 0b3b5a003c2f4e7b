"""Mixtures of experts, of which only the chosen ones are read."""

from __future__ import annotations

from dataclasses import replace

from ....runtime.ir.dtypes import bfloat16, float16, float32
from ....runtime.ops.experts import LAYERS, ExpertLayer, Mixture, MoE, QMoE
from ..algorithms.registry import Answer, Setting, kernel, need_dtypes
from ..codegen.epilogue import Epilogue
from ..gemm.expert_weights import Constants, ExpertWeights
from ..gemm.experts import Experts
from ..recipe.operands import Tensor

FLOATS = {float32, float16, bfloat16}


@kernel(MoE)
def moe(
    op: MoE,
    y: Tensor,
    x: Tensor,
    router: Tensor,
    fc1: Tensor,
    fc1_bias: Tensor | None,
    fc2: Tensor,
    fc2_bias: Tensor | None = None,
    fc3: Tensor | None = None,
    fc3_bias: Tensor | None = None,
    *,
    setting: Setting,
    epilogue: Epilogue,
) -> Answer:
    """Experts with weights of floats."""
    if refused := need_dtypes(FLOATS, y, x, router):
        return refused
    given = [(fc1, fc1_bias), (fc2, fc2_bias), (fc3, fc3_bias)]
    layers = [
        None if w is None else (op.layer(w.dims), Constants(w, bias=bias)) for w, bias in given
    ]
    return _mixed(op, y, x, (router, None), layers, epilogue, setting)


@kernel(QMoE)
def q_moe(
    op: QMoE, y: Tensor, *inputs: Tensor | None, setting: Setting, epilogue: Epilogue
) -> Answer:
    """Experts with weights of a few bits."""
    x, router, *rest = (*inputs, *(None,) * 13)
    assert x is not None
    assert router is not None
    if refused := op.is_unreadable or need_dtypes(FLOATS, y, x, router, rest[12]):
        return refused
    third, layers = rest[6], list[tuple[ExpertLayer, Constants] | None]()
    for number, name in enumerate(LAYERS):
        weights, scales, bias = rest[3 * number : 3 * number + 3]
        if weights is None or scales is None:
            layers.append(None)
            continue
        terms = x.dims[-1]
        if number == 1 and layers[0] is not None:
            terms = layers[0][0].columns // op.parts(has_third=third is not None)
        layer = op.layer(name, weights.dims, scales.dims, terms)
        layers.append((layer, Constants(weights, scales, rest[9 + number], bias)))
    return _mixed(op, y, x, (router, rest[12]), layers, epilogue, setting)


def _mixed(
    op: Mixture,
    y: Tensor,
    x: Tensor,
    routing: tuple[Tensor, Tensor | None],
    layers: list[tuple[ExpertLayer, Constants] | None],
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Return the launches of a mixture, or why there are none."""
    one, two, three = layers
    assert one is not None
    assert two is not None
    if setting.asked:
        return f"algorithm '{setting.asked[0]}'"
    if not all(each is None or each[1].are_known for each in layers):
        return "computed weights"
    router, given = routing
    layer, sources = one[0], [one[1]]
    parts = op.parts(has_third=three is not None)
    if three is not None:
        if three[0] != layer:
            return "third layer packed otherwise than the first"
        sources.append(three[1])
    fusion = op.swiglu_fusion if parts > 1 else 0
    products = max(parts, len(sources))
    first = replace(layer, columns=layer.columns // parts)
    experts = Experts(
        *(op, y, x, router, given),
        ExpertWeights(first, x.dtype, tuple(sources), products, fusion),
        ExpertWeights(two[0], x.dtype, (two[1],)),
    )
    return experts.launches(epilogue, setting.target)
