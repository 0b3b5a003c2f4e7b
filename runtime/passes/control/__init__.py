"""Passes over control flow and sequences: branches, loops and bags of rows."""
