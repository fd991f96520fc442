"""Which source comes next."""
