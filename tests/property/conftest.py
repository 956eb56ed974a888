"""Hypothesis without its deadline: a slow machine is no counterexample."""

from hypothesis import settings

settings.register_profile("advisor", deadline=None)
settings.load_profile("advisor")
