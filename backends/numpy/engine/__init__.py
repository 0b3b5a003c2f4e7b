"""Execution: the registry, recorded calls (tapes), cache blocking, threads."""
