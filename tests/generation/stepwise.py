"""onnxruntime's loop over a decoder's file, written for the names that the recorded files have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tercet.runtime.ir.types import Array

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Stepwise:
    """One sequence; every tensor as the file has it, without onnxruntime's fusions."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = {each.name: each for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]
        self.caches = {name: self._empty(name) for name in self.inputs if "past" in name}
        self.ids = np.zeros((1, 0), np.int64)

    @property
    def reads_one(self) -> bool:
        """Whether it reads one token at a time."""
        return self.inputs[self._name].shape[1] == 1

    @property
    def _name(self) -> str:
        return "input_ids" if "input_ids" in self.inputs else "ids"

    def _empty(self, name: str) -> Array:
        """A cache of nothing; sliding windows and heads have sizes that genai_config.json tells."""
        info = self.inputs[name]
        _, heads, length, size = info.shape
        config = self._folder / "genai_config.json"
        told = json.loads(config.read_text())["model"]["decoder"] if config.exists() else {}
        window = told.get("sliding_window", {"window_size": 4})["window_size"]
        width = size if isinstance(size, int) else told.get("head_size", 16)
        room = window if "sliding" in str(length) else 0
        return np.zeros((1, heads, room, width), _DTYPES[info.type])

    def __call__(self, ids: Array) -> Array:
        """Return the logits of new tokens [1, n]."""
        before = self.ids.shape[1]
        self.ids = np.concatenate([self.ids, ids], 1)
        values = {
            self._name: ids if self.caches else self.ids,
            "attention_mask": np.ones_like(self.ids),
            "position_ids": np.arange(before, self.ids.shape[1])[None],
            "use_cache_branch": np.array([before > 0]),
        }
        feeds = {name: values[name] for name in values if name in self.inputs}
        found = self.session.run(None, {**feeds, **self.caches})
        named: dict[str, Any] = dict(zip(self.outputs, found, strict=True))
        for name in self.caches:
            here = name.replace("past_key_values", "present").replace("past_", "present_")
            self.caches[name] = named[here]
        return named["logits" if "logits" in named else "y"]

    def greedy(self, prompt: list[int], steps: int) -> tuple[list[int], list[Array]]:
        """Return the tokens, one after the other, and the logits of each."""
        whole = np.array([prompt], np.int64)
        parts = np.split(whole, len(prompt), 1) if self.reads_one else [whole]
        logits = [self(part) for part in parts][-1]
        tokens: list[int] = []
        scores: list[Array] = []
        for _ in range(steps):
            scores.append(logits[0, -1])
            tokens.append(int(logits[0, -1].argmax()))
            logits = self(np.array([[tokens[-1]]], np.int64))
        return tokens, scores
