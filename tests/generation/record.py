"""What transformers generates by a table, recorded in bigrams.json, as it takes long to import.

    python -m tests.generation.record

needs torch and transformers. Recorded again when prompts, configurations or the table change.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("bigrams.json")
#: A token depends on the one before it only, so texts soon repeat themselves.
TOKENS = 24
TABLE = np.random.default_rng(5).standard_normal((TOKENS, TOKENS)).astype(np.float32)
PROMPTS = [[3, 1, 4, 1, 5], [22]]
FIELDS: list[dict[str, Any]] = [
    {"max_new_tokens": 12},
    {"max_length": 12},
    {"max_new_tokens": 12, "repetition_penalty": 1.7},
    {"max_new_tokens": 12, "repetition_penalty": 0.6},
    {"max_new_tokens": 12, "no_repeat_ngram_size": 1},
    {"max_new_tokens": 16, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 16, "no_repeat_ngram_size": 3, "repetition_penalty": 1.1},
    {"max_new_tokens": 12, "suppress_tokens": [1, 5, 9, 11, 17]},
    {"max_new_tokens": 12, "begin_suppress_tokens": list(range(12))},
    {"max_new_tokens": 12, "bad_words_ids": [[3], [11, 4], [7, 2, 9]]},
    {"max_new_tokens": 12, "eos_token_id": [4, 14]},
    {"max_new_tokens": 16, "min_length": 9, "eos_token_id": list(range(0, 24, 3))},
    {"max_new_tokens": 16, "min_new_tokens": 7, "eos_token_id": list(range(0, 24, 2))},
    {"max_length": 9, "forced_eos_token_id": 6, "eos_token_id": 6},
    {
        "max_new_tokens": 20,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 9,
        "suppress_tokens": [2, 3],
        "bad_words_ids": [[1, 7], [8]],
        "eos_token_id": [5, 6, 20],
    },
]


def generate() -> dict[str, list[int]]:
    """Return the tokens that transformers adds, by prompt and configuration."""
    modules: Any = sys.modules
    modules["torchvision"] = None  # not needed, and not every version fits every torch
    torch, transformers = map(import_module, ("torch", "transformers"))
    answer: Any = import_module("transformers.modeling_outputs").CausalLMOutput
    table = torch.tensor(TABLE)

    class Bigrams(transformers.PreTrainedModel, transformers.GenerationMixin):
        config_class = transformers.PretrainedConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def prepare_inputs_for_generation(self, input_ids: Any, **_: Any) -> dict[str, Any]:
            return {"input_ids": input_ids}

        def forward(self, input_ids: Any, **_: Any) -> Any:
            return answer(logits=table[input_ids])

    model = Bigrams(transformers.PretrainedConfig(vocab_size=TOKENS))
    found: dict[str, list[int]] = {}
    for prompt in PROMPTS:
        for fields in FIELDS:
            how = transformers.GenerationConfig(pad_token_id=0, use_cache=False, **fields)
            ids = model.generate(torch.tensor([prompt]), generation_config=how)
            found[json.dumps([prompt, fields])] = ids[0, len(prompt) :].tolist()
    return found


def main() -> None:
    lines = ",\n".join(f"  {json.dumps(key)}: {ids}" for key, ids in generate().items())
    version = sys.modules["transformers"].__version__
    FILE.write_text(f'{{"transformers": "{version}", "tokens": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
