"""Arithmetic that numpy lacks, or does otherwise: products, conversions, functions."""
