"""The table beside other runtimes, made of figures that are written here."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tercet.runtime.errors import UsageError
from tercet.tools.common.measure import Spread
from tercet.tools.common.results import earlier, write
from tercet.tools.profile.peaks import Peaks
from tercet.tools.workshop import peer_bench
from tercet.tools.workshop.bench_models import bench_inputs, bench_model
from tercet.tools.workshop.peer_page import MODELS, PeerTiming, save, summary
from tercet.tools.workshop.peers import Peer, PeerBound, read_bounds, read_peers, rivals

SLOW = {"model": "vgg16", "precision": "fp16", "batch": 32, "peer": "slow", "ms": 4.0,
        "p10": 3.9, "p90": 4.1, "rel_err": None}  # fmt: skip
FAST = SLOW | {"peer": "fast", "ms": 2.0, "rel_err": 7e-4}
ABOUT = {"GPU": "none", "date": "2000-01-01"}
PEAKS = Peaks("cuda", "cuda:0", "float16", None, 4e12, 6e14, 5e10, 5e10)


def peers_file(folder: Path, *entries: object) -> Path:
    path = folder / "peers.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


def row(milliseconds: float, peers: tuple[Peer, ...], batch: int = 32) -> PeerTiming:
    spread = Spread(milliseconds, milliseconds, milliseconds, 5)
    return PeerTiming("vgg16", "float16", batch, "cuda", spread, 7e-4, 20, 10**12, 10**9, peers)


def test_the_fastest_peer_comes_first(tmp_path: Path) -> None:
    found = read_peers(peers_file(tmp_path, SLOW, FAST, SLOW | {"precision": "tf32"}))
    assert list(found) == [("vgg16", "float16", 32)]
    assert [peer.name for peer in found["vgg16", "float16", 32]] == ["fast", "slow"]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"peers\.json: no list of peers' figures"):
        read_peers(peers_file(tmp_path, {"model": "vgg16", "precision": "fp16"}))
    with pytest.raises(UsageError, match=r"absent\.json"):
        read_peers(tmp_path / "absent.json")


def test_ratios_and_their_mean(tmp_path: Path) -> None:
    peers = read_peers(peers_file(tmp_path, SLOW, FAST))["vgg16", "float16", 32]
    rows = [row(1.0, peers), row(8.0, peers, 1), row(1.0, (), 2)]
    assert [each.ratio for each in rows] == [pytest.approx(2.0), pytest.approx(0.25), None]
    said = summary(rows, "cuda")
    assert "0.71 over 2 rows, 1 of them at least as fast; the worst 0.25" in said
    assert summary(rows, "cudnn") == "cudnn: there is no peer to compare with."


def test_what_is_written(tmp_path: Path) -> None:
    peers = read_peers(peers_file(tmp_path, SLOW, FAST))["vgg16", "float16", 32]
    written = save([row(1.0, peers)], ABOUT, [PEAKS], tmp_path / "results")
    assert [path.name for path in written] == [
        "gpu_peers.json", "gpu_peers.md", "gpu_roofline_float16.svg"
    ]  # fmt: skip
    data = json.loads(written[0].read_text(encoding="utf-8"))
    assert data["results"][0]["ratio"] == pytest.approx(2.0)
    page = written[1].read_text(encoding="utf-8")
    assert "| vgg16 | float16 | 32 | cuda | 1.000 |" in page
    assert "| vgg16 | float16 | 32 | slow | 4.000 |" in page
    picture = ET.fromstring(written[2].read_text(encoding="utf-8"))
    titles = [node.text or "" for node in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["vgg16, batch 32, cuda (vgg16): 1e+03 FLOP/B, 1.00 PFLOP/s"]


def test_rows_of_earlier_calls_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls measure half of a table each, of which a third one, at a time limit, loses none."""
    said: list[tuple[Sequence[str], Sequence[int]]] = []
    limit = PeerBound(2.0, 0.5)

    def measure(names: Sequence[str], *_: object, batches: Sequence[int], **__: object) -> Any:
        said.append((names, batches))
        yield from (replace(row(2.0, (), batch), model=names[0], bound=limit) for batch in batches)
        if len(said) == 3:
            raise KeyboardInterrupt

    device = SimpleNamespace(device=None)
    monkeypatch.setattr(peer_bench, "measure", measure)
    monkeypatch.setattr(peer_bench, "open_backends", lambda *_: (device,))
    monkeypatch.setattr(peer_bench, "device_environment", lambda *_: dict(ABOUT))
    monkeypatch.setattr(peer_bench, "_peaks", lambda *_: [PEAKS])
    output = ["--output", str(tmp_path)]
    assert peer_bench.main(["vgg16", "--batch", "32", "--precision", "float16", *output]) == 0
    assert peer_bench.main(["resnet50", *output]) == 0
    assert said == [(["vgg16"], [32]), (["resnet50"], [1, 32])]
    with pytest.raises(KeyboardInterrupt):
        peer_bench.main(["bert_base", "--batch", "1", *output])
    file, about = tmp_path / "gpu_peers.json", ABOUT | {"ways": "estimated", "date": "2001-01-01"}
    rows = earlier(file, about, PeerTiming.from_dict)
    found = [(each.model, each.batch) for each in rows]
    assert found == [("resnet50", 1), ("resnet50", 32), ("vgg16", 32), ("bert_base", 1)]
    assert (rows[0].device, rows[0].bound) == (Spread(2.0, 2.0, 2.0, 5), limit)
    assert earlier(file, about, Peaks.from_dict, "peaks") == [PEAKS]
    assert earlier(file, about | {"tercet": "another commit"}, PeerTiming.from_dict) == []
    write(tmp_path, {file.name: file.read_text()[:-9]})
    assert earlier(file, about, PeerTiming.from_dict) == []


def test_cudnn_is_held_against_onnxruntime_and_its_own_graphs(tmp_path: Path) -> None:
    onnxruntime = SLOW | {"peer": "ort-cuda-graph1", "ms": 3.0, "p90": 3.1}
    peers = read_peers(peers_file(tmp_path, SLOW, FAST, onnxruntime))["vgg16", "float16", 32]
    assert [peer.name for peer in rivals("cudnn", peers)] == ["ort-cuda-graph1"]
    assert rivals("cuda", peers) == peers
    mine = rivals("cudnn", peers)
    assert [row(ms, mine).verdict for ms in (2.9, 3.05, 3.3)] == ["ok", "ok", "10.0% slower"]
    bound = PeerBound(2.0, 0.5)
    said = [replace(row(ms, mine), bound=bound).verdict for ms in (2.6, 2.86)]
    assert said == ["ok, within the bound", "ok, 10.0% over the bound"]
    written = save([replace(row(2.6, mine), bound=bound)], ABOUT, [], tmp_path, "gpu_peers_cudnn")
    assert [path.name for path in written] == ["gpu_peers_cudnn.json", "gpu_peers_cudnn.md"]
    page = written[1].read_text(encoding="utf-8")
    assert "vgg16, float16, batch 32: it may take 2.600 ms" in page
    assert "roof" not in page


def test_bounds_by_batch(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    path.write_text('{"1": 0.525, "32": 1.32}', encoding="utf-8")
    assert read_bounds(path) == {1: 0.525, 32: 1.32}
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match=r"probe\.json: no object of milliseconds by batch"):
        read_bounds(path)


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2", "resnet50_v15"])
def test_models_have_a_batch(name: str) -> None:
    assert name in MODELS.values()
    (data,) = bench_inputs(bench_model(name), batch=3).values()
    assert data.shape == (3, 3, 224, 224)
    assert data.dtype == np.float32
