"""The command line, and tools for developers."""
