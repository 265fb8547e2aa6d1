"""The paper's tables and figures, reproduced.

`tables.py` declares what each table shows. From that follow the runs it needs (`plan.py`), which
are executed (`runner.py`), kept as records (`records.py`) and written as pages (`render.py`).
Importing the package registers the rival methods and the formats of research corpora.
"""

from reproduce import formats as formats
from reproduce import rivals as rivals
