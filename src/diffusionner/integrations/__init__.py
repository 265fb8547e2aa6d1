"""Interfaces to other libraries: spaCy, Presidio, GLiNER and the Hugging Face hub."""
