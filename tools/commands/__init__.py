"""The commands, by what they are for; `tools/cli.py` registers them."""
