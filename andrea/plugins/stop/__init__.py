"""When a run ends."""
