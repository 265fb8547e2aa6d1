"""Entities for corpora of any size: records stream in, are annotated and written in order."""
