"""Corpora spelled in every text format, independently of the library's writers.

Where a format leaves a choice (spaces, escapes, order of keys, tagging scheme, line ends), it is
made at random. Each record, a document of one sentence, is a chunk of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any
from xml.sax.saxutils import escape

from diffusionner.corpus import Sentence, Span

Chunk = tuple[int | None, str]  # number of the record, None between records; its text


@dataclass
class Spelled:
    """Files by name, "" for a format that is one file."""

    files: dict[str, list[Chunk]] = field(default_factory=dict)
    closed: bool = False  # damage to one record may make the whole file unreadable
    json: bool = False

    def may_end_at(self, record: int) -> bool:
        """Return True if an error in this record may be the last, the file being unreadable.

        A first JSON line that goes on in the next one makes the file one of objects over lines.
        """
        return self.closed or (self.json and record == 0)

    def contents(self) -> dict[str, bytes]:
        return {name: "".join(t for _, t in chunks).encode() for name, chunks in self.files.items()}

    def lines(self, file: str, record: int) -> range:
        """Return the numbers of the lines on which a record is."""
        before = ""
        for number, text in self.files[file]:
            if number == record:
                first = 1 + before.count("\n")
                return range(first, first + text.count("\n") + 1)
            before += text
        return range(0)


Spell = Callable[[Sequence[Sentence], Random], Spelled]


def offsets(sentence: Sentence) -> list[tuple[int, int, str]]:
    """Return start, end and label of the entities in the words joined by spaces."""
    starts = [len(" ".join([*sentence.words[:i], ""])) for i in range(len(sentence.words))]
    return [
        (starts[a], starts[b - 1] + len(sentence.words[b - 1]), x) for a, b, x in sentence.entities
    ]


# --- JSON -------------------------------------------------------------------------------------


def spell_json(value: Any, chance: Random) -> str:
    """Return JSON on one line, with keys in any order and one that no format knows."""
    separators = chance.choice(((",", ":"), (", ", ": "), (" ,", " :\t")))
    if isinstance(value, dict) and chance.random() < 0.3:
        value = {**value, "unknown_key": chance.choice((None, [1, {}], "x", 0.5))}
    return json.dumps(
        _shuffled(value, chance), ensure_ascii=chance.random() < 0.5, separators=separators
    )


def _shuffled(value: Any, chance: Random) -> Any:
    if isinstance(value, list):
        return [_shuffled(item, chance) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    chance.shuffle(keys)
    return {key: _shuffled(value[key], chance) for key in keys}


def _json_file(to_records: Callable[[int, Sentence], list[Any]], lines: bool | None) -> Spell:
    """lines: JSON lines, not an array; None: either."""

    def spell(sentences: Sequence[Sentence], chance: Random) -> Spelled:
        in_lines = chance.random() < 0.5 if lines is None else lines
        blank = chance.choice(("", "", "\n", " \n\n"))
        chunks: list[Chunk] = [] if in_lines else [(None, "[" + blank)]
        for number, sentence in enumerate(sentences):
            separator = "\n" + blank if in_lines else ",\n" + blank
            spelled = [spell_json(record, chance) for record in to_records(number, sentence)]
            if number:
                chunks.append((None, separator))
            chunks.append((number, separator.join(spelled)))
        chunks.append((None, chance.choice(("", "\n")) if in_lines else blank + "]"))
        return Spelled({"": chunks}, closed=not in_lines, json=True)

    return spell


def _jsonl(number: int, s: Sentence) -> list[Any]:
    entities = [{"start": a, "end": b, "label": x} for a, b, x in s.entities]
    return [{"doc": s.doc, "tokens": s.words, "entities": entities}]


def _gliner(number: int, s: Sentence) -> list[Any]:
    return [
        {"tokenized_text": s.words, "ner": [[a, b - 1, x] for a, b, x in s.entities], "doc": s.doc}
    ]


def _prodigy(number: int, s: Sentence) -> list[Any]:
    starts = [len(" ".join([*s.words[:i], ""])) for i in range(len(s.words))]
    tokens = [
        {"text": word, "start": start, "end": start + len(word), "id": i}
        for i, (word, start) in enumerate(zip(s.words, starts, strict=True))
    ]
    spans = [{"start": a, "end": b, "label": x} for a, b, x in offsets(s)]
    return [{"text": " ".join(s.words), "tokens": tokens, "spans": spans, "meta": {"doc": s.doc}}]


def _doccano(number: int, s: Sentence) -> list[Any]:
    key, spans = ("label", "labels")[number % 2], [list(span) for span in offsets(s)]
    return [{"id": number, "text": " ".join(s.words), key: spans, "doc": s.doc}]


def _labelstudio(number: int, s: Sentence) -> list[Any]:
    text = " ".join(s.words)
    result = [
        {
            "type": "labels",
            "value": {"start": a, "end": b, "text": text[a:b], "labels": [x]},
        }
        for a, b, x in offsets(s)
    ]
    return [{"data": {"text": text, "doc": s.doc}, "annotations": [{"result": result}]}]


def _w2ner(number: int, s: Sentence) -> list[Any]:
    ner = [{"index": list(range(a, b)), "type": x} for a, b, x in s.entities]
    return [{"sentence": s.words, "ner": ner, "doc": s.doc}]


def _reference(number: int, s: Sentence) -> list[Any]:
    entities = [{"type": x, "start": a, "end": b} for a, b, x in s.entities]
    return [{"tokens": s.words, "entities": entities, "relations": [], "orig_id": s.doc}]


def _mrc(number: int, s: Sentence) -> list[Any]:
    by_label: dict[str, list[str]] = {}
    for a, b, label in s.entities:
        by_label.setdefault(label, []).append(f"{a};{b - 1}")
    return [
        {
            "context": " ".join(s.words),
            "entity_label": label,
            "span_position": spans,
            "qas_id": f"{number}.{i}",
            "doc": s.doc,
        }
        for i, (label, spans) in enumerate((by_label or {"O": []}).items())
    ]


# --- Columns ----------------------------------------------------------------------------------

_SCHEMES = (("B", "I", "I", "B"), ("B", "I", "E", "S"), ("B", "I", "L", "U"), ("B", "M", "E", "S"))


def _layers(entities: Sequence[Span]) -> list[list[Span]]:
    layers: list[list[Span]] = [[]]
    for span in entities:
        for layer in layers:
            if all(span.start >= other.end or other.start >= span.end for other in layer):
                layer.append(span)
                break
        else:
            layers.append([span])
    return layers


def _conll(sentences: Sequence[Sentence], chance: Random) -> Spelled:
    first, inner, last, single = chance.choice(_SCHEMES)
    depth = max(len(_layers(s.entities)) for s in sentences)
    odd = any(" " in text for s in sentences for text in (*s.words, *(e.label for e in s.entities)))
    gap = "\t" if odd else chance.choice(("\t", " ", "  "))
    end, after = chance.choice(("\n", " \n")), chance.choice(("\n", "\n\n", " \n"))
    chunks: list[Chunk] = []
    for number, s in enumerate(sentences):
        rows = [[word] + ["O"] * depth for word in s.words]
        for column, layer in enumerate(_layers(s.entities), 1):
            for a, b, label in layer:
                letters = [first, *inner * (b - a - 2), last] if b - a > 1 else [single]
                for row, letter in zip(rows[a:b], letters, strict=True):
                    row[column] = f"{letter}-{label}"
        body = end.join(map(gap.join, rows))
        chunks += [(number, f"-DOCSTART-{gap}{s.doc}\n\n{body}"), (None, "\n" + after)]
    return Spelled({"": chunks})


def _conllu(sentences: Sequence[Sentence], chance: Random) -> Spelled:
    chunks: list[Chunk] = []
    for number, s in enumerate(sentences):
        marks = [""] * len(s.words)
        for name, (a, b, label) in reversed(list(enumerate(s.entities, 1))):
            marks[a] = f"({name}-{label}{')' if b - a == 1 else ''}" + marks[a]
        for name, (a, b, _) in enumerate(s.entities, 1):
            if b - a > 1:
                marks[b - 1] += f"{name})"
        rows = [
            "\t".join([str(i), word, *"_" * 7, f"Entity={mark}" if mark else "_"])
            for i, (word, mark) in enumerate(zip(s.words, marks, strict=True), 1)
        ]
        note = chance.choice(("", "# a comment\n", f"# text = {' '.join(s.words)}\n"))
        head = f"# newdoc id = {s.doc}\n# global.Entity = GRP-etype\n{note}"
        chunks += [(number, head + "\n".join(rows)), (None, chance.choice(("\n\n", "\n\n\n")))]
    return Spelled({"": chunks})


def _ontonotes(sentences: Sequence[Sentence], chance: Random) -> Spelled:
    gap = chance.choice((" ", "   ", "\t"))
    chunks: list[Chunk] = []
    for number, s in enumerate(sentences):
        opens, closes = [""] * len(s.words), [""] * len(s.words)
        for a, b, label in sorted(s.entities, key=lambda e: (e.start, -e.end)):
            opens[a] += f"({label}"
            closes[b - 1] += ")"
        rows = [
            gap.join(["x", "0", str(i), word, *"-*----", f"{opens[i]}*{closes[i]}", "-"])
            for i, word in enumerate(s.words)
        ]
        body = "\n".join(rows)
        chunks.append((number, f"#begin document ({s.doc});\n{body}\n\n#end document"))
        chunks.append((None, "\n"))
    return Spelled({"": chunks})


# --- Files by document, XML ---------------------------------------------------------------------


def _brat(sentences: Sequence[Sentence], chance: Random) -> Spelled:
    files: dict[str, list[Chunk]] = {}
    for number, s in enumerate(sentences):
        text = " ".join(s.words)
        lines = [
            f"T{i}\t{label} {a} {b}\t{text[a:b]}\n" for i, (a, b, label) in enumerate(offsets(s), 1)
        ]
        notes = [f"#{i}\tAnnotatorNotes T{i}\tnote\n" for i in range(chance.choice((0, 0, 2)))]
        files[f"{s.doc}.txt"] = [(number, text + chance.choice(("", "\n")))]
        files[f"{s.doc}.ann"] = [(number, "".join(lines + notes))]
    return Spelled(files)


def _ace(sentences: Sequence[Sentence], chance: Random) -> Spelled:
    files: dict[str, list[Chunk]] = {}
    for number, s in enumerate(sentences):
        before = f"\n{s.doc}\n\n"  # offsets do not count tags
        text = " ".join(s.words)
        entities = "".join(
            f'<entity ID="E{i}" TYPE="{label}"><entity_mention ID="E{i}-1"><extent><charseq '
            f'START="{a + len(before)}" END="{b + len(before) - 1}">{text[a:b]}</charseq></extent>'
            "</entity_mention></entity>\n"
            for i, (a, b, label) in enumerate(offsets(s))
        )
        body = f"<DOC>\n<DOCID>{s.doc}</DOCID>\n<BODY><TEXT>\n{text}\n</TEXT></BODY></DOC>\n"
        files[f"{s.doc}.sgm"] = [(number, body)]
        files[f"{s.doc}.apf.xml"] = [
            (
                number,
                f'<?xml version="1.0"?>\n<source_file URI="x"><document DOCID="{s.doc}">\n'
                f"{entities}</document></source_file>\n",
            )
        ]
    return Spelled(files)


def _genia(sentences: Sequence[Sentence], chance: Random) -> Spelled:
    chunks: list[Chunk] = [(None, '<?xml version="1.0" encoding="UTF-8"?>\n<set>\n')]
    for number, s in enumerate(sentences):
        words = list(map(escape, s.words))
        for a, b, label in s.entities:
            words[a] = f'<cons sem="G#{label}{chance.choice(("", "_x"))}">{words[a]}'
            words[b - 1] += "</cons>"
        gap = chance.choice((" ", "\n", "  "))
        chunks.append(
            (
                number,
                f"<article><articleinfo><bibliomisc>{s.doc}</bibliomisc></articleinfo>\n"
                f"<abstract><sentence>{gap.join(words)}</sentence></abstract></article>\n",
            )
        )
    return Spelled({"": [*chunks, (None, "</set>\n")]}, closed=True)


SPELL: dict[str, Spell] = {
    "jsonl": _json_file(_jsonl, lines=None),
    "gliner": _json_file(_gliner, lines=None),
    "prodigy": _json_file(_prodigy, lines=True),
    "doccano": _json_file(_doccano, lines=True),
    "labelstudio": _json_file(_labelstudio, lines=None),
    "w2ner": _json_file(_w2ner, lines=None),
    "reference": _json_file(_reference, lines=None),
    "mrc": _json_file(_mrc, lines=None),
    "conll": _conll,
    "conllu": _conllu,
    "ontonotes": _ontonotes,
    "brat": _brat,
    "ace": _ace,
    "genia": _genia,
}


def meaning(name: str, record: bytes) -> Sentence | None:
    """Return what a JSON record says by words; None if that takes more than looking it up."""
    try:
        fields = json.loads(record)
        if name == "jsonl":
            words, spans = fields["tokens"], [Span(**e) for e in fields["entities"]]
        elif name == "reference":
            words = fields["tokens"]
            spans = [Span(e["start"], e["end"], e["type"]) for e in fields["entities"]]
        elif name == "gliner":
            words, spans = (
                fields["tokenized_text"],
                [Span(a, b + 1, x) for a, b, x in fields["ner"]],
            )
        elif name == "w2ner":
            runs = [(e["index"], e["type"]) for e in fields["ner"]]
            if any(b != a + 1 for index, _ in runs for a, b in pairwise(index)):
                return None
            words, spans = fields["sentence"], [Span(i[0], i[-1] + 1, x) for i, x in runs]
        else:
            return None
        doc = fields["orig_id" if name == "reference" else "doc"]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return Sentence(words, spans, None if doc in (None, "") else str(doc))
