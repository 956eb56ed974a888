"""One training step, traced without the device it is for. Torch stays in `tracer.py`; the records are plain data."""
