"""Tiles as measured on an H200: data alone."""
