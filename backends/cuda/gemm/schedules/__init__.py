"""How tiles travel to shared memory: a file for each schedule."""
