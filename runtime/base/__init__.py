"""What every room stands on: arguments, limits, locks, files, texts."""
