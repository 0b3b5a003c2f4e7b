"""Numerics that numpy lacks or does differently: products, conversions, functions."""
