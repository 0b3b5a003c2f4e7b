"""The page of decoders, made of figures that are written here, and of a decoder of this size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.numpy_helper import to_array

import tercet
from tercet.runtime.errors import UsageError
from tercet.runtime.session.cache_layout import DecoderLayout
from tercet.runtime.session.opened_caches import static_decoder
from tercet.tools.common.results import earlier
from tercet.tools.verdict.accuracy import distance_of
from tercet.tools.workshop import decode_bench
from tercet.tools.workshop.decode_page import (
    DecodeTiming,
    OnnxruntimeTiming,
    PromptTiming,
    PytorchTiming,
    markdown,
    read_pytorch,
    save,
)
from tercet.tools.workshop.decoder_files import DecoderSizes, Packing, write

ABOUT = {"GPU": "none", "date": "2000-01-01"}
ROW = DecodeTiming(
    "llama-3.2-1b", 16, 32, 1, 512, 2048, 0.5, 0.625, 0.25, 99, 1.5e-3, {"write": 1.0}
)
STEP = {"model": "llama1b", "dtype": "torch.float16", "way": "eager", "position": 512, "ms": 2.0,
        "tokens_s": 500.0, "floor_ms": 0.25, "share": 0.125}  # fmt: skip
COMPILED = STEP | {"way": "compile", "ms": 1.0}


def pytorch_file(folder: Path, *entries: object) -> Path:
    path = folder / "pytorch.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


def table(page: str) -> list[list[str]]:
    """The cells of the first table but its head."""
    lines = [line for line in page.split("\n\n")[3].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_rates_and_shares() -> None:
    assert (ROW.tokens_per_second, ROW.share) == (2000.0, 0.5)
    several = replace(ROW, batch=8, bits=4, device_ms=1.0)
    assert (several.tokens_per_second, several.form) == (8000.0, "int4, block 32")
    assert replace(ROW, device_ms=None).tokens_per_second is None
    assert sorted([several, ROW], key=lambda row: row.place)[0] is ROW


def test_the_table(tmp_path: Path) -> None:
    peers = read_pytorch(pytorch_file(tmp_path, STEP, COMPILED, STEP | {"position": 9}))
    rows = [ROW, replace(ROW, batch=8), replace(ROW, device_ms=None, error=None, position=9)]
    found = table(markdown(rows, peers, ABOUT))
    assert found[0] == [
        *("llama-3.2-1b", "float16", "1", "512", "0.500", "2000", "0.250", "50%"),
        *("1000 (float16 compile)", "0.625", "", "1.5e-03"),
    ]
    assert (found[1][5], found[1][8]) == ("16000", "")
    assert found[2][4:9] == ["", "", "0.250", "", "500 (float16 eager)"]
    assert found[2][-1] == ""


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    peers = [PytorchTiming("llama-3.2-1b", "float16", "eager", 512, 2.0)]
    json_file, page = save([ROW], peers, ABOUT, tmp_path)
    assert earlier(json_file, ABOUT, DecodeTiming.from_dict) == [ROW]
    assert earlier(json_file, ABOUT, lambda e: PytorchTiming(**e), "pytorch") == peers
    assert earlier(json_file, ABOUT | {"GPU": "other"}, DecodeTiming.from_dict) == []
    assert "- GPU: none" in page.read_text(encoding="utf-8")


def test_prompts_have_a_table_of_their_own(tmp_path: Path) -> None:
    """Half of the peak: 2 ms for 0.8 TFLOP where 800 TFLOP/s are possible."""
    prompt = PromptTiming("llama-3.2-1b", 4, 32, 2048, 2.0, 0.8e12, 8e14)
    json_file, page = save([ROW], [], ABOUT, tmp_path, [prompt])
    assert earlier(json_file, ABOUT, PromptTiming.from_dict, "prompts") == [prompt]
    (line,) = (x for x in page.read_text(encoding="utf-8").splitlines() if "| 2048 |" in x)
    assert line == "| llama-3.2-1b | int4, block 32 | 2048 | 2.00 | 400 | 50% |"


def test_onnxruntime_has_a_table_of_its_own(tmp_path: Path) -> None:
    """It needs twice as long as the row of the same place; of another place there is none."""
    peer = OnnxruntimeTiming("llama-3.2-1b", 16, 32, 1, 512, 2048, "CUDA graph", 1.0, 2e-3)
    json_file, page = save([ROW], [], ABOUT, tmp_path, (), [peer, replace(peer, batch=8)])
    read = earlier(json_file, ABOUT, OnnxruntimeTiming.from_dict, "onnxruntime")
    assert read == [peer, replace(peer, batch=8)]
    lines = [x for x in page.read_text(encoding="utf-8").splitlines() if "CUDA graph" in x]
    assert lines == [
        "| llama-3.2-1b | float16 | 1 | 512 | CUDA graph | 1.000 | 1000 | 2.0 | 2.0e-03 |",
        "| llama-3.2-1b | float16 | 8 | 512 | CUDA graph | 1.000 | 8000 |  | 2.0e-03 |",
    ]


def test_operations_of_a_prompt() -> None:
    """Each weight of two blocks once, but of the last block only those of keys and values."""
    sizes, tokens = DecoderSizes(64, 96, 2, 4, 2, 48), 16
    whole = 64 * (64 + 64 + 64) + 3 * 64 * 96
    scores = 2 * 2 * 64 * tokens * tokens / 2
    assert decode_bench.prompt_flops(sizes, tokens) == 2 * tokens * (whole + 64 * 64) + scores


@pytest.mark.parametrize("entry", [{"model": "llama1b"}, STEP | {"ms": None}, 3])
def test_files_that_have_no_figures(entry: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pytorch\.json: no list of PyTorch's figures"):
        read_pytorch(pytorch_file(tmp_path, entry))
    with pytest.raises(UsageError, match=r"absent\.json"):
        read_pytorch(tmp_path / "absent.json")


def test_a_decoder_of_this_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a host no time of a device is known; all else is there."""
    monkeypatch.setitem(decode_bench.SHAPES, "tiny", DecoderSizes(64, 32, 2, 4, 2, 48, 32))
    how = ["--backend", "numpy", "--position", "4", "--capacity", "32", "--check", "3"]
    how += ["--check-layers", "1"]
    how += ["--late", "9", "--prompt", "8"]  # no time of the device, so no line for the prompt
    peers = pytorch_file(tmp_path, STEP | {"model": "tiny", "position": 4})
    more = ["--pytorch", str(peers), "--output", str(tmp_path), "--batch", "1", "2"]
    decode_bench.main(["tiny", *how, *more, "--onnxruntime", "cpu"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    others = [row for row in lines if "way" in row]
    assert [(row["bits"], row["batch"]) for row in others] == [(16, 1), (16, 2), (4, 1), (4, 2)]
    assert all(0 < row["error"] < 1e-2 for row in others if row["batch"] == 1)
    said = [row for row in lines if "way" not in row]
    found = [(row["bits"], row["batch"], row["position"]) for row in said]
    assert found == [(bits, *row) for bits in (16, 4) for row in ((1, 4), (2, 4), (1, 9))]
    assert all(0 < row["error"] < 1e-2 for row in said if row["position"] == 4)
    page = (tmp_path / "decode.md").read_text(encoding="utf-8")
    assert [row[1:4] for row in table(page)][::3] == [
        ["float16", "1", "4"],
        ["int4, block 32", "1", "4"],
    ]
    assert [row[-1].endswith(" (1 layer)") for row in table(page)] == 2 * [True, True, False]
    assert "500 (float16 eager)" in page
    assert f"- onnxruntime: {onnxruntime.__version__}\n" in page


@pytest.mark.parametrize("bits", [4, 16])
def test_decoders_with_experts_are_those_of_onnxruntime(bits: int, tmp_path: Path) -> None:
    """Sinks, windows, experts: a prompt of two sequences, its logits in float16."""
    path, tokens = tmp_path / "decoder.onnx", np.arange(10).reshape(2, 5)
    sizes = DecoderSizes(96, 64, 2, 4, 2, 64, 512, head=32, experts=4, chosen=2)
    write(path, sizes, Packing(bits, 32))
    with (
        tercet.load(path) as model,
        static_decoder(model, DecoderLayout.of(model.imported), 2, 64) as decoder,
    ):
        feeds, found = decoder.feeds(tokens), decoder.step(tokens)
    session = onnxruntime.InferenceSession(path)
    past = np.zeros((2, 2, 0, 32), np.float16)
    given = {each.name: feeds.get(each.name, past) for each in session.get_inputs()}
    (wanted,) = session.run(["logits"], given)
    assert distance_of(found, np.asarray(wanted, np.float32)) < 3e-3


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packed_weights_have_no_mean(bits: int, tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    write(path, DecoderSizes(64, 128, 1, 4, 2, 32), Packing(bits, 32))
    weights = onnx.load(path).graph.initializer
    (packed,) = (to_array(w) for w in weights if w.name == "layers.0.o_proj.packed")
    numbers = packed[..., None] >> (bits * np.arange(8 // bits)) & (2**bits - 1)
    assert numbers.min() == 1
    assert abs(numbers.mean() - 2 ** (bits - 1)) < 0.05 * 2 ** (bits - 1)
