"""Studies of several kernels: what fusion, streams and overlapped copies gain; whole networks."""

from __future__ import annotations

from itertools import pairwise
from statistics import geometric_mean
from time import perf_counter
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from ...api import load
from ...runtime.ir.types import Array
from ...runtime.session.model import Model
from ..common.measure import Repeat, interleave
from .bench_models import bench_inputs, bench_model
from .pipeline import PipelineTimes, balanced_model, measure_pipeline
from .studies_cells import Cells
from .studies_lab import BYTES, Lab, apart_by, is_same, model_of, node_of, normal
from .studies_report import Column, Study, Table

# ── fusing ───────────────────────────────────────────────────────────────────────────────────────

#: Six operators, each with a number or without.
_CHAIN = (
    *(("Mul", 0.5), ("Add", 0.25), ("Sigmoid", None)),
    *(("Mul", 2.0), ("Sub", 1.0), ("Relu", None)),
)


def chains(lab: Lab) -> Study:
    """Compare six elementwise operators in one kernel with kernels that store all results."""
    lab.say("chains")
    feeds = {"x": normal(1 << 24)}
    model, between = chain_model(feeds)
    fused = lab.take(model, feeds)
    apart = lab.take(model, feeds, between=between)
    same = is_same(fused.result, apart.result)
    columns = (
        Column("case", "chain"),
        Column("steps", "kernels", "d"),
        Column("us", "us", ".1f"),
        Column("mb", "MB moved", ".0f"),
        Column("bandwidth", "TB/s", ".2f"),
        Column("floor", "floor us", ".1f"),
    )
    rows = tuple(
        {
            "case": title,
            "steps": taken.steps,
            "us": taken.us,
            "mb": taken.nbytes / 1e6,
            "bandwidth": taken.nbytes / taken.seconds / 1e12,
            "floor": 1e6 * taken.nbytes / BYTES,
        }
        for title, taken in (("one kernel", fused), ("all results stored", apart))
    )
    return Study(
        "chains",
        "Six elementwise operators on 67 MB of float32, as planned, and with every intermediate "
        "tensor as an output, which a kernel stores for others.",
        (Table("Mul, Add, Sigmoid, Mul, Sub, Relu", columns, rows),),
        (
            f"fused {apart.seconds / fused.seconds:.2f} times faster (3 wanted); "
            f"equal bit by bit: {'yes' if same else 'no'}",
        ),
    )


def chain_model(feeds: dict[str, Array]) -> tuple[ModelProto, tuple[str, ...]]:
    """Return six elementwise operators, and the names of the tensors between them."""
    names = ["x", *(f"t{i}" for i in range(len(_CHAIN)))]
    constants = {
        f"c{i}": np.array(number, np.float32)
        for i, (_, number) in enumerate(_CHAIN)
        if number is not None
    }
    nodes = [
        node_of(kind, [before, *([f"c{i}"] if number is not None else [])], after)
        for i, ((kind, number), (before, after)) in enumerate(
            zip(_CHAIN, pairwise(names), strict=True)
        )
    ]
    return model_of(nodes, feeds, names[-1:], constants), tuple(names[1:-1])


#: What `pooled_model` computes on the way.
BETWEEN = ("conv", "scaled", "shifted", "active")


def pooling(lab: Lab) -> Study:
    """Compare convolution, scale, bias, Relu and pooling step by step with fewer kernels."""
    rows: list[dict[str, Any]] = []
    findings: list[str] = []
    for dtype in (np.float32, np.float16):
        unit = np.dtype(dtype).name
        lab.say(f"pooling, {unit}")
        feeds = {"x": normal(32, 32, 256, 256).astype(dtype)}
        model = pooled_model(feeds)
        apart = lab.take(model, feeds, between=BETWEEN)
        fused = lab.take(model, feeds)
        for title, taken in (("steps", apart), ("fused", fused)):
            rows.append(
                {
                    "case": f"{unit}, {title}",
                    "steps": taken.steps,
                    "ms": taken.ms,
                    "gb": taken.nbytes / 1e9,
                    "floor": 1e3 * taken.nbytes / BYTES,
                }
            )
        findings.append(
            f"{unit}: {apart.nbytes / fused.nbytes:.2f} times fewer bytes, "
            f"{apart.seconds / fused.seconds:.2f} times faster; maximum difference "
            f"{apart_by(apart.result, fused.result):.1e} of the largest result"
        )
    columns = (
        Column("case", "way"),
        Column("steps", "kernels", "d"),
        Column("ms", "ms", ".3f"),
        Column("gb", "GB moved", ".2f"),
        Column("floor", "bytes' floor ms", ".3f"),
    )
    return Study(
        "pooling",
        "32 images of 256x256 pixels, 32 channels, 128 filters of 3x3 (the result is 1.07 GB in "
        "float32), then scale and bias per channel, Relu, and 2x2 MaxPool. *Steps* has every "
        "intermediate tensor as an output. *Fused* folds scale and bias into the convolution, "
        "with Relu in the same kernel, and in float16 the pooling as well. Bytes are those that "
        "steps read and write, without the reformats of intermediate outputs.",
        (Table("all kernels", columns, tuple(rows)),),
        tuple(findings),
    )


def pooled_model(feeds: dict[str, Array]) -> ModelProto:
    """Return a convolution with 128 filters, scale, bias, Relu and pooling."""
    dtype, channels = feeds["x"].dtype, feeds["x"].shape[1]
    channel = (1, 128, 1, 1)
    constants = {
        "w": normal(128, channels, 3, 3, seed=1) * np.float32((9 * channels) ** -0.5),
        "scale": 1 + normal(*channel, seed=2) * np.float32(0.1),
        "shift": normal(*channel, seed=3) * np.float32(0.1),
    }
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node_of("Conv", ["x", "w"], "conv", pads=[1] * 4),
        node_of("Mul", ["conv", "scale"], "scaled"),
        node_of("Add", ["scaled", "shift"], "shifted"),
        node_of("Relu", ["shifted"], "active"),
        node_of("MaxPool", ["active"], "y", **window),
    ]
    stored = {name: data.astype(dtype) for name, data in constants.items()}
    return model_of(nodes, feeds, ["y"], stored)


# ── side by side ─────────────────────────────────────────────────────────────────────────────────


def branches(lab: Lab) -> Study:
    """Run random cells of small branches on one stream and on four."""
    rows: list[dict[str, Any]] = []
    for seed in range(6):
        lab.say(f"branches, cell {seed}")
        model = Cells(seed, cells=2, channels=44, extent=28).model()
        feeds = {"x": normal(1, 44, 28, 28)}
        with load(model, "cuda", streams=1) as single, load(model, "cuda") as wide:
            alone, together = lab.network(single, feeds), lab.network(wide, feeds)
            (a,), (b,) = single.run(feeds).values(), wide.run(feeds).values()
            steps = sum(row.kind == "step" for row in wide.prepare().rows)
        rows.append(
            {
                "cell": f"seed {seed}",
                "steps": steps,
                "alone": 1e6 * alone,
                "together": 1e6 * together,
                "gain": alone / together,
                "same": is_same(a, b),
            }
        )
    columns = (
        Column("cell", "network"),
        Column("steps", "kernels", "d"),
        Column("alone", "one stream us", ".1f"),
        Column("together", "four streams us", ".1f"),
        Column("gain", "faster", ".2f"),
        Column("same", "equal bits"),
    )
    mean = geometric_mean(row["gain"] for row in rows)
    return Study(
        "branches",
        "Networks of two random cells as in PNAS (separable, asymmetric and dilated convolutions, "
        "pools, sums), 44 channels of 28x28 pixels, batch 1, float32: branches one after the "
        "other, and concurrently in the CUDA graph.",
        (Table("one replay of the graph", columns, tuple(rows)),),
        (f"geometric mean {mean:.2f} times faster",),
    )


def transfers(lab: Lab) -> Study:
    """Time eight batches from ordinary memory, from pinned memory, and with copies overlapped."""
    rows: list[dict[str, Any]] = []
    findings: list[str] = []
    for title, model, batch in (
        ("balanced stages", balanced_model(), normal(8192, 1024)),
        ("ResNet-50, 32 images", bench_model("resnet50_v15"), normal(32, 3, 224, 224)),
    ):
        lab.say(f"transfers, {title}")
        with load(model, "cuda") as loaded:
            (info,) = loaded.inputs
            found = measure_pipeline(loaded, {info.name: batch})
        rows.append(_transfer_row(title, found))
        findings.append(
            f"{title}: {found.weights / 1e6:.1f} MB of weights stay on the device; sent with every "
            f"batch they would take {1e3 * found.reupload:.2f} ms from pinned memory, "
            f"{1e3 * found.reupload_pageable:.2f} ms from ordinary memory"
        )
    columns = (
        Column("case", "model"),
        Column("upload", "up", ".3f"),
        Column("compute", "compute", ".3f"),
        Column("download", "down", ".3f"),
        Column("together", "8, side by side", ".2f"),
        Column("pageable", "8, ordinary", ".2f"),
        Column("pinned", "8, pinned", ".2f"),
        Column("overlapped", "8, overlapped", ".2f"),
        Column("ratio", "to floor", ".2f"),
        Column("hidden", "hidden", ".0%"),
    )
    return Study(
        "transfers",
        "Eight batches, each copied to the GPU, computed, and copied back: one after the other "
        "with pageable and with page-locked memory, then with all three stages overlapped. The "
        "floor is all stages side by side, none of which waits for another, plus once those that "
        "wait for the longest. Milliseconds.",
        (Table("a batch's stages, and eight batches", columns, tuple(rows)),),
        tuple(findings),
    )


def _transfer_row(title: str, found: PipelineTimes) -> dict[str, Any]:
    stages = ("upload", "compute", "download")
    return {
        "case": title,
        **{name: 1e3 * seconds for name, seconds in zip(stages, found.stages, strict=True)},
        "together": 1e3 * found.together,
        **{way: 1e3 * found.totals[way] for way in ("pageable", "pinned", "overlapped")},
        "ratio": found.ratio,
        "hidden": found.hidden,
    }


# ── a whole network ──────────────────────────────────────────────────────────────────────────────

#: By title: backend and options.
_VGG_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "numpy, vectorised": ("numpy", {}),
    "cuda, one thread per result": ("cuda", {"conv": "naive", "algorithms": {"Gemm": "naive"}}),
    "cuda, float32": ("cuda", {}),
    "cuda, float16": ("cuda", {"precision": "float16"}),
}


def vgg(lab: Lab) -> Study:
    """Run VGG-16 as a loop of numpy, vectorised, by a naive kernel, and as it is meant."""
    whole = bench_model("vgg16")
    part = last_block(whole)
    feeds = bench_inputs(whole), {"block4": np.abs(normal(1, 512, 14, 14))}
    lab.say("vgg, loops")
    begin = perf_counter()
    exact = vgg_loops(part, feeds[1]["block4"])
    rows: list[dict[str, Any]] = [
        {"way": "numpy, loops", "part": 1e3 * (perf_counter() - begin)},
    ]
    for title, (backend, options) in _VGG_WAYS.items():
        lab.say(f"vgg, {title}")
        row: dict[str, Any] = {"way": title}
        with load(part, backend, **options) as loaded:
            found = loaded.run(feeds[1])["block5"]
            row["part"] = _call_ms(loaded, feeds[1])
        row["error"] = apart_by(exact, found)
        with load(whole, backend, **options) as loaded:
            row["whole"] = _call_ms(loaded, feeds[0])
            if backend == "cuda":
                row["device"] = 1e3 * lab.network(loaded, feeds[0])
        rows.append(row)
    columns = (
        Column("way", "way"),
        Column("part", "last block ms", ".3f"),
        Column("whole", "VGG-16 ms", ".3f"),
        Column("device", "device alone ms", ".3f"),
        Column("error", "to the loops", ".1e"),
    )
    loops, naive, tuned = rows[0]["part"], rows[2]["part"], rows[3]["part"]
    return Study(
        "vgg",
        "One image, from host array to host array. The loops run over rows, columns and filters, "
        "with a product of arrays inside, as in a first Python program: they ran for the last "
        "block only (three convolutions of 14x14x512 and the pooling), which the other variants "
        "ran as well, besides the whole network. Random weights.",
        (Table("milliseconds of a call", columns, tuple(rows)),),
        (
            f"last block: a naive kernel is {loops / naive:.0f} times faster than the loops, the "
            f"kernels of this project {loops / tuned:.0f} times",
        ),
    )


def _call_ms(model: Model, feeds: dict[str, Array]) -> float:
    """Return the median milliseconds of a call."""
    repeat = Repeat(seconds=0.3, minimum=3, maximum=50)
    return 1e3 * interleave({"": lambda: model.run(feeds)}, repeat)[""].median


def last_block(model: ModelProto) -> ModelProto:
    """Return VGG-16 from its fourth pooling to its fifth, ``block4`` to ``block5``."""
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    fourth, fifth = [i for i, node in enumerate(nodes) if node.op_type == "MaxPool"][3:]
    nodes = nodes[fourth + 1 : fifth + 1]
    nodes[0].input[0], nodes[-1].output[0] = "block4", "block5"
    used = {name for node in nodes for name in node.input}
    stored = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name in used
    }
    feeds = {"block4": np.zeros((1, 512, 14, 14), np.float32)}
    return model_of(nodes, feeds, ["block5"], stored)


def vgg_loops(model: ModelProto, x: Array) -> Array:
    """Return what a chain of Conv, Relu and MaxPool gives, by loops of Python."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Conv":
            x = _convolved(x, *(stored[name] for name in node.input[1:]))
        elif node.op_type == "Relu":
            x = np.maximum(x, 0)
        else:
            n, c, h, w = x.shape
            x = x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
    return x


def _convolved(x: Array, weights: Array, bias: Array) -> Array:
    """Return a 3x3 convolution that keeps the extents, of one image."""
    _, _, height, width = x.shape
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    y = np.empty((1, len(weights), height, width), np.float32)
    for row in range(height):
        for column in range(width):
            window = padded[:, row : row + 3, column : column + 3]
            for m in range(len(weights)):
                y[0, m, row, column] = np.sum(window * weights[m]) + bias[m]
    return y


# ── kernels ──────────────────────────────────────────────────────────────────────────────────────


def kernels(lab: Lab) -> Study:
    """List the kernels of ResNet-50: registers, shared memory, and how full they make a GPU."""
    tables: list[Table] = []
    model = bench_model("resnet50_v15")
    feeds = bench_inputs(model)
    for precision in ("float32", "float16"):
        lab.say(f"kernels, {precision}")
        with load(model, "cuda", precision=precision) as loaded:
            loaded.run(feeds)
            rows = lab.kernels(loaded.prepare())
        tables.append(Table(f"batch 1, {precision}", _KERNEL_COLUMNS, tuple(rows)))
    return Study(
        "kernels",
        "What the compiler makes of the kernels that ResNet-50 runs: registers per thread, bytes "
        "of shared memory per block, spilled bytes, and the maximum fraction of a "
        "multiprocessor's threads that are resident.",
        tuple(tables),
    )


_KERNEL_COLUMNS = (
    Column("kernel", "kernel"),
    Column("times", "launches", "d"),
    Column("threads", "threads", "d"),
    Column("registers", "registers", "d"),
    Column("shared", "shared B", "d"),
    Column("spilled", "spilled B", "d"),
    Column("blocks", "blocks an SM", "d"),
    Column("occupancy", "occupancy", ".0%"),
)
