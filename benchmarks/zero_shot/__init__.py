"""Measurements of models with open labels, which are asked for types they were not trained on."""
