"""Denoise spans that another system proposed: their boundaries are moved and typed."""

from diffusionner import DiffusionNER

ner = DiffusionNER.from_pretrained("en")
text = "Ada Lovelace wrote to Charles Babbage from London."

# Rough proposals: "Ada", "to Charles Babbage" with a wrong label, "wrote".
proposals = [(0, 3), (19, 37, "organization"), (13, 18)]

refined = ner.refine(text, proposals, only=True)
for outcome in refined.outcomes:
    given = text[outcome.given.start : outcome.given.end]
    became = f"{outcome.entity.text} {outcome.entity.label}" if outcome.entity else ""
    print(f"{given} was {outcome.change} {became}")
