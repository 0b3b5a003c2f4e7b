"""The commands by topic; `tools/cli.py` registers them."""
