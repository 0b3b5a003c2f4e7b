"""Sizes that grow, in buckets: see `rewriting`."""

from .rewriting import Bucket, bucketed

__all__ = ["Bucket", "bucketed"]
