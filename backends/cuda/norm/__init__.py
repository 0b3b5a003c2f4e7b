"""Normalizations whose statistics several blocks, or registers, share."""
