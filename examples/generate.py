"""Greedy text generation by hand: one decoder, its caches, and a loop.

    python examples/generate.py FOLDER "Once upon a time"

FOLDER is written by `optimum-cli export onnx --task text-generation-with-past`. `tercet.Generator`
reads others, too: see docs/generation.md. Both need `pip install 'tercet[generate]'`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import tercet


def tokens(model: tercet.Model, ids: list[int], ends: set[int], count: int) -> Iterator[int]:
    """Yield the most likely next token, repeatedly.

    Args:
        model: takes input_ids, attention_mask, position_ids and past_key_values.N.key/value.
        ids: token ids of the prompt.
        ends: tokens that end the text.
        count: maximum number of new tokens.
    """
    caches: dict[str, Any] = {}
    for each in model.inputs:
        if each.name.startswith("past_key_values"):
            _, heads, _, size = each.shape or ()
            caches[each.name] = np.zeros((1, heads, 0, size), each.dtype)
    taken = {each.name for each in model.inputs}
    new, length = np.array([ids]), 0
    for _ in range(count):
        positions = np.arange(length, length + new.shape[1])
        length += new.shape[1]
        feeds = {"input_ids": new, "attention_mask": np.ones((1, length), np.int64)}
        feeds |= {"position_ids": positions[None]} if "position_ids" in taken else {}
        results = model.run({**feeds, **caches})
        caches = {name: results[name.replace("past_key_values", "present")] for name in caches}
        token = int(results["logits"][0, -1].argmax())
        yield token
        if token in ends:
            return
        new = np.array([[token]])


if __name__ == "__main__":
    name, prompt = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
    folder = Path(name)
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    with tercet.load(folder / "model.onnx") as decoder:
        found = tokens(decoder, tokenizer.encode(prompt).ids, {*np.ravel(end).tolist()}, 32)
        print(tokenizer.decode(list(found)))
