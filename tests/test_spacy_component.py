"""The spaCy component."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from diffusionner import DiffusionNER
from diffusionner.errors import CheckpointError, SettingsError
from diffusionner.inference.decoding import choose_spans
from diffusionner.storage import registry
from models import lively_model

TEXTS = [
    "Ada Lovelace met Charles Babbage in London.  They talked about engines.\n\nIt rained.",
    "",
    "IBM hired him.",
    " \n ",
    "x" * 40 + " left Paris. " * 30,
    "Bob",
]


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder, "encoder.context=1")


@pytest.fixture(scope="module")
def model(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spacy") / "model"
    ner.save_pretrained(folder)
    return folder


@pytest.fixture
def nlp(model: Path) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("diffusionner", config={"model": str(model)})
    return nlp


def spans(doc: Doc, key: str = "sc") -> list[tuple[int, int, str, float]]:
    group = doc.spans[key]
    scores = group.attrs["scores"]
    assert len(scores) == len(group)
    return [
        (s.start, s.end, s.label_, round(float(score), 4))
        for s, score in zip(group, scores, strict=True)
    ]


def expected(ner: DiffusionNER, sentences: list[list[str]], **options) -> list[tuple]:
    """Return the expected spans of a doc that consists of these sentences."""
    found = ner.predict_tokens(sentences, docs=["d"] * len(sentences), **options)
    result, before = [], 0
    for words, entities in zip(sentences, found, strict=True):
        result += [(before + e.start, before + e.end, e.label, round(e.score, 4)) for e in entities]
        before += len(words)
    return result


def test_tokens_of_the_doc(nlp, ner):
    doc = nlp("Ada Lovelace met Charles Babbage in London. They talked.")
    sentences = ["Ada Lovelace met Charles Babbage in London .".split(), "They talked .".split()]
    assert spans(doc) == expected(ner, sentences)
    assert spans(doc)


def test_sentences_of_the_doc(nlp, ner):
    nlp.add_pipe("sentencizer", first=True, config={"punct_chars": [","]})
    doc = nlp("Ada left, Bob. He stayed")
    assert spans(doc) == expected(ner, [["Ada", "left", ","], "Bob . He stayed".split()])


def test_white_space_is_ignored(nlp, ner):
    doc = nlp("  Ada \n met\n\n\nBob .")
    words = [t for t in doc if not t.is_space]
    found = expected(ner, [["Ada", "met"], ["Bob", "."]])  # a blank line ends a sentence
    mended = [(words[a].i, words[b - 1].i + 1, label, score) for a, b, label, score in found]
    assert spans(doc) == mended and any(token.is_space for token in doc)


def test_ents_are_the_flat_view(nlp):
    doc = nlp(TEXTS[0])
    found = sorted(spans(doc), key=lambda span: (-span[3], span))
    chosen = choose_spans([(start, end, score) for start, end, _, score in found], "flat view")
    assert 0 < len(chosen) < len(found)
    assert [(e.start, e.end, e.label_) for e in doc.ents] == sorted(found[i][:3] for i in chosen)


def test_the_name_is_preferred_to_its_title():
    """The title alone scores higher; nested annotation has both, flat annotation the name."""
    pytest.importorskip("diffusionner_en")
    nlp = spacy.blank("en")
    nlp.add_pipe("diffusionner", config={"model": "en"})
    doc = nlp('"We have made her a bow-pot," replied Miss Jemima to Ada.')
    found = doc.spans["sc"]
    scores = dict(zip((span.text for span in found), found.attrs["scores"], strict=True))
    assert scores["Miss"] > scores["Miss Jemima"]
    assert [ent.text for ent in doc.ents] == ["Miss Jemima", "Ada"]
    ner = nlp.get_pipe("diffusionner").ner
    assert [e.text for e in ner(doc.text, overlap="flat")] == ["Miss Jemima", "Ada"]
    assert [e["text"] for e in ner.predict_entities(doc.text)] == ["Miss Jemima", "Ada"]


def test_existing_entities_are_kept(nlp):
    ruler = nlp.add_pipe("entity_ruler", first=True)
    ruler.add_patterns([{"label": "MINE", "pattern": "Lovelace met"}])
    doc = nlp(TEXTS[0])
    assert ("Lovelace met", "MINE") in [(e.text, e.label_) for e in doc.ents]
    assert len(doc.ents) > 1


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_pipe(nlp, batch_size):
    together = list(nlp.pipe(TEXTS * 3, batch_size=batch_size))
    assert [doc.text for doc in together] == TEXTS * 3
    alone = [spans(nlp(text)) for text in TEXTS]
    for doc, other in zip(together, alone * 3, strict=True):
        assert [s[:3] for s in spans(doc)] == [s[:3] for s in other]
        assert [s[3] for s in spans(doc)] == pytest.approx([s[3] for s in other], abs=2e-4)


def test_pipe_is_batched_and_reads_as_needed(nlp, monkeypatch):
    component = nlp.get_pipe("diffusionner")
    sizes: list[int] = []
    launch = component.ner.engine.launch

    def counted(batch, *arguments):
        sizes.append(len(batch.lengths))
        return launch(batch, *arguments)

    monkeypatch.setattr(component.ner.engine, "launch", counted)
    read = 0

    def texts():
        nonlocal read
        for number in range(5000):
            read += 1
            yield f"Ada met {number}."

    docs = nlp.pipe(texts(), batch_size=50)
    next(docs)
    assert max(sizes) > 8 and read < 1000


def test_settings(model, ner):
    nlp = spacy.blank("en")
    config = {"model": str(model), "spans_key": "mine", "threshold": 0.5, "steps": 1}
    nlp.add_pipe("diffusionner", config={**config, "overlap": "flat", "batch_size": 2})
    doc = nlp("Ada met Bob .")
    assert list(doc.spans) == ["mine"]
    words = [["Ada", "met", "Bob", "."]]
    assert spans(doc, "mine") == expected(ner, words, threshold=0.5, steps=1, overlap="flat")
    assert nlp.pipe_labels["diffusionner"] == ["FAC", "GPE", "PER"]
    wrong = spacy.blank("en")
    wrong.add_pipe("diffusionner", config={"model": str(model), "overlap": "nestd"})
    with pytest.raises(SettingsError, match="nestd"):
        wrong("Ada")


def test_missing_model(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("diffusionner", config={"model": str(tmp_path / "none")})
    with pytest.raises(CheckpointError, match="no model in"):
        nlp("Ada")


# --- With the pipeline ------------------------------------------------------------------------


def test_to_disk_copies_the_model(nlp, model, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(model, moved)
    (moved / "log.jsonl.bin").write_text("no part of the model")
    before = spacy.blank("en")
    before.add_pipe("diffusionner", config={"model": str(moved), "spans_key": "k", "steps": 1})
    doc = before(TEXTS[0])
    before.to_disk(tmp_path / "saved")
    shutil.rmtree(moved)
    after = spacy.load(tmp_path / "saved")
    assert spans(after(TEXTS[0]), "k") == spans(doc, "k")
    after.to_disk(tmp_path / "saved")  # over itself
    after.to_disk(tmp_path / "again")
    assert spans(spacy.load(tmp_path / "again")(TEXTS[0]), "k") == spans(doc, "k")
    files = {file.name for file in (tmp_path / "saved/diffusionner/model").iterdir()}
    assert "model.safetensors" in files and "log.jsonl.bin" not in files


def test_to_bytes(nlp, model, tmp_path):
    content = nlp.to_bytes()
    other = spacy.blank("en")
    other.add_pipe("diffusionner", config={"model": str(tmp_path / "elsewhere")})
    other.from_bytes(content)
    assert spans(other(TEXTS[0])) == spans(nlp(TEXTS[0]))
    parts = [pipeline.get_pipe("diffusionner").to_bytes() for pipeline in (nlp, other)]
    assert parts[0] == parts[1]


def test_an_installed_model_is_saved_by_name(model, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "installed_models", lambda: {"en": model})
    nlp = spacy.blank("en")
    nlp.add_pipe("diffusionner")
    doc = nlp(TEXTS[0])
    nlp.to_disk(tmp_path / "saved")
    assert not list((tmp_path / "saved").rglob("*.safetensors"))
    assert spans(spacy.load(tmp_path / "saved")(TEXTS[0])) == spans(doc)
    other = spacy.blank("en")
    other.add_pipe("diffusionner")
    assert len(nlp.to_bytes()) < 1e6
    assert spans(other.from_bytes(nlp.to_bytes())(TEXTS[0])) == spans(doc)


def test_docs_keep_scores(nlp):
    doc = nlp(TEXTS[0])
    (back,) = DocBin(docs=[doc], store_user_data=True).get_docs(nlp.vocab)
    assert spans(back) == spans(doc)
    assert isinstance(back.spans["sc"].attrs["scores"], np.ndarray)


def test_two_components_in_one_pipeline(model):
    nlp = spacy.blank("en")
    for name, key in (("one", "a"), ("two", "b")):
        config = {"model": str(model), "spans_key": key, "steps": 1 + (key == "b")}
        nlp.add_pipe("diffusionner", name=name, config=config)
    doc = nlp(TEXTS[0])
    assert spans(doc, "a") and spans(doc, "b") and spans(doc, "a") != spans(doc, "b")
