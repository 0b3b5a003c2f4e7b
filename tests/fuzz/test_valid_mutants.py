"""Small changes of valid models: they come again, they are models, and they show planted faults."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.passes.images import flatten_pixels
from tercet.runtime.passes.products import select_early
from tercet.tools.workshop.fuzz.graphs import MOTIFS_OF_ALL_KINDS, motif_model
from tercet.tools.workshop.fuzz.mutant_seeds import (
    MutantSeeds,
    Network,
    network,
    networks_of,
    part_of,
)
from tercet.tools.workshop.fuzz.mutants import (
    DTYPES,
    FOUND,
    INVALID,
    SAME,
    Mutant,
    MutantDraws,
    Ways,
    complaints,
    run_mutants,
    try_mutant,
)
from tercet.tools.workshop.fuzz.mutation import Mutation, resized
from tercet.tools.workshop.fuzz.mutations import CHANGES, mutate
from tercet.tools.workshop.fuzz.valid_mutants import main

RECORDED = Path(__file__).parents[1] / "passes" / "recorded"


def test_axes_that_onnxruntime_keeps_of_an_empty_sum_are_no_finding() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[1, 0, 4, 24] x) => (float[a, b, c] y) <int64[1] axis = {3}>
      { y = ReduceSum <keepdims = 0> (x, axis) }""")
    empty = {"x": np.zeros((1, 0, 4, 24), np.float32)}
    assert list(complaints(model, empty, Ways(onnxruntime=True))) == []


def draws(seed: int, *only: str) -> MutantDraws:
    return MutantDraws(seed, MutantSeeds((), only), DTYPES)


def test_mutants_come_again() -> None:
    for number in range(12):
        one, other = (draws(3).draw(number) for _ in range(2))
        assert one.proto.SerializeToString() == other.proto.SerializeToString()
        assert one.ways == other.ways
        assert all(np.array_equal(one.feeds[n], other.feeds[n], equal_nan=True) for n in one.feeds)


def test_mutants_in_a_row_are_made_of_one_model() -> None:
    def sources(alike: int) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        for number in range(16):
            try:
                mutant = replace(draws(3), alike=alike).draw(number)
            except ValueError:
                continue
            found.append((mutant.source, mutant.ways.dtype, mutant.ways.precision))
        return found

    assert len(set(sources(8))) == 2
    assert len(set(sources(1))) > 8


def test_every_change_is_made() -> None:
    made: Counter[str] = Counter()
    for number in range(400):
        try:
            made.update(draws(5).draw(number).changes)
        except ValueError:
            continue
    assert not {change.__name__ for change in CHANGES} - made.keys()


@pytest.mark.parametrize("name", [name for name in MOTIFS_OF_ALL_KINDS if "blocks" in name])
def test_sizes_and_constants_follow(name: str) -> None:
    """Most of what becomes of a motif is a model, of onnxruntime's kind as well."""
    good = 0
    for number in range(8):
        dice = Random(number)
        mutation = Mutation.of(*motif_model(dice, MOTIFS_OF_ALL_KINDS[name]), dice)
        assert mutate(mutation, 2)
        proto, feeds = mutation.finished()
        try:
            with tercet.load(proto, stop_at=0) as model:
                model.run(feeds)
        except tercet.TercetError:
            continue
        onnx.checker.check_model(proto)
        good += 1
    assert good > 4


def test_sizes_that_a_constant_holds_fit_its_dtype() -> None:
    data = np.array([4, 7], np.int8)
    np.testing.assert_array_equal(resized(data, 4, 9), [9, 7])
    np.testing.assert_array_equal(resized(data, 4, 300), data)


@pytest.mark.parametrize("shape", [(0, 0, 0), (2, 2, 2)])
def test_a_constant_does_not_grow_without_end(shape: tuple[int, ...]) -> None:
    """Each of its axes takes the new size, also one without elements."""
    assert resized(np.zeros(shape, np.float32), shape[0], 40).shape == (40, 40, 40)
    with pytest.raises(ValueError, match="too large"):
        resized(np.zeros(shape, np.float32), shape[0], 5000)


@pytest.mark.parametrize("number", range(40))
def test_rewrites_change_nothing(number: int, networks: Sequence[Network]) -> None:
    found = try_mutant(MutantDraws(9, MutantSeeds(networks), DTYPES), number)
    assert found.kind != FOUND, "\n".join(found.lines)


@pytest.fixture(scope="module")
def networks() -> Sequence[Network]:
    names = "swin_script", "llama_dynamo", "branches_script", "levit_script"
    return [network(name, onnx.load(RECORDED / f"{name}.onnx")) for name in names]


def test_networks_come_from_folders(tmp_path: Path) -> None:
    onnx.save(onnx.load(RECORDED / "cosine_script.onnx"), tmp_path / "one.onnx")
    (tmp_path / "two.onnx").write_bytes(b"damaged")
    found = networks_of([tmp_path])
    one = found[0]
    assert len(found) == 2
    assert one.values.keys() >= {output.name for output in one.proto.graph.output}
    assert found[0] is one
    with pytest.raises(ValueError, match=r"two\.onnx"):
        _ = found[1]


def test_parts_of_a_network_compute_what_it_computes() -> None:
    whole = network("swin", onnx.load(RECORDED / "swin_script.onnx"))
    nodes = whole.proto.graph.node
    proto, feeds = part_of(whole, range(5, len(nodes) - 3))
    with tercet.load(proto, stop_at=0) as model:
        for name, data in model.run(feeds).items():
            np.testing.assert_array_equal(data, whole.values[name])


# ── planted faults ───────────────────────────────────────────────────────────────────────────────


def _untransposed(data: np.ndarray, *_: object, **__: object) -> np.ndarray:
    return data


def _always(*_: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("motif", "place", "name", "wrong"),
    [
        ("motifs_blocks.flattened", flatten_pixels, "_permuted", _untransposed),
        ("motifs_decoders.last_row", select_early._Selection, "is_few", _always),
    ],
    ids=["weights in the old order", "a selection of nothing"],
)
def test_faults_of_passes_are_found(
    motif: str,
    place: Any,
    name: str,
    wrong: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """They are reduced to a few nodes, and the pass is named."""
    monkeypatch.setattr(place, name, wrong)
    chosen = replace(draws(1, motif), skipping=0, sizes=0, onnxruntime=0)
    tried = (try_mutant(chosen, number, tmp_path) for number in range(60))
    found = next(each for each in tried if each.kind == FOUND)
    module = place.__module__ if hasattr(place, "__module__") else place.__name__
    assert found.lines[-1] == f"not without: {module.rpartition('.')[2]}"
    assert len(onnx.load(tmp_path / f"{found.number}.onnx").graph.node) < 12
    late = try_mutant(chosen, found.number, until=0)  # when the time is over, it is told as it is
    assert late.lines[1] == found.lines[1]
    assert late.lines[-1].endswith("no time is left")
    monkeypatch.undo()
    assert try_mutant(chosen, found.number).kind == SAME


@dataclass(frozen=True)
class Deadly(MutantDraws):
    """Draws nothing, and ends the process once."""

    def draw(self, number: int) -> Mutant:
        if number == 1:
            os.kill(os.getpid(), SIGKILL)
        raise ValueError


def test_a_signal_is_no_end_of_the_campaign() -> None:
    """ONNX's shape inference ends a process now and then."""
    found = list(run_mutants(Deadly(0, MutantSeeds(), DTYPES), range(4), jobs=1))
    assert [each.number for each in found] == [0, 1, 2, 3]
    assert {each.kind for each in found} == {INVALID}


def test_a_campaign_writes_a_page(tmp_path: Path) -> None:
    given = ["--mutants", "6", "--seed", "1", "--output", str(tmp_path)]
    assert main([*given, "--motif", "motifs.gate", "--dtype", "float64"]) == 0
    page = (tmp_path / "valid_mutants.md").read_text()
    assert "6 mutants" in page
    assert "| float64 |" in page


def test_more_outputs_than_a_split_has_end_no_process() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[4, 3] x) => (float[1, 3] a, float[1, 3] b, float[1, 3] c, float[1, 3] d)
      { a, b, c, d = Split <num_outputs = 2> (x) }""")
    with pytest.raises(ValueError, match="Split: does not fit"):
        Mutation.of(model, {"x": np.zeros((4, 3), np.float32)}, Random(0))
