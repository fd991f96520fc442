"""Built-in filters."""
