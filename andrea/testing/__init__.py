"""What a plugin author tests with: the contract of every kind, a few steps without data, an engine without learning."""
