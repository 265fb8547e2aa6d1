"""Use a model as a component of spaCy. Needs `pip install '.[spacy]'`."""

import spacy

nlp = spacy.blank("en")
nlp.add_pipe("diffusionner", config={"model": "en", "threshold": 0.5})

doc = nlp("Ada Lovelace met Charles Babbage in London.")
print(doc.ents)  # flat, for other components

group = doc.spans["sc"]  # all of them, nested too, with scores
for span, score in zip(group, group.attrs["scores"], strict=True):
    print(span.text, span.label_, round(float(score), 2))
