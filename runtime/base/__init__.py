"""Basics that every other package uses: argument checks, limits, locks, files."""
