"""A study of MobileNet's body, whose layers want different kernels."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from onnx import ModelProto

from ...api import load
from ...runtime.ops.conv import Conv
from ...runtime.plan.rows import Row
from .generated_models import Sheet, image
from .studies_lab import BYTES, Lab, normal
from .studies_report import Column, Study, Table

#: Channels and stride of each pair of a depthwise and a pointwise convolution.
BODY = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


def mobilenet_v1() -> ModelProto:
    """Return MobileNet (2017) of width 1 for 224x224 pixels, with random weights."""
    sheet = Sheet("mobilenet_v1", 0)
    x, before = sheet.node("Relu", sheet.conv("input", (3, 32), 3, 2)), 32
    for channels, stride in BODY:
        x = sheet.node("Relu", sheet.conv(x, (before, before), 3, stride, before))
        x = sheet.node("Relu", sheet.conv(x, (before, channels), 1))
        before = channels
    x = sheet.node("Flatten", sheet.node("GlobalAveragePool", x), axis=1)
    return sheet.model(image(), (sheet.gemm(x, before, 1000), ("batch", 1000)), 17)


def mobilenet(lab: Lab) -> Study:
    """Time every layer of MobileNet: which kernel it takes, and how near it is to the memory."""
    tables: list[Table] = []
    findings: list[str] = []
    for precision in ("float32", "float16"):
        lab.say(f"mobilenet, {precision}")
        with load(mobilenet_v1(), "cuda", precision=precision) as model:
            images = normal(32, 3, 224, 224)
            model.run({"input": images})
            program = model.prepare({"input": images.shape})
            rows = [_layer(lab, row) for row in program.rows if _is_convolution(row)]
        tables.append(Table(f"32 images, {precision}", _COLUMNS, tuple(_distinct(rows))))
        shares = [row["share"] for row in rows if row["depthwise"]]
        kinds = {row["kernel"].split()[0] for row in rows}
        findings.append(
            f"{precision}: depthwise layers at {min(shares):.0%} to {max(shares):.0%} of 4.8 TB/s, "
            f"{sum(share >= 0.6 for share in shares)} of {len(shares)} at 60 % or more; "
            f"{len(kinds)} different kernels"
        )
    return Study(
        "mobilenet",
        "The layers of MobileNet v1, batch 32: a depthwise convolution is limited by memory, a "
        "pointwise one is a matrix product. Each layer runs alone and repeatedly, so small layers "
        "find their data in the cache; *of 4.8 TB/s* counts input and result once.",
        tuple(tables),
        tuple(findings),
    )


def _is_convolution(row: Row) -> bool:
    return row.kind == "step" and any(isinstance(node.op, Conv) for node in row.nodes)


def _layer(lab: Lab, row: Row) -> dict[str, Any]:
    node, op = next((node, node.op) for node in row.nodes if isinstance(node.op, Conv))
    x, w = (value.tensor.dims for value in node.operands[:2])
    seconds = lab.seconds([row])
    macs = prod(node.output.tensor.dims) * prod(w[1:])
    kind = "depthwise" if op.group > 1 else f"→ {w[0]}, {w[2]}x{w[3]}"
    stride = f"/{op.strides[0]}" if op.strides and op.strides[0] > 1 else ""
    return {
        "layer": f"{x[2]}x{x[3]}x{x[1]} {kind}{stride}",
        "depthwise": op.group > 1,
        "kernel": row.kernel,
        "us": 1e6 * seconds,
        "rate": 2 * macs / seconds / 1e12,
        "share": (row.inputs[0].nbytes + row.outputs[0].nbytes) / seconds / BYTES,
    }


def _distinct(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each layer once, with how often it is there."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["layer"], {**row, "times": 0})["times"] += 1
    return list(found.values())


_COLUMNS = (
    Column("layer", "layer"),
    Column("times", "times", "d"),
    Column("us", "us", ".1f"),
    Column("rate", "TFLOP/s", ".2f"),
    Column("share", "of 4.8 TB/s", ".0%"),
    Column("kernel", "kernel"),
)
