"""ONNX's backend interface, for programs and test suites that use it.

    import onnx.backend.test
    import tercet.onnx_backend.numpy as backend

    backend.run_node(node, [x, w])
    backend.prepare(model).run([x])
    suite = onnx.backend.test.runner.Runner(backend, __name__).test_suite

There is a module for each of tercet's backends; `TercetBackend` makes the interface for another.
"""

from .base import Prepared, TercetBackend

__all__ = ["Prepared", "TercetBackend"]
