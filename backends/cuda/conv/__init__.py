"""Convolutions: what they have in common, and one file for each algorithm."""
