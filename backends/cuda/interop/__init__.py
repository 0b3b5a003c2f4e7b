"""Exchange of arrays and streams with callers and other libraries."""
