"""Passes that compute many equal nodes at once."""
