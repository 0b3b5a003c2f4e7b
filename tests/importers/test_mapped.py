"""External data that are mapped: given back on closing, and looked at before a run."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tercet
from tercet.runtime.errors import ModelFileError

WEIGHTS = np.arange(1 << 14, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model that adds weights from a file beside it."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info("y", 1, [WEIGHTS.size])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    kept = {"save_as_external_data": True, "location": "w.data", "size_threshold": 0}
    onnx.save_model(model, tmp_path / "model.onnx", **kept)
    return tmp_path / "model.onnx"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has open")
def test_closing_gives_files_back(path: Path) -> None:
    def held() -> tuple[int, bool]:
        maps = Path("/proc/self/maps").read_text("utf-8")
        return len(os.listdir("/proc/self/fd")), "w.data" in maps

    gc.collect()
    before = held()
    gc.disable()
    try:
        for _ in range(20):
            model = tercet.load(path)
            assert held()[1]
            model.run({"x": np.ones(1, np.float32)})
            model.close()
            assert held() == before  # although `model` is still there
            assert [info.name for info in (*model.inputs, *model.outputs)] == ["x", "y"]
    finally:
        gc.enable()


def test_a_file_that_has_shrunk_is_refused(path: Path) -> None:
    feeds = {"x": np.ones(1, np.float32)}
    with tercet.load(path) as model:
        model.run(feeds)
        os.truncate(path.with_name("w.data"), 100)
        with pytest.raises(ModelFileError, match=r"'w.data' had 65536 bytes .* has 100 now"):
            model.run(feeds)


def test_files_that_are_read_may_change(path: Path) -> None:
    with tercet.load(path, map_external_data=False) as model:
        os.truncate(path.with_name("w.data"), 0)
        (y,) = model(np.ones(1, np.float32))
    np.testing.assert_array_equal(y, WEIGHTS + 1)
