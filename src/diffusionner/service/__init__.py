"""The HTTP service: one process that speaks HTTP, and one or more that own the model.

protocol → guard (keys, errors, log) → app (endpoints) → body → batcher → worker processes.
"""
