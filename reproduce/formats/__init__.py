"""Corpora as their publishers and other research code distribute them.

ACE's and GENIA's XML, OntoNotes' brackets, and the JSON of W2NER, MRC-NER and the paper's code.
Importing this package registers them, so that `python -m reproduce data convert` reads them.
"""

from diffusionner.formats import register
from reproduce.formats import ace, genia, mrc, ontonotes, reference, w2ner

for _module in (reference, mrc, w2ner, ontonotes, genia, ace):
    register(_module.FORMAT)
