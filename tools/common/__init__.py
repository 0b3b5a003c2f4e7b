"""Shared by all commands: inputs, console output, timing, limits."""
