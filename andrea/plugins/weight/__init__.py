"""Factors on the sources, multiplied together."""
