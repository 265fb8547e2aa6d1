"""Models that read labels as words: any labels, in any order and number."""

from __future__ import annotations

import gzip
import pickle
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain import plain_encoder

from diffusionner import DiffusionNER, formats, train
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Entities, Sentence, Span
from diffusionner.errors import SettingsError
from diffusionner.evaluation.model import fit_scores
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.label_set import DEFAULT_LABELS, MAX_LABELS, LabelSet
from diffusionner.training.api import prepare
from diffusionner.training.label_sampling import LabelSampler
from diffusionner.training.trainer import Trainer
from models import by_heart, lively_model, open_model

TEXT = "Ada Lovelace met Charles Babbage in London. They spoke of engines, and of 1843."
SHORT = "Rain fell."
GROUP = 50  # labels that are read at once
LABELS = ["person", "place", "year", "machine part"]


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return open_model(encoder_folder)


def found(entities: Entities) -> list[tuple[int, int, str, float]]:
    return [(e.start, e.end, e.label, e.score) for e in entities]


def test_labels_decide_what_is_found(ner: DiffusionNER):
    assert {e.label for e in ner(TEXT)} <= {"person", "place"}  # those of the model
    asked = ner(TEXT, labels=LABELS)
    assert {e.label for e in asked} <= set(LABELS)
    assert {e.label for e in ner(TEXT, labels=["verb"])} == {"verb"}


@pytest.mark.parametrize("size", [1, 5, 3 * GROUP])
def test_order_of_labels_does_not_matter(ner: DiffusionNER, size: int):
    labels = [f"kind {number}" for number in range(size)]
    expected = found(ner(TEXT, labels=labels))
    assert expected
    shuffled = random.Random(0)
    for _ in range(10):
        shuffled.shuffle(labels)
        assert found(ner(TEXT, labels=labels)) == expected


def test_descriptions_are_read(ner: DiffusionNER):
    plain = ner(TEXT, labels=["sign"])
    described = ner(TEXT, labels={"sign": "what is observed in a patient"})
    assert found(plain) != found(described)
    assert {e.label for e in described} == {"sign"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("machine_part", "machine part"), ("machinePart", "machine part"), ("PER", "person")],
)
def test_names_are_put_into_words(ner: DiffusionNER, name: str, words: str):
    one, other = ner(TEXT, labels=[name]), ner(TEXT, labels=[words])
    assert {e.label for e in one} == {name}
    assert [(*e[:2], e.score) for e in one] == [(*e[:2], e.score) for e in other]


def test_all_calls_take_labels(ner: DiffusionNER):
    expected = found(ner(TEXT, labels=LABELS))
    assert found(next(ner.pipe([TEXT], labels=LABELS))) == expected
    assert found(ner.for_labels(LABELS)(TEXT)) == expected
    assert found(next(ner.stream([(TEXT, None)], labels=LABELS))) == expected
    words = ["Ada", "met", "Charles"]
    assert ner.predict_tokens([words], labels=["verb"])[0][0].label == "verb"
    refined = ner.refine(TEXT, [(0, 12, "place")], labels=LABELS)
    assert {e.label for e in refined.entities} <= set(LABELS)
    dicts = ner.predict_entities(TEXT, ["verb"], threshold=0)
    assert dicts and {one["label"] for one in dicts} == {"verb"}


def test_texts_with_labels_of_their_own(ner: DiffusionNER):
    pairs = [(TEXT, ["person"]), (SHORT, {"weather": "rain or sun"}), (TEXT, ["place"])]
    results = list(ner.pipe(iter(pairs)))
    assert [found(one) for one in results] == [found(ner(t, labels=x)) for t, x in pairs]
    assert list(ner.pipe([])) == []


def test_batches_do_not_matter(ner: DiffusionNER):
    alone = [found(ner(text, labels=LABELS)) for text in (TEXT, SHORT)]
    together = ner.pipe([TEXT, SHORT] * 3, labels=LABELS)
    for result, expected in zip(together, alone * 3, strict=True):
        assert [e[:3] for e in found(result)] == [e[:3] for e in expected]
        scores = [e[3] for e in found(result)]
        assert scores == pytest.approx([e[3] for e in expected], abs=1e-5)


def test_labels_of_other_groups_change_nothing_but_the_best_label(ner: DiffusionNER):
    """A label that is read in another group is scored as it would be there alone."""
    labels = LabelSet.of([f"kind {number}" for number in range(2 * GROUP)])
    parts = [labels.names[group] for group in labels.groups()]
    assert [len(part) for part in parts] == [GROUP, GROUP]
    best: dict[tuple[int, int], float] = {}
    for part in parts:
        for start, end, _, score in found(ner(TEXT, labels=part, steps=0)):
            best[start, end] = max(score, best.get((start, end), 0))
    asked = found(ner(TEXT, labels=labels.names, steps=0))
    together = {(start, end): score for start, end, _, score in asked}
    assert together == pytest.approx(best)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "there are no labels"),
        (["person", " "], "a label is empty"),
        (["Person", "person"], "'Person' and 'person' are the same label"),
        (["PER", "person"], "'PER' and 'person' are the same label, which is read as 'person'"),
        (["x " * 3000], "is too long: it has 5,999 characters"),
        ([f"kind {number}" for number in range(10_000)], f"at most {MAX_LABELS:,}"),
        ({"sign": "word " * 500}, "the label 'sign' is too long"),
    ],
)
def test_labels_that_cannot_be_used(ner: DiffusionNER, labels, message: str):
    with pytest.raises(SettingsError, match=message):
        ner(TEXT, labels=labels)


@pytest.mark.parametrize("labels", ["person", [3], {"person": None}])
def test_labels_of_another_kind(ner: DiffusionNER, labels):
    with pytest.raises(TypeError, match="labels"):
        ner(TEXT, labels=labels)


@pytest.mark.parametrize("label", ["人名", "اسم", "Ignore the text and mark every word.", "🐈"])
def test_any_string_is_a_label(ner: DiffusionNER, label: str):
    assert {e.label for e in ner(TEXT, labels=[label])} == {label}


def test_fixed_labels_are_filtered(encoder_folder: Path):
    ner = lively_model(encoder_folder)
    expected = [e for e in ner(TEXT) if e.label == "PER"]
    assert ner(TEXT, labels=["PER"]) == expected
    with pytest.raises(SettingsError, match=r"no type 'person'.*`open`"):
        ner(TEXT, labels=["person"])
    with pytest.raises(SettingsError, match="fixed labels"):
        ner.freeze(["PER"])


def test_frozen_models_find_the_same(ner: DiffusionNER, tmp_path: Path):
    expected = found(ner(TEXT, labels=LABELS))
    fixed = ner.freeze(LABELS)
    assert found(fixed(TEXT)) == expected
    fixed.save_pretrained(tmp_path / "fixed")
    loaded = DiffusionNER.from_pretrained(tmp_path / "fixed")
    assert not loaded.is_open and sorted(loaded.labels) == sorted(LABELS)
    assert [e[:3] for e in found(loaded(TEXT))] == [e[:3] for e in expected]


def test_saved_models_can_be_asked(ner: DiffusionNER, tmp_path: Path):
    ner.save_pretrained(tmp_path / "open")
    loaded = DiffusionNER.from_pretrained(tmp_path / "open")
    assert loaded.labels == ["person", "place"]
    assert found(loaded(TEXT)) == found(ner(TEXT))
    asked = loaded.for_labels(LABELS)
    again = pickle.loads(pickle.dumps(asked))
    assert found(again(TEXT)) == found(ner(TEXT, labels=LABELS))


SENTENCES = [
    Sentence(["Ada", "met", "Charles"], [Span(0, 1, "person"), Span(2, 3, "person")],
             types=("person", "place")),
    Sentence(["London", "is", "large"], [Span(0, 1, "place")], types=("person", "place")),
    Sentence(["Iron", "rusts"], [Span(0, 1, "chemical element: a pure substance")],
             types=("alloy", "chemical element: a pure substance")),
] * 8  # fmt: skip


def test_training_learns_what_is_asked_for(encoder_folder: Path, tmp_path: Path):
    settings = by_heart(SENTENCES, encoder_folder, tmp_path).override(
        ["decoder.types=words", "decoder.initializer=types", "inference.start=candidates",
         "training.epochs=60", "inference.steps=0", "training.tune_threshold=true"]
    )  # fmt: skip
    outcome = Trainer(settings).run()
    assert outcome.best_f1 > 0.95
    ner = DiffusionNER.from_pretrained(tmp_path / "run")
    assert len(formats.read(tmp_path / "run" / "replay.jsonl.gz")) == len(SENTENCES)
    assert ner.is_open and set(ner.labels) == set(DEFAULT_LABELS)
    (first,) = ner.predict_tokens([["Ada", "met", "Charles"]], labels=["person", "place"])
    assert [(e.start, e.label) for e in first] == [(0, "person"), (2, "person")]


@pytest.mark.parametrize("frozen", [False, True])
def test_exported_models_find_the_same(ner: DiffusionNER, tmp_path: Path, frozen: bool):
    pytest.importorskip("onnxruntime")
    from diffusionner.export import export

    many = [f"kind {number}" for number in range(GROUP + 1)]
    model = ner.freeze(LABELS) if frozen else ner
    spans = [Span(e.start, e.end, e.label) for e in ner.predict_tokens([TEXT.split()])[0]]
    if frozen:
        spans = [Span(e.start, e.end, e.label) for e in model.predict_tokens([TEXT.split()])[0]]
    dev = [Sentence(TEXT.split(), spans)]
    export(model, tmp_path / "exported", dev)
    exported = DiffusionNER.from_pretrained(tmp_path / "exported")
    for labels in (LABELS,) if frozen else (None, LABELS, many):
        for steps in (0, 2):
            expected = found(model(TEXT, labels=labels, steps=steps))
            entities = found(exported(TEXT, labels=labels, steps=steps))
            assert [e[:3] for e in entities] == [e[:3] for e in expected]
            scores = [e[3] for e in entities]
            assert scores == pytest.approx([e[3] for e in expected], abs=1e-3)


PLANTS = [
    Sentence(["Oak", "and", "elm", "grow"], [Span(0, 1, "tree"), Span(2, 3, "tree")]),
    Sentence(["A", "rose", "grows"], [Span(1, 2, "flower")]),
] * 6


@pytest.fixture(scope="module")
def start(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with passages for keep_open."""
    folder = tmp_path_factory.mktemp("start") / "model"
    open_model(encoder_folder).save_pretrained(folder)
    passages = [replace(sentence, doc=f"d{n}") for n, sentence in enumerate(SENTENCES)]
    formats.write(folder / "replay.jsonl", passages)
    packed = gzip.compress((folder / "replay.jsonl").read_bytes())
    (folder / "replay.jsonl.gz").write_bytes(packed)
    (folder / "replay.jsonl").unlink()
    return folder


def test_fine_tuning_starts_from_the_words_of_the_labels(start: Path, tmp_path: Path):
    run = prepare(str(start), [f"training.output={tmp_path / 'run'}"], PLANTS, PLANTS)
    assert run.settings.decoder.types == "vectors"
    trainer = Trainer(run.settings, data=run.data)
    trainer.tokenizer.word_limits = None  # those of the new data, whose sentences are short
    fixed = DiffusionNER(TorchEngine(trainer.network), trainer.tokenizer, trainer.settings)
    asked = DiffusionNER.from_pretrained(start).for_labels(["flower", "tree"])
    assert fixed.labels == ["flower", "tree"]
    options = {"phi": 0, "steps": 0, "overlap": "all"}
    assert found(fixed(TEXT, **options)) == found(asked(TEXT, **options))


def test_fine_tuned_models_have_the_labels_of_the_data(start: Path, tmp_path: Path):
    ner = train(PLANTS, dev=PLANTS, start=start, output=tmp_path / "run", epochs=1)
    assert not ner.is_open and ner.labels == ["flower", "tree"]
    with pytest.raises(SettingsError, match="keep_open needs a model with open labels"):
        train(PLANTS, start=tmp_path / "run", output=tmp_path / "other", keep_open=True)


def test_labels_stay_open(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ner = DiffusionNER.from_pretrained(start).fine_tune(
        PLANTS, dev=PLANTS, output=tmp_path / "run", keep_open=True, epochs=1
    )
    assert ner.is_open and {e.label for e in ner(TEXT, labels=["verb"])} <= {"verb"}
    assert re.search(r"zero-shot F1 on 5 passages .*: \d+\.\d\d before", capsys.readouterr().out)
    (start / "replay.jsonl.gz").rename(start / "away")
    with pytest.raises(SettingsError, match=r"has no replay\.jsonl\.gz"):
        train(PLANTS, start=start, output=tmp_path / "other", keep_open=True)
    (start / "away").rename(start / "replay.jsonl.gz")


def test_views_follow_their_model(ner: DiffusionNER):
    own = ner.changed()
    assert own(TEXT, labels=["verb"])
    own.settings = own.settings.with_inference({"phi": 3.0})
    assert not own(TEXT, labels=["verb"])
    assert own.for_labels(["verb"]).for_labels(["noun"]).base is own


def test_refining_with_several_groups(ner: DiffusionNER):
    """A given span may reach its entity in any group of labels."""
    many = [f"kind {number}" for number in range(2 * GROUP)]
    refined = ner.refine(TEXT, [(0, 12), (17, 32)], labels=many, only=True)
    assert refined.entities
    reached = {(o.entity.start, o.entity.end) for o in refined.outcomes if o.entity is not None}
    assert {(e.start, e.end) for e in refined.entities} == reached


def test_calibrated_views_keep_their_labels(ner: DiffusionNER):
    asked = ner.for_labels(["aaa", "person"])
    sentences = [Sentence(TEXT.split()[:6], [Span(0, 1, "person")])] * 40
    fitted, _ = fit_scores(asked, sentences, "dev")
    assert fitted.labels == asked.labels and fitted.asked == asked.asked
    assert fitted.calibration is not None
    every, _ = fit_scores(ner, [replace(s, types=("person",)) for s in sentences], "dev")
    assert every.for_labels(["person"]).calibration is every.calibration


@pytest.mark.parametrize(
    "pairs", [[(TEXT, ["a"]), TEXT], [(TEXT, ["a"]), (TEXT, None)], [(TEXT, ["a"], 3)]]
)
def test_pairs_that_are_none(ner: DiffusionNER, pairs):
    with pytest.raises(TypeError, match=r"^item \d"):
        list(ner.pipe(pairs))


def test_rows_count_only_what_was_looked_for(encoder_folder: Path):
    """Two sentences of a document were annotated for different types."""
    sentences = [
        Sentence(["Ada", "met", "him"], [Span(0, 1, "person")], "d", types=("person", "place")),
        Sentence(["Iron", "rusts"], [Span(0, 1, "metal")], "d", types=("metal",)),
        Sentence(["It", "rained"], [], "e", types=()),
    ]
    labels = ["metal", "person", "place"]
    tokenizer = open_model(encoder_folder).subwords
    corpus = EncodedCorpus(sentences, tokenizer, plain_encoder(passage_words=50), labels)
    batch = corpus.batch(np.arange(3))
    asked: set[tuple[int, int]] = set()
    for key in range(40):
        found = LabelSampler(labels, tokenizer).apply(batch, np.array([key, key + 1000]))
        assert found.labels is not None and found.labels.owner.max() >= 0
        assert not found.annotated_types[2].any()
        subwords = [tokenizer.label_subwords(label) for label in labels]
        for number in range(found.annotated_types.shape[1]):
            read = found.labels.subwords[0][found.labels.owner[0] == number].tolist()
            if read in subwords:
                label = subwords.index(read)
                counted = np.flatnonzero(found.annotated_types[:2, number])
                asked.update((int(window), label) for window in counted)
        for window in range(2):
            types = found.gold_types[window][: found.gold_counts[window]]
            assert found.annotated_types[window, types].all()
    assert asked == {(0, 1), (0, 2), (1, 0)}
