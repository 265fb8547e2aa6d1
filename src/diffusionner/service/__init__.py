"""The HTTP service: one process that speaks HTTP, and one or more that run the model.

http_protocol → middleware (keys, errors, log) → app → endpoints → batcher → model processes.
"""
