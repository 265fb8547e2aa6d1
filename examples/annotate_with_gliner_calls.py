"""Replace GLiNER's calls: same arguments, same result, labels from the model's own types."""

from diffusionner import DiffusionNER

model = DiffusionNER.from_pretrained("en")
print("types:", model.labels)

text = "Ada Lovelace met Charles Babbage in London."
for entity in model.predict_entities(text, ["person", "city or country"], threshold=0.5):
    print(entity["text"], "=>", entity["label"], round(entity["score"], 2))
