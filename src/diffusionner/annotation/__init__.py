"""Annotate corpora of any size: records are streamed through a model and written in order."""
