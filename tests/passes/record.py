"""Writes the models of `recorded`: idioms of transformers as PyTorch's exporters spell them.

    pip install torch onnxscript && python tests/passes/record.py

Every model is one small block with its weights. Names end in what exported it.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional as F

RECORDED = Path(__file__).parent / "recorded"
WIDTH, HEADS, LENGTH = 32, 4, 6


class Windows(nn.Module):
    """Swin's attention in windows, with a bias by head and a mask by window."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(1, HEADS, LENGTH, LENGTH))
        mask = torch.where(torch.rand(3, LENGTH, LENGTH) > 0.7, -100.0, 0.0)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = (q * (c // HEADS) ** -0.5) @ k.transpose(-2, -1) + self.bias
        windows = self.mask.shape[0]
        scores = scores.view(-1, windows, HEADS, n, n) + self.mask.unsqueeze(1).unsqueeze(0)
        weights = F.softmax(scores.view(-1, HEADS, n, n), dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))


class Conv1D(nn.Module):
    """GPT-2's linear layer: a product of two axes between two reshapes."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, outer) / math.sqrt(inner))
        self.bias = nn.Parameter(torch.randn(outer))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.shape[:-1], self.bias.shape[0])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(size)


class Gpt2(nn.Module):
    """GPT-2's block: packed qkv, a causal mask, Gelu by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)
        self.up, self.down = Conv1D(WIDTH, 4 * WIDTH), Conv1D(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        parts = self.qkv(self.one(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(b, t, HEADS, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        h = self.up(self.two(x))
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        return x + self.down(h)


class Rms(nn.Module):
    """Llama's norm, which computes in float32."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Llama(nn.Module):
    """Llama's block: grouped heads, rotated positions, a gated linear unit."""

    def __init__(self, *, sdpa: bool = True) -> None:
        super().__init__()
        size, self.sdpa = WIDTH // HEADS, sdpa
        self.one, self.two = Rms(), Rms()
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, 2 * size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        angles = torch.outer(torch.arange(LENGTH), 10.0 ** -torch.arange(0, size, 2).div(size))
        both = torch.cat((angles, angles), -1)
        self.register_buffer("cos", both.cos()[None, None])
        self.register_buffer("sin", both.sin()[None, None])

    def transposed(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        other = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cos.to(x.dtype) + other * self.sin.to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        h = self.one(x)
        q, k, v = (
            f(h).view(b, t, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        q, k = self.transposed(q), self.transposed(k)
        n = HEADS // 2
        k, v = (y[:, :, None].expand(b, 2, n, t, -1).reshape(b, HEADS, t, -1) for y in (k, v))
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5
            hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, torch.finfo(x.dtype).min)
            mixed = F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        h = self.two(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Whisper(nn.Module):
    """Whisper's attention: the scale on the queries, no bias for the keys, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        h = self.norm(x)
        q, k, v = (
            y.view(b, t, HEADS, -1).transpose(1, 2)
            for y in (self.q(h) * 8**-0.5, self.k(h), self.v(h))
        )
        mixed = F.softmax(q @ k.transpose(2, 3), dim=-1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(x)))


class Bert(nn.Module):
    """BERT's attention, with a mask of zeros and ones that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        hidden = (1.0 - shown[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        mixed = F.softmax(scores + hidden, dim=-1) @ v
        return self.o(mixed.transpose(1, 2).reshape(b, t, WIDTH))


class Shown(Bert):
    """The same with a mask of booleans for PyTorch's own attention."""

    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=shown[:, None, None, :] > 0)
        return self.o(mixed.transpose(1, 2).reshape(b, t, WIDTH))


class Folded(nn.Module):
    """A product of two axes whose result goes back to three before Gelu and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        h = F.gelu(self.up(x.reshape(b * t, c)).reshape(b, t, 2 * c))
        return x + self.down(h.reshape(b * t, 2 * c)).reshape(b, t, c)


class Branches(nn.Module):
    """FastViT's mixer: x + scale * (branches of x - a norm of x), between activations."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, k, padding=k // 2, groups=8) for k in (3, 1))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.scale = nn.Parameter(torch.randn(8, 1, 1))
        for norm in self.norms:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        one, two, beside, minus = self.norms
        mixed = one(self.convs[0](x)) + two(self.convs[1](x)) + beside(x)
        return F.relu(x + self.scale * (mixed - minus(x)))


class Groups(nn.Module):
    """A diffusion model's block: group norms in front of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 16)
        self.one, self.two = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(F.silu(self.norm(self.one(x))))


class Levit(nn.Module):
    """LeViT's attention: a batch norm behind each product of rows, q, k and v within heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = (
            nn.Linear(WIDTH, 4 * 16, bias=False),
            nn.Linear(4 * 8, WIDTH, bias=False),
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(n) for n in (4 * 16, WIDTH))
        for norm in self.norms:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.running_mean)

    def rows(self, x: Tensor, layer: nn.Module, norm: nn.Module) -> Tensor:
        y = layer(x)
        return norm(y.flatten(0, 1)).reshape_as(y)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        heads = self.rows(x, self.qkv, self.norms[0]).view(b, t, HEADS, -1)
        q, k, v = (part.transpose(1, 2) for part in heads.split([4, 4, 8], dim=3))
        mixed = F.softmax(q @ k.transpose(-2, -1) * 0.5, dim=-1) @ v
        mixed = mixed.transpose(1, 2).reshape(b, t, -1)
        return x + self.rows(F.hardswish(mixed), self.proj, self.norms[1])


class Neox(nn.Module):
    """GPT-NeoX, Bloom: q, k and v of a head side by side in the rows of one product."""

    def __init__(self, unbind: bool) -> None:
        super().__init__()
        self.unbind = unbind
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        rows = self.qkv(x)
        if self.unbind:
            parts = rows.view(b, t, HEADS, 3, -1).unbind(3)
            q, k, v = (part.transpose(1, 2) for part in parts)
        else:
            q, k, v = rows.view(b, t, HEADS, -1).transpose(1, 2).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(b, t, c))


class NormedHeads(nn.Module):
    """Qwen3: queries and keys are normalized head by head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.q_norm, self.k_norm = Rms(WIDTH // HEADS), Rms(WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q = self.q_norm(self.q(x).view(b, t, HEADS, -1)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(b, t, HEADS, -1)).transpose(1, 2)
        v = self.v(x).view(b, t, HEADS, -1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(b, t, c))


class Pixels(nn.Module):
    """Attention between convolutions: CoAtNet, and with weights on the right YOLO 11."""

    def __init__(self, weights_last: bool) -> None:
        super().__init__()
        self.weights_last = weights_last
        self.qkv, self.proj = nn.Conv2d(8, 48, 1), nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = self.qkv(x).view(b, 2, 24, h * w).split([8, 8, 8], dim=2)
        weights = (q.transpose(-2, -1) @ k * 8**-0.5).softmax(dim=-1)
        transposed = weights.transpose(-2, -1)
        rows = (weights @ v.transpose(-2, -1)).transpose(-2, -1)
        mixed = v @ transposed if self.weights_last else rows
        return x + self.proj(mixed.reshape(b, 16, h, w))


class Hybrid(nn.Module):
    """SegFormer, PVT: a layer of rows between convolutions, whose pixels the rows are."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(8, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 8, 3, padding=1)
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        image = self.one(x)
        rows = image.flatten(2).transpose(1, 2)
        rows = rows + self.up(self.norm(rows))
        return self.two(rows.transpose(1, 2).reshape(image.shape))


class Scaled(nn.Module):
    """MetaFormer's and Swin v2's sums: a scaled residual, and a norm behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.scale, self.norm = nn.Parameter(torch.randn(WIDTH)), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale * x + self.up(x)
        return x + self.norm(self.down(x))


class Cosine(nn.Module):
    """F.normalize, which repeats the length of each row: XCiT, Swin v2."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.normalize(x, dim=-1))


IMAGE = (torch.randn(2, 8, 6, 4),)
ROWS = (torch.randn(2, LENGTH, WIDTH),)
WITH_MASK = (*ROWS, torch.ones(2, LENGTH, dtype=torch.int64))
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "swin": (Windows, (torch.randn(6, LENGTH, WIDTH),)),
    "gpt2": (Gpt2, ROWS),
    "llama": (Llama, ROWS),
    "llama_eager": (lambda: Llama(sdpa=False), ROWS),
    "llama_half": (lambda: Llama(sdpa=False).half(), (ROWS[0].half(),)),
    "whisper": (Whisper, ROWS),
    "bert": (Bert, WITH_MASK),
    "bert_boolean": (Shown, WITH_MASK),
    "folded": (Folded, ROWS),
    "branches": (Branches, IMAGE),
    "groups": (Groups, IMAGE),
    "levit": (Levit, ROWS),
    "neox_chunk": (lambda: Neox(unbind=False), ROWS),
    "neox_unbind": (lambda: Neox(unbind=True), ROWS),
    "normed_heads": (NormedHeads, ROWS),
    "pixels_rows": (lambda: Pixels(weights_last=False), IMAGE),
    "pixels_columns": (lambda: Pixels(weights_last=True), IMAGE),
    "hybrid": (Hybrid, IMAGE),
    "scaled": (Scaled, ROWS),
    "cosine": (Cosine, ROWS),
}


def main() -> None:
    """Export every model with both exporters."""
    for name, (make, inputs) in MODELS.items():
        torch.manual_seed(0)
        model = make().eval()
        for exporter, dynamo in (("dynamo", True), ("script", False)):
            file = io.BytesIO()
            torch.onnx.export(
                model, inputs, file, dynamo=dynamo, opset_version=18 if dynamo else 17
            )
            proto = onnx.load_from_string(file.getvalue())
            for node in proto.graph.node:
                del node.metadata_props[:]
                node.doc_string = ""
            for value in proto.graph.value_info:
                del value.metadata_props[:]
            onnx.save(proto, RECORDED / f"{name}_{exporter}.onnx")


if __name__ == "__main__":
    main()
