"""`python -m benchmarks zero-shot`, with a model of random weights that is right by construction.

Gold countries are those that the model finds, gold persons every second one that it finds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cli import main
from benchmarks.zero_shot import measuring
from benchmarks.zero_shot.crossner import (
    DOMAINS,
    LABELS,
    labels_of,
    read_domain,
    relabel,
    rewordings,
)
from benchmarks.zero_shot.measuring import (
    Corpus,
    bare_name,
    check_orders,
    describe,
    mean_f1,
    measure_corpus,
    read_corpora,
    trained_names,
)
from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Entities, Entity, Sentence, Span
from diffusionner.data.fingerprint import fingerprint
from diffusionner.evaluation import score_sentences
from diffusionner.inference.calibration import expected_calibration_error
from diffusionner.label_set import LabelSet
from models import lively_model, open_model

WORDS = [
    "Ada Lovelace met Charles Babbage in London .".split(),
    "They spoke of engines and of 1843 .".split(),
    "Iron rusts in wet air .".split(),
]
PASSAGE = """### domain: shop | genre: advert | id: T-1
types: person; shop
absent: Country; star
describe: shop = a place that sells things
⟦Ada|person⟧ met a friend at the ⟦Old Mill|shop⟧ today.
"""


@pytest.fixture(scope="module")
def folder(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("open") / "model"
    open_model(encoder_folder, "encoder.max_subwords=128", "inference.steps=1").save_pretrained(
        path
    )
    return path


@pytest.fixture(scope="module")
def ner(folder: Path) -> DiffusionNER:
    """The same model without denoising, which finds more."""
    loaded = DiffusionNER.from_pretrained(folder)
    settings = loaded.settings.with_inference({"steps": 0})
    return DiffusionNER(loaded.engine, loaded.subwords, settings)


def names_of(domain: str) -> list[str]:
    return [label.name for label in labels_of(domain)]


def asked(labels: Sequence[str]) -> list[Sentence]:
    return [Sentence(words, types=tuple(sorted(labels))) for words in WORDS]


def gold_of(predicted: Sequence[Span]) -> list[Span]:
    persons = [span for span in predicted if span.label == "person"]
    return [span for span in predicted if span.label == "country"] + persons[::2]


@pytest.fixture(scope="module")
def data(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CrossNER's domains with three sentences each, passages, and a training corpus."""
    folder = tmp_path_factory.mktemp("data")
    for domain in DOMAINS:
        found = ner.predict_sentences(asked(names_of(domain)))
        gold = [[*gold_of(spans), Span(0, 1, "misc")] for spans in found]
        sentences = [Sentence(*pair) for pair in zip(WORDS, gold, strict=True)]
        target = folder / f"crossner-{domain}" / "test.jsonl"
        target.parent.mkdir()
        formats.write(target, sentences)
    (folder / "passages").mkdir()
    (folder / "passages" / "one.txt").write_text(PASSAGE, encoding="utf-8")
    plain = folder / "train.jsonl"
    types = ("COUNTRY: a state", "machine_part", "enzyme")
    formats.write(plain, [Sentence(["Rome"], [Span(0, 1, "COUNTRY: a state")], types=types)])
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    return folder


@pytest.fixture(scope="module")
def corpora(data: Path) -> dict[str, Corpus]:
    return {one.name: one for one in read_corpora(data, data / "passages", None)}


@pytest.fixture(scope="module")
def described(ner: DiffusionNER, corpora: dict[str, Corpus], data: Path) -> dict[str, Any]:
    """The figures of one domain, of the model without denoising."""
    known = trained_names(formats.iterate(data / "train.jsonl.gz"))
    return describe(measure_corpus(ner, corpora["music"], lambda *_: None), known)


# --- Labels and corpora -----------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_wordings_are_distinct_and_can_be_asked_for(domain: str):
    labels = labels_of(domain)
    texts = {label.name for label in labels} | {label.other for label in labels}
    assert len(texts) == 2 * len(labels), "a name is another wording of another label"
    for wording in rewordings(domain).values():
        assert len(LabelSet.of(list(wording.values())).texts) == len(labels)
        assert list(wording) == names_of(domain)


def test_every_label_belongs_to_a_domain():
    assert {label for listed in DOMAINS.values() for label in listed.split()} == set(LABELS)


def test_labels_are_written_as_words_and_misc_is_left_out(tmp_path: Path):
    target = tmp_path / "crossner-ai" / "test.jsonl"
    target.parent.mkdir()
    spans = [Span(0, 1, "programlang"), Span(1, 2, "misc"), Span(2, 3, "metrics")]
    formats.write(target, [Sentence(["Lisp", "is", "fast"], spans), Sentence(["No"])])
    first, second = read_domain(tmp_path, "ai")
    assert first.entities == [Span(0, 1, "programming language"), Span(2, 3, "metric")]
    assert first.types == second.types == tuple(sorted(names_of("ai")))
    described = relabel([first], rewordings("ai")["described"])[0]
    assert described.entities[1].label.startswith("metric: a measure")


def test_passages_ask_for_absent_types(corpora: dict[str, Corpus]):
    assert corpora["passages"].labels == ["Country", "person", "shop", "star"]
    assert corpora["passages"].reworded == {}
    assert [one.name for one in corpora.values()] == [*DOMAINS, "passages"]


def test_names_are_compared_without_case_and_description():
    assert bare_name("Chemical_Element: a pure substance") == "chemical element"
    sentences = [
        Sentence(["Rome"], [Span(0, 1, "City: a town")], types=("City: a town", "machine_part")),
        Sentence(["Ada"], [Span(0, 1, "PERSON")]),
    ]
    assert trained_names(sentences) == {"city", "machine part", "person"}


# --- Figures ----------------------------------------------------------------------------------


def test_seen_and_unseen_labels_are_scored_apart(described, ner: DiffusionNER):
    found = [span for spans in ner.predict_sentences(asked(names_of("music"))) for span in spans]
    countries = sum(span.label == "country" for span in found)
    persons = sum(span.label == "person" for span in gold_of(found))
    assert countries > 2 and persons > 2
    seen, unseen, micro = (described[name] for name in ("seen", "unseen", "micro"))
    assert (seen["correct"], seen["predicted"], seen["gold"]) == (countries,) * 3
    assert seen["f1"] == 1 and seen["interval"] == (1, 1)
    assert unseen["predicted"] == len(found) - countries
    assert unseen["correct"] == unseen["gold"] and unseen["recall"] == 1
    assert abs(unseen["gold"] - persons) <= 1, "every second one of each sentence"
    assert unseen["precision"] == pytest.approx(unseen["gold"] / unseen["predicted"], abs=1e-6)
    assert micro["gold"] == seen["gold"] + unseen["gold"]
    assert micro["predicted"] == len(found)
    assert micro["interval"][0] <= micro["f1"] <= micro["interval"][1]


def test_every_label_has_its_scores(described):
    labels = {one["label"]: one for one in described["labels"]}
    assert list(labels) == names_of("music")
    assert {name for name, one in labels.items() if one["seen"]} == {"country"}
    assert labels["country"]["f1"] == labels["person"]["recall"] == 1
    assert labels["person"]["predicted"] > labels["person"]["gold"] > 0
    assert labels["album"]["gold"] == labels["album"]["f1"] == 0
    assert sum(one["predicted"] for one in labels.values()) == described["micro"]["predicted"]
    assert labels["band"]["other"]["text"] == "musical group"
    assert labels["band"]["described"]["text"].startswith("band: a group")


@pytest.mark.parametrize("wording", ["other", "described"])
def test_other_wordings_are_scored(described, ner: DiffusionNER, corpora, wording: str):
    texts = rewordings("music")[wording]
    back = {text: name for name, text in texts.items()}
    predicted = [
        [span._replace(label=back[span.label]) for span in spans]
        for spans in ner.predict_sentences(asked(list(texts.values())))
    ]
    expected = score_sentences(corpora["music"].sentences, predicted)
    found = described["wordings"][wording]
    assert found["micro"]["f1"] == pytest.approx(expected.micro.f1, abs=1e-6)
    assert found["micro"]["predicted"] == expected.micro.predicted > 0
    assert found["micro"]["f1"] < described["micro"]["f1"]
    change = found["micro"]["f1"] - described["micro"]["f1"]
    assert found["difference"]["f1"] == pytest.approx(change, abs=1e-6)
    (country,) = (one for one in described["labels"] if one["label"] == "country")
    counts = expected.per_type.get("country")
    assert country[wording]["f1"] == pytest.approx(counts.f1 if counts else 0)


def test_calibration_of_entities_and_of_candidates(ner: DiffusionNER, corpora):
    corpus = corpora["music"]
    everything = ner.predict_tokens(WORDS, labels=corpus.labels)
    scores = np.sort([e.score for one in everything for e in one])
    middle = scores[len(scores) // 4 : -len(scores) // 4]
    gap = np.diff(middle).argmax()  # so that rounding does not matter
    own = {"threshold": float(middle[gap : gap + 2].mean())}
    strict = DiffusionNER(ner.engine, ner.subwords, ner.settings.with_inference(own))
    found = describe(measure_corpus(strict, corpus, lambda *_: None), None)["calibration"]
    for which, options in (("own_threshold", own), ("candidates", {"threshold": 0.05})):
        predicted = ner.predict_tokens(WORDS, labels=corpus.labels, **options)
        pairs = zip(predicted, corpus.sentences, strict=True)
        outcomes = [(e.score, Span(*e[:3]) in s.entities) for one, s in pairs for e in one]
        scores, right = zip(*outcomes, strict=True)
        assert found[which]["entities"] == len(scores)
        assert found[which]["error"] == pytest.approx(expected_calibration_error(scores, right))
    assert 0 < found["own_threshold"]["entities"] < found["candidates"]["entities"]


def test_denoising_is_compared_only_if_the_model_denoises(
    described, folder: Path, ner: DiffusionNER, corpora
):
    assert described["without_denoising"] is None
    denoising = DiffusionNER.from_pretrained(folder)
    found = describe(measure_corpus(denoising, corpora["music"], lambda *_: None), None)
    plain = found["without_denoising"]
    assert plain["micro"] == described["micro"] != found["micro"]
    change = found["micro"]["f1"] - plain["micro"]["f1"]
    assert plain["difference"]["f1"] == pytest.approx(change, abs=1e-6)
    assert 0 < plain["difference"]["p"] <= 1
    assert "seen" not in found and all("seen" not in one for one in found["labels"])


def test_mean_of_corpora():
    same = np.array([[1, 2, 2]] * 5)  # F1 of 0.5 whatever is drawn
    mixed = np.array([[1, 1, 1]] * 10 + [[0, 1, 1]] * 10)
    assert mean_f1([same, same]) == {"f1": 0.5, "interval": (0.5, 0.5)}
    found = mean_f1([same, mixed, np.array([[2, 2, 2]])])
    assert found["f1"] == pytest.approx(2 / 3)
    low, high = found["interval"]
    # Of 20 fair draws, a third counts: 1.96 · sqrt(0.25 / 20) / 3 = 0.073.
    assert low == pytest.approx(2 / 3 - 0.073, abs=0.02)
    assert high == pytest.approx(2 / 3 + 0.073, abs=0.02)


# --- Order of labels --------------------------------------------------------------------------


def test_order_of_labels(ner: DiffusionNER, corpora):
    corpus = corpora["science"]
    found = check_orders(ner, corpus.sentences, corpus.labels, lambda *_: None)
    expected = sum(map(len, ner.predict_tokens(WORDS, labels=corpus.labels)))
    assert found == {
        "orders": 10, "sentences": 3, "labels": len(corpus.labels), "entities": expected,
        "identical": True,
    }  # fmt: skip


def test_a_model_that_depends_on_the_order_is_found_out(corpora):
    class First:
        """Scores what it finds by the first label."""

        def predict_tokens(self, words: list[list[str]], labels: list[str]) -> list[Entities]:
            entity = Entity(0, 1, "person", len(labels[0]) / 100, words[0][0])
            return [Entities([entity]) for _ in words]

    corpus = corpora["science"]
    found = check_orders(First(), corpus.sentences, corpus.labels, lambda *_: None)  # type: ignore[arg-type]
    assert found["identical"] is False and found["entities"] == 3


# --- Whole runs -------------------------------------------------------------------------------


def test_everything_is_written(cli, folder: Path, data: Path, corpora, tmp_path: Path):
    out = tmp_path / "zero.json"
    result = cli(
        "zero-shot", folder, "--data", data, "--passages", data / "passages", "--device", "cpu",
        "--trained-on", data / "train.jsonl.gz", "--out", out, main=main,
    )  # fmt: skip
    assert result.status == 0, result.err
    record = json.loads(out.read_text())
    assert record["model"] == "model" and record["first"] is None
    assert record["trained_on"]["labels"] == 3
    assert record["settings"]["inference"]["steps"] == 1
    assert record["machine"]["threads"] == torch.get_num_threads()
    assert list(record["corpora"]) == [*DOMAINS, "passages"]
    for name, one in record["corpora"].items():
        assert one["fingerprint"] == fingerprint(corpora[name].sentences).to_dict()
        assert one["without_denoising"]["difference"]["p"] > 0
        assert one["seen"]["gold"] + one["unseen"]["gold"] == one["micro"]["gold"]
    assert record["corpora"]["ai"]["file"].endswith("crossner-ai/test.jsonl")
    passages = {one["label"]: one for one in record["corpora"]["passages"]["labels"]}
    assert {name: one["gold"] for name, one in passages.items()} == {
        "Country": 0, "person": 1, "shop": 1, "star": 0,
    }  # fmt: skip
    assert [name for name, one in passages.items() if one["seen"]] == ["Country"]

    together, domains = record["crossner"], [record["corpora"][domain] for domain in DOMAINS]
    for key, of in (
        ("mean", lambda one: one),
        ("mean_without_denoising", lambda one: one["without_denoising"]),
        ("mean_other", lambda one: one["wordings"]["other"]),
        ("mean_described", lambda one: one["wordings"]["described"]),
    ):
        expected = np.mean([of(one)["micro"]["f1"] for one in domains])
        assert together[key]["f1"] == pytest.approx(expected, abs=1e-6)
    assert together["mean_without_denoising"]["f1"] > together["mean"]["f1"]
    assert together["seen"]["gold"] == sum(one["seen"]["gold"] for one in domains) > 0

    assert record["label_order"]["identical"] and record["label_order"]["entities"] > 0
    assert record["label_order"]["labels"] == len(LABELS)
    speeds = record["speed"]
    assert [(one["labels"], one["frozen"]) for one in speeds] == [
        (1, False), (5, False), (20, False), (50, False), (5, True), (20, True),
    ]  # fmt: skip
    assert all(len(one["words_per_second"]["values"]) == measuring.REPEATS for one in speeds)
    assert {one["texts"] for one in speeds} == {3}  # 15 sentences
    assert {one["words"] for one in speeds} == {5 * sum(map(len, WORDS))}
    fastest = max(one["words_per_second"]["median"] for one in speeds)
    for one in speeds:
        assert one["of_fastest"] == pytest.approx(one["words_per_second"]["median"] / fastest)
    for title in ("strict: model", "Denoising", "seen in training or not", "Wording", "20, frozen"):
        assert title in result.out
    assert "38 labels in 10 orders, 15 sentences" in result.out
    assert "identical entities and scores: yes" in result.out


def test_the_first_sentences_only(data: Path):
    corpora = read_corpora(data, data / "passages", 2)
    assert [len(one.sentences) for one in corpora] == [2] * 5 + [1]
    assert corpora[0].labels == names_of("ai"), "also those that do not occur in them"


def test_a_quick_look(cli, ner: DiffusionNER, data: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(measuring, "ORDERS", 2)
    monkeypatch.setattr(measuring, "REPEATS", 1)
    monkeypatch.setattr(measuring, "TIMED_LABELS", (1,))
    monkeypatch.setattr(measuring, "FROZEN_LABELS", ())
    ner.save_pretrained(tmp_path / "still")
    result = cli(
        "zero-shot", tmp_path / "still", "--data", data, "--passages", data / "passages",
        "--first", 1, main=main,
    )  # fmt: skip
    assert result.status == 0, result.err
    assert "Zero-shot" in result.out and "2 orders, 5 sentences" in result.out
    assert "Denoising" not in result.out and "seen" not in result.out


def test_labels_of_the_model_are_fixed(refused, encoder_folder: Path, data: Path, tmp_path: Path):
    lively_model(encoder_folder, "encoder.max_subwords=128").save_pretrained(tmp_path / "fixed")
    given = ("--data", data, "--passages", data / "passages")
    message = refused("zero-shot", tmp_path / "fixed", *given, main=main)
    assert "fixed (FAC, GPE, PER)" in message and "a model with open labels" in message


def test_data_that_cannot_be_used(refused, folder: Path, data: Path, tmp_path: Path):
    message = refused("zero-shot", folder, "--data", tmp_path / "nowhere", main=main)
    assert f"{tmp_path}/nowhere/crossner-ai/test.jsonl: no such file" in message
    given = ("--data", data, "--passages", tmp_path / "none")
    assert f"{tmp_path}/none: no such file" in refused("zero-shot", folder, *given, main=main)
    given = ("--data", data, "--passages", data / "passages", "--trained-on", tmp_path / "no.jsonl")
    assert "no.jsonl: no such file" in refused("zero-shot", folder, *given, main=main)
    target = tmp_path / "crossner-ai" / "test.jsonl"
    target.parent.mkdir()
    formats.write(target, [Sentence(["Lisp"], [Span(0, 1, "language")])])
    message = refused("zero-shot", folder, "--data", tmp_path, main=main)
    assert "test.jsonl:1: 'language' is no label of CrossNER's ai" in message
    message = refused("zero-shot", folder, "--data", data, "--out", tmp_path, main=main)
    assert "is not a regular file" in message
