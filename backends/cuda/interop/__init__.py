"""Arrays of other libraries, and streams of callers."""
