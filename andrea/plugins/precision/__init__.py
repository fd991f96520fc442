"""How numbers are stored and multiplied."""
