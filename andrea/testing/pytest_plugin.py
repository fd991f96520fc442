"""The pytest plugin of the contract kit; loaded in every pytest session where andrea is installed, so it is light."""
