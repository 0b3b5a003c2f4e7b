"""A study of attention: its rate on tensor cores beside cuDNN's and FlashAttention's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from statistics import geometric_mean
from typing import Any

import numpy as np
from onnx import ModelProto

from ...runtime.ir.types import Array
from .studies_lab import (
    PEAKS,
    SAMPLED,
    Lab,
    model_of,
    node_of,
    normal,
    pytorch,
    pytorch_seconds,
)
from .studies_report import Column, Curves, Study, Table

#: Since this version of ONNX's operators there is Attention.
OPSET = 23
#: Tokens of all sequences, and elements of all heads, as in FlashAttention's own benchmark.
TOKENS, WIDTH = 16384, 2048


@dataclass(frozen=True, slots=True)
class StudiedAttention:
    """Attention in float16 without a mask: softmax(q kᵀ / √size) v.

    Attributes:
        batch: how many sequences.
        heads: of the queries.
        length: of each sequence; there are as many keys as queries.
        size: elements of a head.
        causal: whether a query attends to its own and to earlier keys only.
        groups: heads of keys and values; as many as of the queries where 0.
    """

    batch: int
    heads: int
    length: int
    size: int
    causal: bool = False
    groups: int = 0

    @property
    def title(self) -> str:
        """Its sizes: ``16 x 1024, 32 x 64``: sequences and length, heads and their elements."""
        shared = f" in {self.groups} groups" if self.groups else ""
        return f"{self.batch} x {self.length}, {self.heads} x {self.size}{shared}"

    @property
    def flops(self) -> float:
        """Two for each multiplication; half of the square where it is causal."""
        square = 4 * self.batch * self.heads * self.size * self.length**2
        return square / 2 if self.causal else square

    @property
    def feeds(self) -> dict[str, Array]:
        """Queries, keys and values, each [batch, heads, length, size]."""
        kept = self.groups or self.heads
        return {
            name: normal(self.batch, heads, self.length, self.size, seed=seed).astype(np.float16)
            for seed, (name, heads) in enumerate((("q", self.heads), ("k", kept), ("v", kept)))
        }

    def model(self, feeds: Mapping[str, Array]) -> ModelProto:
        """Return the model that takes `feeds`, arrays as its property gives them."""
        node = node_of("Attention", ["q", "k", "v"], "y", is_causal=int(self.causal))
        return model_of([node], feeds, ["y"], {}, OPSET)

    def error(self, feeds: Mapping[str, Array], found: Array) -> float:
        """Return the largest difference from float64 at some rows, of the largest result."""
        rng = np.random.default_rng(3)
        places = rng.integers((self.batch, self.heads, self.length), size=(SAMPLED, 3))
        places[0, 2], places[1, 2] = 0, self.length - 1
        shared = self.heads // (self.groups or self.heads)
        worst = greatest = 0.0
        for batch, head, row in places:
            keys = row + 1 if self.causal else self.length
            q = feeds["q"][batch, head, row].astype(np.float64)
            k, v = (feeds[n][batch, head // shared, :keys].astype(np.float64) for n in "kv")
            scores = k @ q / np.sqrt(self.size)
            weights = np.exp(scores - scores.max())
            exact = weights @ v / weights.sum()
            greatest = max(greatest, float(np.abs(exact).max()))
            worst = max(worst, float(np.abs(found[batch, head, row] - exact).max()))
        return worst / greatest


#: Long rows of three sizes of head, and what common networks have.
LONG = tuple(
    StudiedAttention(TOKENS // length, WIDTH // size, length, size, causal)
    for size, lengths in (
        (64, (512, 1024, 2048, 4096, 8192, 16384)),
        (128, (512, 1024, 2048, 4096, 8192, 16384)),
        (256, (1024, 4096, 16384)),
    )
    for causal in (False, True)
    for length in lengths
)
COMMON = (
    StudiedAttention(1, 12, 128, 64),
    StudiedAttention(32, 12, 128, 64),
    StudiedAttention(1, 12, 197, 64),
    StudiedAttention(32, 12, 197, 64),
    StudiedAttention(1, 8, 1500, 64),
    StudiedAttention(32, 8, 1500, 64),
    StudiedAttention(1, 32, 2048, 128, causal=True, groups=8),
    StudiedAttention(8, 32, 2048, 64, causal=True, groups=8),
    StudiedAttention(2, 10, 4096, 64),
    StudiedAttention(1, 24, 4096, 96),
)
_COLUMNS = (
    Column("case", "sequences, heads"),
    Column("causal", "causal"),
    Column("us", "us", ".1f"),
    Column("rate", "TFLOP/s", ".0f"),
    Column("share", "of peak", ".0%"),
    Column("cudnn", "cuDNN, TFLOP/s", ".0f"),
    Column("flash", "FlashAttention-2, TFLOP/s", ".0f"),
    Column("ratio", "of the better", ".2f"),
    Column("error", "error", ".1e"),
    Column("theirs", "cuDNN's error", ".1e"),
)


def attention(lab: Lab) -> Study:
    """Compare attention of long and of common rows with cuDNN and FlashAttention-2."""
    long, common = ([_row(lab, case) for case in cases] for cases in (LONG, COMMON))
    curve = Curves(
        "attention",
        "Attention in float16",
        "keys",
        "TFLOP/s",
        {
            f"{size} elements{', causal' if causal else ''}": [
                (case.length, row["rate"])
                for case, row in zip(LONG, long, strict=True)
                if (case.size, case.causal) == (size, causal)
            ]
            for size in (64, 128)
            for causal in (False, True)
        },
    )
    return Study(
        "attention",
        f"Attention in float16, {TOKENS} tokens of {WIDTH} elements in rows of more and more "
        "keys, as FlashAttention's own benchmark has it, and the shapes of common networks. "
        "cuDNN and FlashAttention-2 are called through PyTorch, on the same arrays; *of the "
        "better* is the rate divided by the higher one of theirs.",
        (
            Table("long rows", _COLUMNS, tuple(long)),
            Table("common networks", _COLUMNS, tuple(common)),
        ),
        tuple(_findings(long, common)),
        (curve,),
    )


def _findings(long: list[dict[str, Any]], common: list[dict[str, Any]]) -> Iterator[str]:
    for title, rows in (("long rows", long), ("common networks", common)):
        ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
        if ratios:
            yield (
                f"{title}: {geometric_mean(ratios):.2f} of the better one's rate "
                f"(geometric mean), at least {min(ratios):.2f}"
            )


def _row(lab: Lab, case: StudiedAttention) -> dict[str, Any]:
    lab.say(f"attention, {case.title}")
    feeds = case.feeds
    taken = lab.take(case.model(feeds), feeds, "Attention")
    rates: dict[str, float] = {}
    theirs: float | None = None
    for name, seconds, result in vendors(case, feeds):
        rates[name] = case.flops / seconds / 1e12
        theirs = case.error(feeds, result) if name == "cudnn" else theirs
    rate = case.flops / taken.seconds / 1e12
    return {
        "case": case.title,
        "causal": "yes" if case.causal else "",
        "us": taken.us,
        "rate": rate,
        "share": 1e12 * rate / PEAKS["float16"],
        "ratio": rate / max(rates.values()) if rates else None,
        "error": None if taken.result is None else case.error(feeds, taken.result),
        "theirs": theirs,
        **rates,
    }


def vendors(
    case: StudiedAttention, feeds: Mapping[str, Array]
) -> Iterator[tuple[str, float, Array]]:
    """Yield name, seconds and result of each kernel of PyTorch that takes the case."""
    torch = pytorch()
    if torch is None:
        return
    chosen: Any = import_module("torch.nn.attention")
    q, k, v = (torch.from_numpy(feeds[name]).cuda() for name in "qkv")

    def call() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=case.causal, enable_gqa=bool(case.groups)
        )

    for name, backend in (
        ("cudnn", chosen.SDPBackend.CUDNN_ATTENTION),
        ("flash", chosen.SDPBackend.FLASH_ATTENTION),
    ):
        with chosen.sdpa_kernel(backend):
            try:
                result = call().cpu().numpy()
            except RuntimeError:  # this kernel does not take the case
                continue
            yield name, pytorch_seconds(torch, call), result
