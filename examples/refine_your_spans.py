"""Denoise spans that another system proposed: their boundaries are moved and typed."""

from diffusionner import DiffusionNER

ner = DiffusionNER.from_pretrained("en")
words = "Ada Lovelace wrote to Charles Babbage from London .".split()

# Rough proposals in words, end exclusive: "Ada", "to Charles Babbage", "London .".
proposals = [(0, 1), (3, 6), (7, 9)]
for start, end in proposals:
    print("proposed:", " ".join(words[start:end]))

[entities] = ner.predict_tokens([words], from_spans=[proposals], steps=5)
for entity in entities:
    print("refined: ", " ".join(words[entity.start : entity.end]), entity.label)
