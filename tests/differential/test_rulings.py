"""Every operator has samples or a reason; every ruling is about operators that have samples."""

from importlib import import_module
from pathlib import Path

from tercet.runtime import ops
from tercet.runtime.ir.op import OPERATORS

from .oracles import Make
from .rulings import RULINGS

#: Operators without samples, by the reason.
ELSEWHERE = {
    "their results are random": (
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
    ),
    "they run bodies": "If Loop Scan SequenceMap",
    "their inputs are no tensors of numbers": (
        "ConcatFromSequence ImageDecoder Optional OptionalGetElement OptionalHasElement "
        "RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
        "SequenceLength SplitToSequence StringConcat StringNormalizer StringSplit TfIdfVectorizer"
    ),
    "they have no inputs": "Constant",
}


def makers() -> dict[str, Make]:
    """Return what makes the samples, by operator."""
    found: dict[str, Make] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        found |= getattr(import_module(f".{path.stem}", __package__), "MAKERS", {})
    return found


def test_every_operator_has_samples_or_a_reason() -> None:
    assert ops is not None
    declared = {name for domain, name in OPERATORS if not domain}
    elsewhere = {name for names in ELSEWHERE.values() for name in names.split()}
    old = {"Scatter", "Upsample"}
    assert set(makers()) - old == declared - elsewhere
    assert not set(makers()) & elsewhere


def test_rulings_are_about_operators_with_samples() -> None:
    known = set(makers())
    for ruling in RULINGS:
        assert set(ruling.operators.split()) <= known, ruling
        assert set(ruling.wrong.split()) <= {"onnxruntime", "onnx.reference"}, ruling
