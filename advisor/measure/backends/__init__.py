"""How each kind of device is timed and its memory read: one file per kind, each defining `BACKEND`."""
