"""How promising each source is."""
