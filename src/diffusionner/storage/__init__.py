"""Model folders: read, write, check, and find installed models by name."""
