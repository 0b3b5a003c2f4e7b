"""What a model comes from: its file, its limits, its parts as plain Python."""
