"""Bounds on the final weights."""
