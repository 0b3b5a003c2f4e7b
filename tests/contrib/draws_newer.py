"""Samples of what onnxruntime has had since 1.32: packed requests, packed weights, and fusions.

Older ones are held against the formulas of its documentation, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

from tercet.runtime.ir.dtypes import TO_ONNX, bfloat16

from .draws_simple import Rng, floats, perhaps
from .samples import DOMAIN, Draw, Sample, expected

Inputs = dict[str, np.ndarray | None]
Array = np.ndarray
DTYPES = ("float32", "float32", "float16")
KERNELS = {(each.domain, each.op_name) for each in get_all_opkernel_def()}


def _sample(
    op: str, inputs: Inputs, how: dict[str, Any], formula: Callable[..., list[Any]], **more: Any
) -> Sample:
    """Return a sample that a formula computes where onnxruntime has no kernel."""

    def instead(*given: Any) -> list[Array]:
        wide = (x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in given)
        found = formula(*wide)
        return [np.asarray(x, dtype) for x, dtype in zip(found, dtypes, strict=True)]

    dtypes = more.pop("dtypes")
    known = (DOMAIN, op) in KERNELS
    return Sample(op, inputs, how, instead=None if known else instead, **more)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _packed(rng: Rng) -> tuple[list[int], Array]:
    """Return the lengths of requests, and where they begin and end."""
    lengths = [int(n) for n in rng.integers(1, 6, rng.integers(1, 4))]
    return lengths, np.cumsum([0, *lengths]).astype(np.int32)


def varlen_conv(rng: Rng) -> Sample:
    lengths, bounds = _packed(rng)
    channels, taps, dilation = (int(rng.integers(1, n)) for n in (5, 5, 3))
    carried, capacity = (taps - 1) * dilation, int(rng.integers(0, 4))
    dtype = str(rng.choice(DTYPES))
    activation = str(rng.choice(["none", "silu", "swish"]))
    counts = rng.integers(0, 7, len(lengths)).astype(np.int32)
    inputs: Inputs = {
        "input": floats(rng, bounds[-1], channels, dtype=dtype),
        "weight": floats(rng, channels, 1, taps, dtype=dtype),
        "bounds": bounds,
        "bias": perhaps(rng, floats(rng, channels, dtype=dtype)),
        "state": floats(rng, len(lengths), channels, carried, dtype=dtype),
        "counts": counts if capacity else None,
    }

    def formula(x: Any, w: Any, _: Any, bias: Any, state: Any, counts: Any) -> list[Any]:
        ys, states = [], []
        kept = np.zeros((len(lengths), capacity, channels))
        for i, (start, end) in enumerate(pairwise(bounds)):
            whole = np.concatenate([state[i].T, x[start:end]])
            y = sum(
                whole[j * dilation : j * dilation + end - start] * w[:, 0, j] for j in range(taps)
            )
            ys.append(y if bias is None else y + bias)
            states.append(whole[end - start :].T)
            if capacity:
                count = min(counts[i], capacity, end - start)
                kept[i, :count] = x[start : start + count]
        y = np.concatenate(ys)
        y = y if activation == "none" else y * _sigmoid(y)
        return [y, np.stack(states), *([kept] if capacity else [])]

    how = {"activation": activation, "dilation": dilation, "state_update_capacity": capacity}
    outputs = (True, True, True) if capacity else (True, True)
    more: dict[str, Any] = {"outputs": outputs, "dtypes": [dtype] * len(outputs)}
    return _sample("VarlenCausalConvWithState", inputs, how, formula, constants=("weight",), **more)


def delta_net(rng: Rng) -> Sample:
    lengths, bounds = _packed(rng)
    form = str(rng.choice(["ragged", "uniform", "batched"]))
    if form != "ragged":
        lengths = [lengths[0]] * len(lengths)
    batch, tokens = len(lengths), sum(lengths)
    heads, times, size, width = (int(rng.integers(1, n)) for n in (3, 3, 5, 5))
    inner = heads * times
    rule = str(rng.choice(["linear", "gated", "delta", "gated_delta"]))
    dtype = str(rng.choice(DTYPES))
    lead = (batch, lengths[0]) if form == "batched" else (tokens,)
    packed, by_key = form != "batched" and rng.random() < 0.3, rng.random() < 0.5
    gate = str(rng.choice(["none", "softplus", "sigmoid"]))
    rate = str(rng.choice(["none", "sigmoid"]))
    decay = floats(rng, *lead, inner, *((size,) if by_key else ()))
    is_gated, is_delta = "gated" in rule, "delta" in rule
    q, k = floats(rng, *lead, heads, size), floats(rng, *lead, heads, size)
    v = floats(rng, *lead, inner, width)
    both = [q, k, v]
    row = np.concatenate([x.reshape(tokens, -1) for x in both], 1) if packed else q
    state = floats(rng, batch, inner, width, size)
    inputs: Inputs = {
        "query": row.astype(dtype),
        "key": None if packed else k.astype(dtype),
        "value": None if packed else v.astype(dtype),
        "bounds": bounds if form == "ragged" else None,
        "decay": (decay if gate != "none" else -np.abs(decay)) if is_gated else None,
        "beta": rng.random((*lead, inner)).astype(np.float32) if is_delta else None,
        "state": state if packed or form == "uniform" else perhaps(rng, state),
        "a_log": floats(rng, inner) if is_gated and gate != "none" else None,
        "dt_bias": floats(rng, *((inner, size) if by_key else (inner,)))
        if is_gated and gate != "none"
        else None,
    }
    if form == "batched":
        inputs["state"] = state
    how: dict[str, Any] = {"update_rule": rule, "qk_l2_norm": 1}
    how |= {"gate_activation": gate} if is_gated else {}
    how |= {"beta_activation": rate} if is_delta else {}
    how |= {"scale": 0.5} if rng.random() < 0.3 else {}

    def formula(*given: Any) -> list[Any]:
        _, _, _, _, g, beta, s, a_log, dt_bias = given
        q, k, v = (x.astype(dtype).astype(float).reshape(tokens, -1, x.shape[-1]) for x in both)
        tiny = 1e-6 if how.get("gate_activation") == "sigmoid" else 1e-12
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + tiny) for x in (q, k))
        q, k = (x.repeat(times, 1) for x in (q, k))
        if g is not None:
            g = g.reshape(tokens, inner, -1)
            if a_log is not None:
                g, a = g + dt_bias.reshape(inner, -1), np.exp(a_log)[:, np.newaxis]
                g = -a * np.log1p(np.exp(g)) if gate == "softplus" else -5 * _sigmoid(a * g)
        if beta is not None:
            beta = beta.reshape(tokens, inner, 1)
            beta = _sigmoid(beta) if rate == "sigmoid" else beta
        s = np.zeros(state.shape) if s is None else s
        ends, ys = np.cumsum([0, *lengths]), np.zeros((tokens, inner, width))
        s = s.copy()
        for i, (start, end) in enumerate(pairwise(ends)):
            for t in range(start, end):
                if g is not None:
                    s[i] *= np.exp(g[t])[:, np.newaxis]
                new = v[t]
                if beta is not None:
                    new = beta[t] * (new - np.einsum("hvk,hk->hv", s[i], k[t]))
                s[i] += new[:, :, np.newaxis] * k[t][:, np.newaxis]
                ys[t] = np.einsum("hvk,hk->hv", s[i], q[t]) * how.get("scale", size**-0.5)
        return [ys.reshape(*lead, inner, width), s]

    dtypes = [dtype, "float32"]
    more: dict[str, Any] = {"dtypes": dtypes, "loose": 4, "known": 3 if packed else 2}
    return _sample("GatedDeltaNet", inputs, how, formula, outputs=(True, True), **more)


def router(rng: Rng) -> Sample:
    groups, size, rows = (int(n) for n in rng.integers(1, 5, 3))
    experts, kept = groups * size, int(rng.integers(1, groups + 1))
    count = int(rng.integers(1, kept * size + 1))
    dtype = str(rng.choice(DTYPES))
    lead = (rows,) if rng.random() < 0.5 else (2, rows)
    inputs: Inputs = {
        "logits": floats(rng, *lead, experts, dtype=dtype),
        "bias": floats(rng, experts),
    }
    if rng.random() < 0.3:
        how: dict[str, Any] = {"top_k": 1}

        def scores(x: Any, bias: Any) -> list[Any]:
            found = _sigmoid(x.reshape(-1, experts))
            return [found + bias, found]

        return _sample(
            "MoEGroupRouter", inputs, how, scores, outputs=(False, True, True),
            dtypes=["float32"] * 2,
        )  # fmt: skip
    best = int(rng.integers(1, 4))
    how = {"n_group": groups, "topk_group": kept, "group_topk": best, "top_k": count}
    how |= {"router_sentinel": -50.0} if rng.random() < 0.5 else {}

    def formula(x: Any, bias: Any) -> list[Any]:
        found = _sigmoid(x.reshape(-1, experts))
        result = np.full(found.shape, how.get("router_sentinel", -10000.0))
        for row, logs in zip(found, result, strict=True):
            ranks = (row + bias).reshape(groups, size)
            sums = np.sort(ranks, 1)[:, -best:].sum(1)
            ranks[np.argsort(-sums, kind="stable")[kept:]] = -np.inf
            chosen = np.argsort(-ranks.ravel(), kind="stable")[:count]
            logs[chosen] = np.log(np.maximum(row[chosen], 1e-20))
        return [result]

    return _sample("MoEGroupRouter", inputs, how, formula, dtypes=[dtype])


def swiglu(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    shape = [int(n) for n in rng.integers(1, 6, rng.integers(1, 4))]
    halves = 3 * floats(rng, 2, *shape, dtype=dtype)
    how = {"activation_alpha": 1.702, "activation_beta": 1.0, "limit": 2.0, "round_activation": 1}
    how = {name: value for name, value in how.items() if rng.random() < 0.5}
    in_one = bool(rng.integers(2))
    inputs: Inputs = {
        "gate": np.concatenate(halves, -1) if in_one else halves[0],
        "up": None if in_one else halves[1],
    }

    def formula(*_: Any) -> list[Any]:
        g, linear = halves.astype(np.float64)
        if limit := how.get("limit"):
            g, linear = np.minimum(g, limit), np.clip(linear, -limit, limit)
        y = g * _sigmoid(how.get("activation_alpha", 1.0) * g)
        return [y * (linear + how.get("activation_beta", 0.0))]

    return _sample("SwiGLU", inputs, how, formula, dtypes=[dtype])


def gated_sum(rng: Rng) -> Sample:
    """GatedAdd with a projection, which is for one GPU there."""
    dtype = str(rng.choice(DTYPES))
    b, t, c, k = (int(rng.integers(1, 5)) for _ in range(4))
    inputs: Inputs = {
        "x": floats(rng, b, t, c, dtype=dtype),
        "y": floats(rng, b, t, c, dtype=dtype),
        "gate": floats(rng, b, t, k, dtype=dtype),
        "gate_weight": floats(rng, k, 1, dtype=dtype),
    }

    def formula(x: Any, y: Any, gate: Any, weight: Any) -> list[Any]:
        return [(x + y * _sigmoid(gate @ weight)).astype(dtype)]

    wide = {n: x if x is None else x.astype(np.float64) for n, x in inputs.items()}
    return Sample("GatedAdd", inputs, instead=lambda *_: formula(*wide.values()))


def padded_chunk(rng: Rng) -> Sample:
    """GroupQueryAttention of chunks that are padded: that of each sequence's own rows.

    Queries and keys are normalized with different epsilons.
    """
    b, groups, s = (int(rng.integers(1, n)) for n in (4, 3, 6))
    heads, size = groups * int(rng.integers(1, 4)), 16
    news = rng.integers(1, s + 1, b)
    totals = news + rng.integers(1, 6, b)
    room = int(totals.max()) + s
    plain = {
        "query": floats(rng, b, s, heads * size),
        "key": floats(rng, b, s, groups * size),
        "value": floats(rng, b, s, groups * size),
        "past_key": floats(rng, b, groups, room, size),
        "past_value": floats(rng, b, groups, room, size),
        "seqlens_k": (totals - 1).astype(np.int32),
        "total_sequence_length": np.array(max(totals.max(), s), np.int32),
        "cos_cache": floats(rng, 32, size // 2),
        "sin_cache": floats(rng, 32, size // 2),
    }
    norms = {"q_norm_weight": floats(rng, size), "k_norm_weight": floats(rng, size)}
    inputs: Inputs = {
        **plain,
        **dict.fromkeys(("position_ids", "attention_bias", "head_sink", "k_scale", "v_scale")),
        **norms,
        "query_seqlens": news.astype(np.int32),
    }
    how: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": 1}
    how |= {"local_window_size": 3} if rng.random() < 0.5 else {}
    epsilons = {"q_norm_epsilon": 0.5, "k_norm_epsilon": 0.1}
    epsilons = {name: value for name, value in epsilons.items() if rng.random() < 0.7}
    outputs = (True, True, True)

    def normal(name: str) -> Array:
        rows = plain[name].astype(np.float64).reshape(b, s, -1, size)
        means = (rows * rows).mean(-1, keepdims=True)
        root = np.sqrt(means + epsilons.get(f"{name[0]}_norm_epsilon", 1e-6))
        y = rows / root * norms[f"{name[0]}_norm_weight"]
        return y.astype(np.float32).reshape(b, s, -1)

    def instead(*given: Any) -> list[Array]:
        whole = [np.zeros_like(plain["query"]), *(x.copy() for x in given[3:5])]
        rows = {**plain, "query": normal("query"), "key": normal("key")}
        for i, (new, total) in enumerate(zip(news, totals, strict=True)):
            own: Inputs = dict(plain)
            own |= {n: rows[n][i : i + 1, :new] for n in ("query", "key", "value")}
            own |= {n: plain[n][i : i + 1] for n in ("past_key", "past_value", "seqlens_k")}
            own["total_sequence_length"] = np.array(total, np.int32)
            found = expected([Sample("GroupQueryAttention", own, how, outputs)])[0]
            whole[0][i, :new] = found[0]
            for at in (1, 2):
                whole[at][i, :, :total] = found[at][0, :, :total]
        return whole

    asked = np.arange(s) < news[:, np.newaxis]
    kept = (np.arange(room) < totals[:, np.newaxis])[:, np.newaxis, :, np.newaxis]
    counts = {0: asked[:, :, np.newaxis], 1: kept, 2: kept}
    both = {**how, **epsilons}
    return Sample("GroupQueryAttention", inputs, both, outputs, counts=counts, instead=instead)


def _codes(x: Array, count: int) -> Array:
    """Return numbers of `count` bits in bytes, the lowest first, on a last axis."""
    return x[..., np.newaxis] >> np.arange(0, 8, count, dtype=np.uint8) & (1 << count) - 1


def _halves(x: Array) -> Array:
    return np.concatenate([x & 15, x >> 4], -1)


#: GGUF's table of IQ4_NL.
_STEPS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64
)


def _q5_k(x: Array, d: Array) -> Array:
    a, c, e = x[:, 4:8], x[:, 8:12], x[:, 12:16]
    scales = np.concatenate([a & 63, e & 15 | a >> 2 & 48], 1)[..., np.newaxis]
    least = np.concatenate([c & 63, e >> 4 | c >> 2 & 48], 1)[..., np.newaxis]
    low = np.stack([x[:, 48:].reshape(-1, 4, 32) & 15, x[:, 48:].reshape(-1, 4, 32) >> 4], 2)
    q = low.reshape(-1, 8, 32) + 16 * _codes(x[:, 16:48], 1).swapaxes(1, 2)
    return d[:, :1, np.newaxis] * scales * q - d[:, 1:, np.newaxis] * least


def _q6_k(x: Array, d: Array) -> Array:
    low = _halves(x[:, :128].reshape(-1, 2, 64))
    high = _codes(x[:, 128:192].reshape(-1, 2, 32), 2).swapaxes(2, 3).reshape(-1, 2, 128)
    q = (low + 16 * high).reshape(-1, 16, 16) - 32.0
    return d[:, :, np.newaxis] * x[:, 192:208, np.newaxis].view(np.int8) * q


def _iq4_xs(x: Array, d: Array) -> Array:
    scales = _codes(x[:, 4:8], 4).reshape(-1, 8) + 16 * _codes(x[:, 2:4], 2).reshape(-1, 8)
    q = _STEPS[_halves(x[:, 8:].reshape(-1, 8, 16))]
    return (d * (scales - 32.0))[..., np.newaxis] * q


#: Numbers and bytes of a block, where its float16 numbers are, and what it holds.
FORMATS: dict[int, tuple[int, int, list[int], Callable[[Array, Array], Array]]] = {
    0: (1, 4, [2], lambda x, _: x.view(np.float32)),
    1: (1, 2, [0], lambda x, _: x.view(np.float16)),
    2: (32, 18, [0], lambda x, d: d * (_halves(x[:, 2:]) - 8.0)),
    6: (
        *(32, 22, [0]),
        lambda x, d: d * (_halves(x[:, 6:]) + 16.0 * _codes(x[:, 2:6], 1).reshape(-1, 32) - 16),
    ),
    8: (32, 34, [0], lambda x, d: d * x[:, 2:].view(np.int8)),
    13: (256, 176, [0, 2], _q5_k),
    14: (256, 210, [208], _q6_k),
    20: (32, 18, [0], lambda x, d: d * _STEPS[_halves(x[:, 2:])]),
    23: (256, 136, [0], _iq4_xs),
    30: (1, 2, [0], lambda x, _: x.view(bfloat16)),
    42: (64, 18, [0], lambda x, d: d * (_codes(x[:, 2:], 2).reshape(-1, 64) - 1.0)),
}


def _table(rng: Rng, rows: int) -> tuple[int, int, Array, Array]:
    """Return a format, the number of columns, packed rows, and the same in float64."""
    kind = int(rng.choice([*FORMATS]))
    numbers, size, places, read = FORMATS[kind]
    count = int(rng.integers(1, 3)) * (1 if numbers > 1 else 5)
    data = rng.integers(0, 256, (rows * count, size)).astype(np.uint8)
    for at in places:  # scales that are finite, and neither large nor small
        data[:, at + 1] = data[:, at + 1] & 0x80 | 0x38 + (data[:, at + 1] & 3)
    scales = np.concatenate([data[:, at : at + 2] for at in places], 1).view(np.float16)
    found = read(data, scales.astype(np.float64)).reshape(rows, -1).astype(np.float64)
    return kind, count * numbers, data.reshape(rows, -1), found


def gather_packed(rng: Rng) -> Sample:
    rows = int(rng.integers(1, 6))
    kind, columns, data, wanted = _table(rng, rows)
    dtype = str(rng.choice(["float32", "float16"]))
    at = rng.integers(-1, rows + 1, (2, int(rng.integers(1, 4))))
    inputs: Inputs = {"data": data, "at": at.astype(str(rng.choice(["int32", "int64"])))}
    how = {"K": columns, "packed_type": kind, "output_dtype": TO_ONNX[np.dtype(dtype)]}

    def formula(_: Any, at: Any) -> list[Any]:
        return [wanted[np.where((at >= 0) & (at < rows), at, 0)]]

    return _sample("GatherPacked", inputs, how, formula, dtypes=[dtype], typed={0: dtype})


def mat_mul_packed(rng: Rng) -> Sample:
    rows = int(rng.integers(1, 6))
    kind, columns, data, weights = _table(rng, rows)
    dtype, name = str(rng.choice(DTYPES)), str(rng.choice(["none", "relu2", "silu"]))
    inputs: Inputs = {"x": floats(rng, 2, 3, columns, dtype=dtype) / 64, "weights": data}
    how = {"K": columns, "N": rows, "packed_type": kind, "activation_type": name}

    def formula(x: Any, _: Any) -> list[Any]:
        y = (x @ weights.T).astype(dtype).astype(np.float64)
        return [{"none": y, "relu2": np.maximum(y, 0) ** 2, "silu": y * _sigmoid(y)}[name]]

    more: dict[str, Any] = {"dtypes": [dtype], "constants": ("weights",), "loose": 4}
    return _sample("MatMulPacked", inputs, how, formula, **more)


def low_rank_mix(rng: Rng) -> Sample:
    outer, (c, h, r) = [int(n) for n in rng.integers(1, 4, 2)], map(int, rng.integers(1, 6, 3))
    dtype, behind = str(rng.choice(DTYPES)), bool(rng.integers(2))
    block, gate = (floats(rng, *outer, n, dtype=dtype) if behind else None for n in (h, c))
    inputs: Inputs = {
        "streams": floats(rng, *outer, c * h, dtype=dtype),
        "scale": floats(rng, c * h, dtype=dtype),
        "down": floats(rng, c * h, r, dtype=dtype),
        "up": floats(rng, r, c * h, dtype=dtype),
        "inject": floats(rng, c * h, c, dtype=dtype),
        "block": block,
        "gate": gate,
    }
    choices = {"gate_div": 2.0, "gate_mul": 3.0, "reduction_scale": 0.5, "silu_alpha": 0.7}
    how: dict[str, Any] = {n: v for n, v in choices.items() if rng.random() < 0.5}
    how |= {"num_branches": c}

    def formula(x: Any, scale: Any, down: Any, up: Any, inject: Any, y: Any, g: Any) -> list[Any]:
        s = x.reshape(*outer, c, h)
        s = s if y is None else s + g[..., np.newaxis] * y[..., np.newaxis, :]
        root = np.sqrt((s * s).mean(-1, keepdims=True) + 1e-5)
        n = s / root * scale.reshape(c, h)
        rows = n.reshape(x.shape)
        z = how.get("silu_alpha", 1.0) * (rows @ down)
        gates = _sigmoid(z * _sigmoid(z) @ up).reshape(s.shape)
        after = _sigmoid(rows @ inject / how.get("gate_div", 1.0)) * how.get("gate_mul", 1.0)
        total = (n * gates).sum(-2) * how.get("reduction_scale", 1.0)
        return [total, after, s.reshape(x.shape)]

    more: dict[str, Any] = {"outputs": (True,) * 3, "dtypes": [dtype] * 3, "loose": 4}
    return _sample("HyperConnectionLowRankMix", inputs, how, formula, **more)


def gate_up(rng: Rng) -> Sample:
    rows, width, size, inner = (int(rng.integers(1, 6)) for _ in range(4))
    inputs: Inputs = {
        "x": floats(rng, 2, rows, width, dtype="float16"),
        "weights": floats(rng, width, size + 2 * inner, dtype="float16"),
    }
    how: dict[str, Any] = {"router_size": size, "limit": float(rng.choice([0.0, 1.0]))}

    def formula(x: Any, w: Any) -> list[Any]:
        y = (x @ w).astype(np.float16).astype(np.float64)
        g, linear = y[..., size : size + inner], y[..., size + inner :]
        if how["limit"]:
            g, linear = np.minimum(g, 1), np.clip(linear, -1, 1)
        return [y[..., :size], g * _sigmoid(g) * linear]

    both: dict[str, Any] = {"outputs": (True, True), "dtypes": ["float16"] * 2}
    return _sample("RouterGateUpProj", inputs, how, formula, constants=("weights",), **both)


def adapter(rng: Rng) -> Sample:
    columns, width = int(rng.integers(1, 6)), int(rng.integers(1, 70))
    rank, bits = int(rng.integers(0, 40)), int(rng.choice([4, 8]))

    def packed(rows: int, terms: int, bits: int) -> tuple[Array, Array, Array]:
        blocks = -(-terms // 32)
        codes = rng.integers(0, 256, (rows, blocks, 4 * bits)).astype(np.uint8)
        scales = (rng.random((rows, blocks)) / (1 << bits)).astype(np.float32)
        q = _codes(codes, bits).reshape(rows, blocks, 32) - float(1 << bits - 1)
        whole = q * scales[..., np.newaxis].astype(np.float64)
        return codes, scales, whole.reshape(rows, blocks * 32)[:, :terms]

    base, down, up = packed(columns, width, bits), packed(rank, width, 8), packed(columns, rank, 8)
    inputs: Inputs = {"x": floats(rng, 2, 3, width)}
    names = ("w", "scales", "a", "a_scales", "b", "b_scales")
    inputs |= dict(zip(names, (*base[:2], *down[:2], *up[:2]), strict=True))

    def formula(x: Any, *_: Any) -> list[Any]:
        return [x @ base[2].T + x @ down[2].T @ up[2].T]

    how = {"K": width, "N": columns, "bits": bits}
    more: dict[str, Any] = {"dtypes": ["float32"], "constants": names, "loose": 4}
    return _sample("MatMulNBitsQLoRA", inputs, how, formula, **more)


DRAWS: dict[str, Draw] = {
    "GatedAdd, projected": gated_sum,
    "GatedDeltaNet": delta_net,
    "GatherPacked": gather_packed,
    "GroupQueryAttention, padded chunks": padded_chunk,
    "HyperConnectionLowRankMix": low_rank_mix,
    "MatMulNBitsQLoRA": adapter,
    "MatMulPacked": mat_mul_packed,
    "MoEGroupRouter": router,
    "RouterGateUpProj": gate_up,
    "SwiGLU": swiglu,
    "VarlenCausalConvWithState": varlen_conv,
}
