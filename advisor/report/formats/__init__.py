"""Report formats: one file each, defining `FORMAT`, found by name."""
