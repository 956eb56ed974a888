"""Which plan: options in turn on one device, then the data axis over a cluster. Knows "better than"."""
