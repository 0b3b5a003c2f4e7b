"""How nodes run: the registry, tapes of calls, blocks that stay in the cache, threads."""
