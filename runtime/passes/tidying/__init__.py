"""Passes that remove what changes nothing, is not read, or is known."""
