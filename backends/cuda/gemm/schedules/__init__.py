"""Schedules: how tiles are loaded to shared memory and multiplied, one file each."""
