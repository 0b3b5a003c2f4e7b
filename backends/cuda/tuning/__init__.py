"""Algorithms that are measured, and what was measured before."""
