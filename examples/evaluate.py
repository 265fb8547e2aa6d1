"""Score a model on a labelled corpus and read the report in Python."""

import os
from pathlib import Path

from diffusionner import DiffusionNER, evaluate, formats

DATA = Path(__file__).parent / "data/genia"
SENTENCES = int(os.environ.get("EXAMPLE_SENTENCES", "80"))

ner = DiffusionNER.from_pretrained("bio")
sentences = formats.read(DATA / "dev.jsonl")[:SENTENCES]  # `bio` was trained on these

report = evaluate(ner, sentences)
print(report)
print(f"strict F1 {100 * report.micro.f1:.1f}")
for label, counts in report.per_type.items():
    print(f"{label}: recall {100 * counts.recall:.1f}")

# The options of every call can be given here too.
from_noise = evaluate(ner, sentences, start="noise", steps=5)
print(f"from noise: {100 * from_noise.micro.f1:.1f}")
