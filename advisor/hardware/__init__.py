"""Hardware facts: devices, clusters, meshes, measured collectives. Data with sources; no default for the unknown."""
