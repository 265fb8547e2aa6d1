"""Model cards with measurements."""
