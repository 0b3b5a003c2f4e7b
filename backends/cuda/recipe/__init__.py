"""Launches as plain data: source, compile-time types and constants, arguments, grid."""
