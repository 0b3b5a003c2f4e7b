"""The command line, and what developers run."""
