"""Fuzzing itself: mutants come again, places are known, and what breaks the promise is seen."""

import os
from contextlib import suppress
from pathlib import Path
from random import Random
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, helper

from tercet.tools.workshop.fuzz import campaign as campaigns
from tercet.tools.workshop.fuzz import trial
from tercet.tools.workshop.fuzz.bytewise import damaged_bytes
from tercet.tools.workshop.fuzz.campaign import Campaign, run_campaign
from tercet.tools.workshop.fuzz.page import markdown, passes, summary
from tercet.tools.workshop.fuzz.seeds import TEXTS, Seed, model_seeds
from tercet.tools.workshop.fuzz.sites import Places, around_node, around_tensor
from tercet.tools.workshop.fuzz.structure import CHANGES, Mutant, damaged
from tercet.tools.workshop.fuzz.trial import BROKEN, Outcome, is_unread, runs, try_mutant

from .kept_campaign import KeptCampaign

CORPUS = Path(__file__).parent / "corpus"


def seeds() -> tuple[Seed, ...]:
    return model_seeds()


@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: seed.name)
def test_seeds_run_and_have_names_of_their_own(seed: Seed) -> None:
    assert runs(seed)
    model = ModelProto.FromString(seed.data)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    assert all(name.startswith("node") for name in names)


def test_mutants_come_again() -> None:
    for number in range(200):
        one, other = (Campaign(7).mutant(number, cases()) for _ in range(2))
        assert one == other


def cases() -> tuple[Seed, ...]:
    """Seeds of both kinds."""
    models = seeds()
    return (*models, Seed("case", models[0].data, is_case=True))


def test_every_change_is_made_and_says_where() -> None:
    made: dict[str, int] = dict.fromkeys(CHANGES, 0)
    rng = Random(0)
    for _ in range(3000):
        seed = rng.choice(seeds())
        mutant = damaged(seed.data, rng)
        if mutant.kind in made:
            made[mutant.kind] += 1
            assert mutant.places or mutant.kind == "versions"
    assert min(made.values()) > 20, made
    kinds = {damaged_bytes(seeds()[0].data, seeds()[1].data, rng).kind for _ in range(200)}
    assert len(kinds) == 7


def test_names_that_are_no_text_are_changed_or_refused() -> None:
    """libFuzzer makes them; protobuf reads them as bytes, which it does not write everywhere."""
    seed = next(seed for seed in seeds() if seed.name == "functions")
    name = ModelProto.FromString(seed.data).functions[0].input[0]
    data = seed.data.replace(name.encode(), b"\xff" * len(name))
    assert isinstance(ModelProto.FromString(data).functions[0].input[0], bytes)
    kinds = set[str]()
    for number in range(300):
        with suppress(UnicodeError):
            kinds.add(damaged(data, Random(number)).kind)
    assert "ends" in kinds


def test_a_slice_of_a_campaign_keeps_the_promise() -> None:
    """Of this process: a mutant that ended it would end the test."""
    outcomes = []
    for number in range(400):
        mutant, seed = Campaign(3).mutant(number, cases())
        outcomes.append(try_mutant(mutant, seed.feeds))
    assert not [o for o in outcomes if o.ended in BROKEN]
    places = [o.place for o in outcomes if o.place]
    assert len(places) > 100
    assert sum(place != "elsewhere" for place in places) >= 0.95 * len(places)
    assert sum(o.ended == "ran" for o in outcomes) > 40


def test_places_are_what_a_change_touches() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Neg", ["a"], ["b"], name="second"),
        helper.make_node("Exp", ["b"], ["c"], name="third"),
        helper.make_node("Abs", ["c"], ["y"], name="fourth"),
    ]
    model = ModelProto(graph=helper.make_graph(nodes, "g", [], []))
    found = around_node(model, model.graph.node[1])
    assert found == Places(frozenset({"second", "b"}), frozenset({"a", "first", "third"}))
    assert around_tensor(model, "b").near >= {"second", "third"}


@pytest.mark.parametrize(
    ("error", "ended"),
    [(KeyError("x"), "untyped"), (MemoryError(), "untyped"), (KeyboardInterrupt(), "untyped")],
)
def test_what_is_no_error_of_tercet_is_seen(
    error: BaseException, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(trial, "load", fail)
    assert try_mutant(Mutant("x", b"", None), ()).ended == ended


def test_another_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in seeds() if seed.name == "quantized")
    real = trial.load

    def sabotaged(data: bytes, **options: Any) -> object:
        model = ModelProto.FromString(data)
        if "stop_at" in options:
            (tensor,) = (t for t in model.graph.initializer if len(t.dims) == 2)
            flipped = -onnx.numpy_helper.to_array(tensor).astype(np.int8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(flipped, tensor.name))
        return real(model, **options)

    monkeypatch.setattr(trial, "load", sabotaged)
    assert try_mutant(Mutant("x", seed.data, None), ()).ended == "different"


@pytest.mark.parametrize(("read", "ended"), [("x", "ran"), ("y", "refused in the run")])
def test_nodes_that_nobody_reads_may_go(read: str, ended: str) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (int16[n] x) => (int16[m] z)
              { y, b, c, d = Split <num_outputs = 4> (x)  z = Neg (READ) }"""
    model = onnx.parser.parse_model(text.replace("READ", read))
    feeds = (np.ones(2, np.int16),)
    assert try_mutant(Mutant("x", model.SerializeToString(), None), feeds).ended == ended


@pytest.mark.parametrize(("operator", "unread"), [("Shape", True), ("Size", True), ("Not", False)])
def test_nodes_of_which_only_sizes_are_read_may_go(operator: str, unread: bool) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 20]> g (float[n] x) => (z)
               {{ [first] a = Neg (x)  [second] y = IsNaN (a)  [third] z = {operator} (y) }}"""
    with trial.load(onnx.parser.parse_model(text)) as model:
        assert [
            is_unread(model.imported, f"node '{name}' (Neg): no")
            for name in ("first", "second", "third")
        ] == [unread, unread, False]


def test_a_campaign_in_processes_and_its_page() -> None:
    campaign = KeptCampaign(1, byte_share=1.0)
    found = dict(run_campaign(campaign, range(30)))
    assert sorted(found) == list(range(30))
    result = summary(campaign, found, {"CPU": "any"}, "python -m tercet.tools.workshop.fuzz")
    assert sum(result["ends"].values()) == 30
    assert passes(result)
    assert result["megabytes"] > 10
    lost = found | {30: Outcome("", "signal", message="SIGSEGV")}
    worse = summary(campaign, lost, {}, "")
    assert not passes(worse)
    assert "30: signal" in markdown(worse)
    misplaced = {0: Outcome("reads", "refused at load", place="elsewhere")}
    assert not passes(summary(campaign, misplaced, {}, ""))


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.onnx")), ids=lambda file: file.stem[:40])
def test_the_corpus_keeps_the_promise(file: Path) -> None:
    assert try_mutant(Mutant("corpus", file.read_bytes(), None), ()).ended not in BROKEN


def test_texts_are_seeds() -> None:
    assert [seed.name for seed in seeds()] == list(TEXTS)


def test_the_time_of_a_process_is_that_of_the_processor() -> None:
    """It grows by what Python counts, in ticks of a hundredth of a second."""
    before, begin = campaigns._processor_seconds(os.getpid()), process_time()
    while process_time() < begin + 0.1:
        pass
    assert campaigns._processor_seconds(os.getpid()) - before >= 0.07
    assert campaigns._processor_seconds(None) == 0


@pytest.mark.parametrize(
    ("used", "goes_on"),
    [((2.0, 4.0, 9.0), (True, True, True)), ((2.0, 11.0), (True, False)), ((0.01,), (False,))],
    ids=["computes slowly", "has had its time", "waits"],
)
def test_only_the_processors_time_ends_a_mutant_that_computes(
    used: tuple[float, ...], goes_on: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work may have the processor, for however long."""
    clock = iter((0.0, *used))
    monkeypatch.setattr(campaigns._Worker, "_start", lambda self: None)
    monkeypatch.setattr(campaigns, "_processor_seconds", lambda pid: next(clock))
    worker = campaigns._Worker(Campaign(seconds=10.0))
    process: Any = SimpleNamespace(pid=1, send=lambda number: None)
    worker._process = worker.connection = process
    worker._send(0)
    assert tuple(worker._still_computes() for _ in used) == goes_on
