"""Fine-tune `en` on types that it does not know, and score the result.

Replace the two files by yours, in any format (`diffusionner data formats`).
"""

import os
from pathlib import Path

from diffusionner import evaluate, formats, train

DATA = Path(__file__).parent / "data/genia"
SENTENCES = int(os.environ.get("EXAMPLE_SENTENCES", "200"))  # of 640, to be done in minutes
EPOCHS = int(os.environ.get("EXAMPLE_EPOCHS", "0"))  # 0: chosen from the amount of data

sentences = formats.read(DATA / "train.jsonl")[:SENTENCES]
dev = formats.read(DATA / "dev.jsonl")[:SENTENCES]

settings = {"epochs": EPOCHS} if EPOCHS else {}
ner = train(sentences, dev=dev, start="en", output="runs/genia", **settings)

print(ner("The IL-2 gene is expressed in human T cells."))
print(evaluate(ner, dev))
