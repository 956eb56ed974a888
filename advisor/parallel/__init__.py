"""Parallel strategies: one file each, a rewrite of the step of one device into the step of the busiest rank."""
