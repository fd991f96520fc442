"""Models that were made elsewhere become runs, which go on, are measured and exported like any other."""
