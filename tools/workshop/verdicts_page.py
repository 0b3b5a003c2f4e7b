"""What `verdicts` found on each model, and the page that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...runtime.options import Precision

#: A model, the name of the inputs that it gets, and the arithmetic of float32 tensors.
Key = tuple[str, str, Precision]


@dataclass(frozen=True, slots=True)
class Proof:
    """What the verdicts on a model were, for one set of inputs.

    Attributes:
        model: its name.
        inputs: which ones.
        seconds: of all of it.
        honest: number of honest pairs and outputs.
        honest_inconclusive: which of them were inconclusive, and why.
        alarms: which of them were called a mismatch, and why.
        planted: number of wrong outputs.
        mismatch: those that were called so.
        inconclusive: those that were.
        unchanged: those that are not errors: nothing but rounding changed.
        noise: those of them that are within the noise of float32, though not of honest runs.
        small: errors of less than 1 % of the scale that were called ok in coarse arithmetic.
        accepted: errors that were called ok.
        failed: why a runtime took no part.
        precision: compute precision of float32 tensors.
        tercet: which version and commit this is of.
    """

    model: str
    inputs: str
    seconds: float = 0.0
    honest: int = 0
    honest_inconclusive: list[str] = field(default_factory=list[str])
    alarms: list[str] = field(default_factory=list[str])
    planted: int = 0
    mismatch: int = 0
    inconclusive: list[str] = field(default_factory=list[str])
    unchanged: list[str] = field(default_factory=list[str])
    noise: list[str] = field(default_factory=list[str])
    small: list[str] = field(default_factory=list[str])
    accepted: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    precision: Precision = "float32"
    tercet: str = ""

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.model, self.inputs, self.precision


_TITLES = (
    "model",
    "inputs",
    "arithmetic",
    "honest",
    "inconclusive",
    "false alarms",
    "planted",
    "MISMATCH",
    "inconclusive",
    "no change",
    "false accepts",
    "tercet",
)


def row(proof: Proof) -> list[str]:
    """Return a row of the table."""
    numbers = (
        proof.honest,
        len(proof.honest_inconclusive),
        len(proof.alarms),
        proof.planted,
        proof.mismatch,
        len(proof.inconclusive),
        len(proof.unchanged) + len(proof.noise) + len(proof.small),
        len(proof.accepted),
    )
    return [*proof.key, *map(str, numbers), proof.tercet]


def markdown(
    proofs: Sequence[Proof], about: Mapping[str, str], missing: Mapping[str, Sequence[Key]]
) -> str:
    """Return the page.

    Args:
        proofs: what was proved.
        about: the environment.
        missing: what was not, by the reason.
    """
    rows = [row(proof) for proof in proofs]
    sums = [str(sum(int(each[i]) for each in rows)) for i in range(3, len(_TITLES) - 1)]
    lines = [
        "# What the verdict says of honest and of wrong outputs",
        "",
        "Written by `python -m tercet.tools.workshop.verdicts FOLDER --output docs/results`, whose "
        "module "
        "says what is honest, what is planted, and what is no change. Each cell counts outputs.",
        "",
        *(f"- {name}: {text}" for name, text in about.items() if name != "tercet"),
        "",
        f"| {' | '.join(_TITLES)} |",
        f"|{'---|' * len(_TITLES)}",
        *(f"| {' | '.join(each)} |" for each in rows),
        f"| all {len(rows)} | | | {' | '.join(sums)} | |",
    ]
    titles = {
        "accepted": "False accepts",
        "alarms": "False alarms",
        "honest_inconclusive": "Honest pairs that are inconclusive",
        "inconclusive": "Errors that are inconclusive",
        "noise": "No change by the noise of float32 alone",
        "small": "Errors of less than 1 % of the scale that are ok in half precision or tf32",
        "failed": "Runtimes that took no part",
    }
    for part, title in titles.items():
        found = [f"{', '.join(p.key)}: {text}" for p in proofs for text in getattr(p, part)]
        lines += _section(title, found)
    texts = [
        f"{reason}: {', '.join(f'{name} ({inputs}, {how})' for name, inputs, how in keys)}"
        for reason, keys in missing.items()
        if keys
    ]
    lines += _section("Not run", texts)
    return "\n".join(lines) + "\n"


def _section(title: str, texts: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *([f"- {text}" for text in texts] or ["None."])]
