"""What a signal of the operating system does."""
