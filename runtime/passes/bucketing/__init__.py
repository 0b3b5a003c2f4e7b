"""Bucketing of growing sizes: see `rewriting`."""

from .rewriting import Bucket, bucketed

__all__ = ["Bucket", "bucketed"]
