"""Model importers, which convert files to `Graph`s."""
