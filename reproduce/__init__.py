"""The paper's tables and figures, measured here.

What a table shows is declared (`tables.py`); from that follow the runs it needs (`plan.py`), which
are carried out (`runner.py`), kept as records (`records.py`) and written down (`render.py`).
"""
