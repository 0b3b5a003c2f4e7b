"""The zoo's rows: from processes that take turns, to a page."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tercet
from tercet.runtime.errors import InputError, UsageError
from tercet.tools.common.results import to_json
from tercet.tools.workshop import exported_networks, zoo, zoo_worker
from tercet.tools.workshop.zoo import ZooKernel, ZooPeer, ZooRow, measure, page, summary

WORKER = """
import json, sys
name = sys.argv[1]
if name == "broken":
    raise SystemExit(3)

def turn():
    sys.stdin.readline()
    print("a library says something")
    print("ready", flush=True)
    sys.stdin.readline()

turn()
row = {"precision": "float16", "batch": 1, "ms": 1.0, "error": 2e-3, "load_s": 0.5}
print(json.dumps(row))
print(json.dumps({"precision": "float16", "batch": 32, "failed": "ValueError: no such layer"}))
if name == "alone":
    raise SystemExit
print("more", flush=True)
turn()
if name == "short":
    raise SystemExit(4)
peers = [{"name": "eager", "ms": 3.0, "error": 1e-3}]
peers += [{"name": "torch.compile", "ms": 2.0, "error": 1e-3}]
print(json.dumps({**row, "peers": peers}))
"""


def start(network: str, device: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, network]
    return subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True)


def test_networks_take_turns_and_lose_no_row() -> None:
    rows = list(measure(["a", "broken", "b"], 2, start))
    found = [(row.network, row.batch, row.ratio, row.failed) for row in rows]
    own = [(1, None, ""), (32, None, "ValueError: no such layer")]
    assert found == [
        *(("a", *row) for row in own),
        ("broken", 0, None, "its process ended with 3"),
        ("a", 1, 2.0, ""),
        *(("b", *row) for row in own),
        ("b", 1, 2.0, ""),
    ]


def test_own_rows_come_before_peers_are_ready() -> None:
    rows = measure(["a", "alone", "short"], 3, start)
    first = [next(rows) for _ in range(6)]
    assert [row.ms for row in first if not row.failed] == [1.0] * 3
    assert not any(row.peers for row in first)
    last = [(row.network, row.ratio, row.failed) for row in rows]
    assert last == [("a", 2.0, ""), ("short", None, "its process ended with 4")]


def test_devices_share_the_networks() -> None:
    on, both = dict[str, str](), Barrier(2, timeout=60)

    def start_on(network: str, device: str) -> subprocess.Popen[str]:
        if device not in on.values():
            both.wait()  # until the other device has taken some, too
        on[network] = device
        return start(network)

    names = ["a", "b", "broken", "c", "d", "e"]
    rows = Counter(row.network for row in measure(names, 1, start_on, ["0", "1"]))
    assert rows == {name: 1 if name == "broken" else 3 for name in names}
    assert set(on) == set(names)
    assert set(on.values()) == {"0", "1"}


def test_what_a_device_raises_is_not_lost() -> None:
    def start_on(network: str, device: str) -> subprocess.Popen[str]:
        if network == "b":
            raise OSError("no more processes")
        return start(network)

    with pytest.raises(OSError, match="no more processes"):
        list(measure(["a", "b"], 1, start_on, ["0", "1"]))


def test_page() -> None:
    peers = (ZooPeer("eager", 3.0, 1e-3), ZooPeer("torch.compile", 2.0, 1e-3))
    kernels = (ZooKernel("gemv", 12, 0.05, 0.04), ZooKernel("gather", 2, 0.02, 0.0))
    rows = [
        ZooRow("a", "float16", 1, 1.0, 2e-3, 0.5, 0.25, peers, kernels, 2),
        ZooRow("b", "float16", 1, 4.0, 2e-3, 0.5, 0.25, peers),
        ZooRow("c", "float16", 1, failed="ValueError: no such layer"),
    ]
    assert summary(rows) == ["float16, batch 1: geometric mean 1.00 of 2; behind: b 0.50"]
    text = page([*rows, ZooRow("d", "float16", 1, 0.5)], {"GPU": "one"})
    assert "| d | float16 | 1 | 0.500 | no peer |" in text
    assert "| a | float16 | 1 | 1.000 | torch.compile | 2.000 | 2.00 |" in text
    assert "| c | float16 | 1 | ValueError: no such layer |" in text
    lost = "gather 2x 0.020 ms (0%); gemv 12x 0.050 ms (80%)"
    assert f"| a | float16 | 1 | 14 | 2 | {lost} |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {len(zoo.TITLES) + 1, len(zoo.KERNEL_TITLES) + 1}
    assert [ZooRow.from_dict(json.loads(json.dumps(zoo.asdict(row)))) for row in rows] == rows


@pytest.mark.parametrize("rows", ["fp16:1", "float16", "float16:many", ""])
def test_rows_are_checked(rows: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected PRECISION:BATCH"):
        zoo._arguments(["--rows", rows, "--output", str(tmp_path)])


def test_peers_of_an_earlier_run(tmp_path: Path) -> None:
    peers = (ZooPeer("eager", 3.0, 1e-3), ZooPeer("torch.compile", 2.0, 1e-3))
    row = ZooRow("a", "float16", 1, 1.0, 2e-3, 0.5, 0.25, peers)
    about = {"GPU": "one", "torch": "2.11", "date": "2026-11-26", "tercet": "0.1.0"}
    file = tmp_path / "zoo.json"
    file.write_text(to_json(about, results=[zoo.asdict(row)]))
    known, origin = zoo.read_peers(file, "one")
    assert known == {("a", "float16", 1): peers}
    assert origin == "torch 2.11, 2026-11-26, beside 0.1.0"
    again = {**about, "date": "2026-11-28", "peers measured": origin}
    (tmp_path / "again.json").write_text(to_json(again, results=[zoo.asdict(row)]))
    assert zoo.read_peers(tmp_path / "again.json", "one") == (known, origin)
    with pytest.raises(UsageError, match=r"zoo\.json: measured on one; this GPU is another"):
        zoo.read_peers(file, "another")
    with pytest.raises(UsageError, match="No such file"):
        zoo.read_peers(tmp_path / "none.json", "one")
    file.write_text("{}")
    with pytest.raises(InputError, match="a file of `zoo` is damaged"):
        zoo.read_peers(file, "one")


class Loaded(zoo_worker.LoadedNetwork):
    """A row that is timed in no time."""

    __slots__ = ()

    def __init__(self, batch: int) -> None:
        self.batch, self.peers, self.failures = batch, {}, {}

    def timed(self) -> dict[str, Any]:
        return {"batch": self.batch, "ms": 1.0}

    def add_peers(self, which: zoo_worker.Peers) -> None:
        self.failures["torch.compile"] = f"no {which}"

    def timed_peers(self) -> list[dict[str, Any]]:
        return [{"name": "eager", "ms": 2.0, "error": 0.0}]


def prepared(network: str, precision: str, batch: int, file: Path) -> Loaded:
    if batch == 8:
        raise ValueError("out of memory")
    return Loaded(batch)


@pytest.mark.parametrize("which", ["none", "compile"])
@pytest.mark.parametrize("batches", [(8,), (1, 8, 32)])
def test_a_worker_has_a_turn_without_peers_and_one_with_them(
    which: str,
    batches: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(zoo_worker, "prepared", prepared)
    monkeypatch.setattr(sys, "stdin", io.StringIO("prepare\ntime\nprepare\ntime\n"))
    specs = ",".join(f"float16:{batch}" for batch in batches)
    assert zoo_worker.main(["a", specs, which]) == 0
    said = capsys.readouterr().out.splitlines()
    own, fit = 1 + len(batches), [batch for batch in batches if batch != 8]
    assert said[0] == "ready"
    assert [json.loads(line)["batch"] for line in said[1:own]] == list(batches)
    assert said[own : own + 2] == (["more", "ready"] if fit and which == "compile" else [])
    rows = [json.loads(line) for line in said[own + 2 :]]
    assert [row["batch"] for row in rows] == (fit if which == "compile" else [])
    assert all(row["ms"] == 1.0 and row["peers"][0]["ms"] == 2.0 for row in rows)
    assert all(row["failures"] == {"torch.compile": "no compile"} for row in rows)


def test_copies_are_counted() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 6] x) => (float[6, 4] y, float[4, 6] z) {
            y = Transpose<perm = [1, 0]>(x)
            z = Relu(x)
        }
    """
    with tercet.load(onnx.parser.parse_model(text)) as model:
        found = zoo_worker._kernels(model, {"x": np.ones((4, 6), np.float32)})
    assert sum(kernel["launches"] for kernel in found["kernels"]) == 2
    assert found["copies"] == 1


@pytest.mark.parametrize(
    ("name", "config", "shape"),
    [
        ("input_ids", {"vocab_size": 99}, (1, 128)),
        ("pixel_values", {"num_channels": 3, "image_size": 96}, (1, 3, 96, 96)),
        ("pixel_values", {"num_channels": 1, "image_size": [32, 64]}, (1, 1, 32, 64)),
        ("pixel_values", {"num_channels": 3}, (1, 3, 224, 224)),
        ("input_values", {}, (1, 16000)),
        ("input_values", {"num_mel_bins": 80, "max_length": 300}, (1, 300, 80)),
        ("input_features", {"num_mel_bins": 80}, (1, 80, 3000)),
    ],
)
def test_inputs_of_a_model_type(name: str, config: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch = SimpleNamespace(randn=lambda *sizes: sizes, randint=lambda low, high, sizes: sizes)
    assert exported_networks.main_input(torch, name, SimpleNamespace(**config)) == shape


def test_a_model_type_that_reads_something_else() -> None:
    with pytest.raises(UsageError, match="a tapas reads 'boxes', for which there is no example"):
        exported_networks.main_input(None, "boxes", SimpleNamespace(model_type="tapas"))
