"""Passes over attention, its heads and their rotations."""
