"""Readers: what `open_source` is asked of."""
