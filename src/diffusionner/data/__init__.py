"""Tools for corpora: statistics, conversion, merging, splitting and checks."""
