"""Find entities in texts, draw them, and start from noise as in the paper."""

from diffusionner import DiffusionNER

ner = DiffusionNER.from_pretrained("en")

# One text. Offsets count characters; the score is the probability that the entity is right.
text = "Ada Lovelace wrote to Charles Babbage from London on 10 July 1843."
entities = ner(text)
for entity in entities:
    print(f"{entity.start:3} {entity.end:3} {entity.label:15} {entity.score:.2f} {entity.text}")

# Many texts, streamed in order.
texts = ["Marie Curie was born in Warsaw.", "She moved to Paris in 1891."]
for found in ner.pipe(texts):
    print([(entity.text, entity.label) for entity in found])

# Fewer entities, with higher scores.
print(len(ner(text, threshold=0.95)), "of", len(entities), "have a score of 0.95 or more")

# The paper's start: 60 random spans, denoised in 5 steps.
for entity in ner(text, start="noise", steps=5):
    print(f"from noise: {entity.text} {entity.label} {entity.score:.2f}, {entity.votes} spans")

entities.to_html("entities.html")  # open it in a browser
