"""Autotuning: measuring algorithms, and caching the results."""
