"""The reverse process in use: decoding, and the DiffusionNER that people call."""
