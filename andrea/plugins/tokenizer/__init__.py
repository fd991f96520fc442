"""Text to ids and back, without loss."""
