"""Components for other libraries: spaCy and Presidio."""
