"""DiffusionNER in other people's pipelines: spaCy, Presidio and the Hugging Face hub."""
