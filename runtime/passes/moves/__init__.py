"""Passes over what only moves elements: views, transposes, slices and their joins."""
