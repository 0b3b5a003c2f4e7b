"""Non-maximum suppression of more boxes than are compared at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .nodes import by_onnxruntime, model_of, node, run

Array = np.ndarray[Any, Any]


def _clustered(count: int, spread: float, seed: int) -> Array:
    """Return boxes around a few places, so that many overlap."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 100, (7, 2))[rng.integers(7, size=count)]
    corners = centres[:, np.newaxis] + rng.normal(0, spread, (count, 2, 2))
    return corners.reshape(1, count, 4).astype(np.float32)


@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("most", [0, 5, 64, 10000])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_as_onnxruntime(spread: float, most: int, overlap: float) -> None:
    boxes = _clustered(700, spread, 1)
    scores = np.random.default_rng(2).permutation(1400).reshape(1, 2, 700).astype(np.float32)
    limits = {"most": np.array([most]), "overlap": np.array([overlap], np.float32)}
    feeds = {"boxes": boxes, "scores": scores, **limits, "least": np.array([99], np.float32)}
    nodes = [node("NonMaxSuppression", " ".join(feeds), "kept")]
    model = model_of(nodes, feeds, "kept")
    (expected,), (found,) = by_onnxruntime(model, feeds), run(model, feeds)
    np.testing.assert_array_equal(found, expected)


def test_boxes_without_area_and_numbers_suppress_nothing() -> None:
    boxes = np.zeros((1, 150, 4), np.float32)
    boxes[0, ::3] = np.nan
    scores = np.arange(150, dtype=np.float32).reshape(1, 1, 150)
    feeds = {"boxes": boxes, "scores": scores, "most": np.array([200])}
    (found,) = run(
        model_of([node("NonMaxSuppression", " ".join(feeds), "kept")], feeds, "kept"), feeds
    )
    np.testing.assert_array_equal(found[:, 2], np.arange(150)[::-1])


@pytest.mark.parametrize(("labels", "most"), [(1, 10000), (1, 150), (6, 10000), (6, 3)])
@pytest.mark.parametrize(("spread", "overlap"), [(0.3, 0.1), (0.3, 0.9), (5.0, 0.9)])
def test_many_boxes_of_classes(labels: int, most: int, spread: float, overlap: float) -> None:
    boxes = np.concatenate([_clustered(500, spread, 3) + 200 * i for i in range(4)], 1)
    scores = np.random.default_rng(4).permutation(labels * 2000).reshape(1, labels, 2000)
    limits = {"most": np.array([most]), "overlap": np.array([overlap], np.float32)}
    feeds = {"boxes": boxes, "scores": scores.astype(np.float32), **limits}
    nodes = [node("NonMaxSuppression", " ".join(feeds), "kept")]
    model = model_of(nodes, feeds, "kept")
    (expected,), (found,) = by_onnxruntime(model, feeds), run(model, feeds)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_negative_threshold_keeps_one_box(labels: int) -> None:
    scores = np.random.default_rng(4).permutation(labels * 700).reshape(1, labels, 700)
    limits = {"most": np.array([700]), "overlap": np.array([-0.5], np.float32)}
    feeds = {"boxes": _clustered(700, 1.0, 3), "scores": scores.astype(np.float32), **limits}
    (found,) = run(
        model_of([node("NonMaxSuppression", " ".join(feeds), "kept")], feeds, "kept"), feeds
    )
    np.testing.assert_array_equal(found[:, 2], scores[0].argmax(1))


def test_equal_scores_keep_their_order() -> None:
    rng = np.random.default_rng(5)
    values = np.array([-np.inf, -1.5, -0.0, 0.0, 1e-40, 2.5, np.inf, np.nan, -np.nan], np.float32)
    for some in (values[:-2], values):
        scores = rng.choice(some, (1, 1, 3000))
        boxes = np.arange(3000)[:, np.newaxis] * 2 + np.array([0, 0, 1, 1])
        feeds = {"boxes": boxes[np.newaxis].astype(np.float32), "scores": scores}
        feeds |= {"most": np.array([3000])}
        (found,) = run(
            model_of([node("NonMaxSuppression", " ".join(feeds), "kept")], feeds, "kept"), feeds
        )
        np.testing.assert_array_equal(found[:, 2], np.argsort(-scores[0, 0], kind="stable"))
