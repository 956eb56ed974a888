"""The version, in a room that anything may import."""

__version__ = "0.1.0"
