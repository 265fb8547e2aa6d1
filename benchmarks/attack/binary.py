"""Binary corpora as their own libraries read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffusionner.corpus import Sentence, Span

NAMES = ("parquet", "huggingface", "docbin")


def read(path: Path, name: str) -> list[Sentence]:
    return list(_read_docbin(path) if name == "docbin" else map(_to_sentence, _rows(path, name)))


def _rows(path: Path, name: str) -> list[dict[str, Any]]:
    import pyarrow.ipc
    import pyarrow.parquet

    if name == "parquet":
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    with pyarrow.ipc.open_stream(next(path.glob("*.arrow")).open("rb")) as stream:
        rows = stream.read_all().to_pylist()
    return rows


def _to_sentence(row: dict[str, Any]) -> Sentence:
    entities = [Span(e["start"], e["end"], e["label"]) for e in row["entities"] or ()]
    return Sentence(row["tokens"], entities, row.get("doc") or None)


def _read_docbin(path: Path) -> Iterator[Sentence]:
    import spacy
    from spacy.tokens import DocBin

    nlp = spacy.blank("xx")
    for doc in DocBin().from_disk(path).get_docs(nlp.vocab):
        spans = [Span(s.start, s.end, s.label_) for s in doc.spans.get("sc", ())]
        yield Sentence([token.text for token in doc], spans, doc.user_data.get("doc"))
