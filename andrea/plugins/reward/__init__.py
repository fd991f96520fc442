"""What a pull was worth."""
