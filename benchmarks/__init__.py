"""Benchmarks of speed and memory, run as `python -m benchmarks`."""
