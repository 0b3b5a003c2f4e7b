"""The double itself: it has what the bindings have, and refuses what they lack."""

from __future__ import annotations

import pytest

from .double import Double


def test_names_that_the_bindings_lack() -> None:
    trt = Double()
    with pytest.raises(AttributeError, match="no 'ICudaEngine2'"):
        _ = trt.ICudaEngine2
    with pytest.raises(AttributeError):
        _ = trt.BuilderFlag.FP16
    with pytest.raises(AttributeError):
        trt.Builder(trt.ILogger()).build_cuda_engine()


def test_arguments_that_the_bindings_lack() -> None:
    trt = Double()
    builder = trt.Builder(trt.ILogger())
    with pytest.raises(TypeError, match=r"no such Builder\.create_network"):
        builder.create_network(explicit_batch=True)
    with pytest.raises(TypeError, match=r"is no typing\.SupportsInt"):
        builder.create_network("strongly typed")
    config = builder.create_builder_config()
    with pytest.raises(TypeError, match="is no BuilderFlag"):
        config.clear_flag(trt.MemoryPoolType.WORKSPACE)
    with pytest.raises(AttributeError):
        config.max_workspace_size = 1


def test_calls_are_recorded() -> None:
    trt = Double()
    builder = trt.Builder(trt.ILogger())
    builder.create_network(1)
    builder.create_builder_config().builder_optimization_level = 5
    assert trt.of("Builder", "create_network") == [(1,)]
    assert trt.of("IBuilderConfig", "builder_optimization_level") == [(5,)]
