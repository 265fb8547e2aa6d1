"""Inference on a GPU: CUDA graphs, packed sequences and streams. Imported on CUDA only."""
