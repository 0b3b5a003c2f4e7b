"""Passes over matrix products and the layers that they are."""
