"""Rivals of DiffusionNER, one of each family that the paper compares it with.

Each has the same encoder, reader, trainer, calibration and scorer, and is a `Network` and an
`Objective` like the main method: tagging, span classification, a set of learned queries, and
autoregressive generation.
"""
