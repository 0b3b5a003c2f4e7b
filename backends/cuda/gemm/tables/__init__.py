"""Tiles with their measurements on an H200: data only."""
