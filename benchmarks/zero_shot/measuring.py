"""Everything that `python -m benchmarks zero-shot` measures, as one record."""

from __future__ import annotations

import datetime
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import machine, sample
from benchmarks.timing import Summary, interleave
from benchmarks.zero_shot.crossner import (
    DOMAINS,
    corpus_file,
    labels_of,
    read_domain,
    relabel,
    rewordings,
)
from diffusionner import DiffusionNER, formats
from diffusionner.cli.options import ProgressCallback
from diffusionner.corpus import Sentence
from diffusionner.data.fingerprint import fingerprint
from diffusionner.evaluation import Report, evaluate
from diffusionner.evaluation.counts import Counts, IntArray, row_to_dict
from diffusionner.evaluation.report import PredictionScores
from diffusionner.evaluation.significance import difference, interval
from diffusionner.inference.open_labels import asked_labels
from diffusionner.label_set import DEFAULT_LABELS, SEPARATOR, label_text

RESAMPLES, SEED = 1000, 0
CANDIDATES = 0.05  # minimum score of what counts as a candidate
ORDERS, ORDERED_SENTENCES = 10, 50
TIMED_SENTENCES, PER_TEXT, REPEATS = 200, 5, 3
TIMED_LABELS, FROZEN_LABELS = (1, 5, 20, 50), (5, 20)
Save = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Corpus:
    """Sentences whose labels are names in words."""

    name: str
    file: Path
    sentences: list[Sentence]
    labels: list[str]
    # Other texts for the labels, by the kind of wording; CrossNER only.
    reworded: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """Reports of a corpus under several settings."""

    corpus: Corpus
    report: Report  # with a comparison to steps=0 if the model denoises
    candidates: PredictionScores
    reworded: dict[str, Report]

    @property
    def rows(self) -> IntArray:
        return self.report.measure_counts["micro"]


def read_corpora(data: Path, passages: Path, first: int | None) -> list[Corpus]:
    """Read the first sentences of CrossNER's domains, then those of the passages."""
    corpora = []
    for domain in DOMAINS:
        names = [label.name for label in labels_of(domain)]
        sentences = read_domain(data, domain)[:first]
        file = corpus_file(data, domain)
        corpora.append(Corpus(domain, file, sentences, names, rewordings(domain)))
    sentences = formats.read(passages)[:first]
    corpora.append(Corpus("passages", passages, sentences, asked_labels(sentences)))
    return corpora


def bare_name(label: str) -> str:
    """Return a label without its description and case."""
    return label_text(label).partition(SEPARATOR)[0].casefold()


def trained_names(sentences: Iterable[Sentence]) -> set[str]:
    """Return the bare names of all labels of a corpus, also of those that were never found."""
    labels: set[str] = set()
    for sentence in sentences:
        labels.update(sentence.types or (), (span.label for span in sentence.entities))
    return set(map(bare_name, labels))


def run(
    ner: DiffusionNER,
    corpora: Sequence[Corpus],
    known: set[str] | None,
    device: str,
    progress: ProgressCallback,
    save: Save,
) -> dict[str, Any]:
    """Measure everything; return the record for the JSON file.

    known: bare names of the labels that the model was trained on. The record is saved after every
    corpus, so that an interrupted run leaves its results.
    """
    calibration = ner.calibration
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "settings": ner.settings.to_dict(),
        "threshold": None if calibration is None else calibration.threshold,
        "device": device,
        "machine": {**machine.describe(device), "load": machine.load()},
        "resamples": RESAMPLES,
        "seed": SEED,
        "corpora": {},
    }
    crossner = []
    for corpus in corpora:
        one = measure_corpus(ner, corpus, progress)
        record["corpora"][corpus.name] = describe(one, known)
        save(record)
        if corpus.reworded:
            crossner.append(one)
    record["crossner"] = summarise(crossner, known)
    sentences = [sentence for one in crossner for sentence in one.corpus.sentences]
    names = [label for one in crossner for label in one.corpus.labels]
    record["label_order"] = check_orders(ner, sentences, list(dict.fromkeys(names)), progress)
    save(record)
    others = [text for one in crossner for text in one.corpus.reworded["other"].values()]
    labels = list(dict.fromkeys([*DEFAULT_LABELS, *names, *others]))
    record["speed"] = measure_speed(ner, sentences, labels, device, progress)
    save(record)
    return record


def measure_corpus(ner: DiffusionNER, corpus: Corpus, progress: ProgressCallback) -> Measured:
    def score(what: str, sentences: Sequence[Sentence], **options: Any) -> Report:
        tell = partial(progress, f"{corpus.name}{what}")
        return evaluate(ner, sentences, resamples=RESAMPLES, progress=tell, **options)

    denoises = ner.settings.inference.steps > 0 and ner.settings.can_skip_denoising
    return Measured(
        corpus,
        score("", corpus.sentences, compare={"steps": 0} if denoises else None),
        scores_of(score(", candidates", corpus.sentences, threshold=CANDIDATES)),
        {
            wording: score(f", {wording}", relabel(corpus.sentences, texts))
            for wording, texts in corpus.reworded.items()
        },
    )


def scores_of(report: Report) -> PredictionScores:
    assert report.prediction_scores is not None  # of a model, they are known
    return report.prediction_scores


def describe(one: Measured, known: set[str] | None) -> dict[str, Any]:
    """Return the figures of one corpus."""
    report, corpus = one.report, one.corpus
    found: dict[str, Any] = {
        "file": str(corpus.file),
        "fingerprint": fingerprint(corpus.sentences).to_dict(),
        "micro": score_rows(one.rows),
        "calibration": {
            "own_threshold": calibration_error(scores_of(report)),
            "candidates": calibration_error(one.candidates),
        },
        "without_denoising": None,
        "wordings": {},
        "labels": [describe_label(one, label, known) for label in corpus.labels],
    }
    if report.other is not None:
        found["without_denoising"] = {
            "micro": score_rows(report.other.report.measure_counts["micro"]),
            "difference": asdict(report.other.differences["micro"]),
        }
    for wording, other in one.reworded.items():
        rows = other.measure_counts["micro"]
        change = difference(rows, one.rows, RESAMPLES, SEED)
        found["wordings"][wording] = {"micro": score_rows(rows), "difference": asdict(change)}
    if known is not None:
        found |= {name: score_rows(rows) for name, rows in split_rows(one, known).items()}
    return found


def describe_label(one: Measured, label: str, known: set[str] | None) -> dict[str, Any]:
    """Return the figures of one label, and its F1 in other wordings."""
    nothing = Counts(0, 0, 0)
    found: dict[str, Any] = {"label": label}
    if known is not None:
        found["seen"] = bare_name(label) in known
    found |= row_to_dict(one.report.per_type.get(label, nothing))
    for wording, report in one.reworded.items():
        text = one.corpus.reworded[wording][label]
        found[wording] = {"text": text, "f1": report.per_type.get(text, nothing).f1}
    return found


def summarise(crossner: Sequence[Measured], known: set[str] | None) -> dict[str, Any]:
    """Return the mean F1 of the domains, and the scores of all labels, seen or not, together."""
    found: dict[str, Any] = {"mean": mean_f1([one.rows for one in crossner])}
    plain = [one.report.other for one in crossner if one.report.other is not None]
    if plain:
        found["mean_without_denoising"] = mean_f1(
            [other.report.measure_counts["micro"] for other in plain]
        )
    for wording in crossner[0].reworded:
        reports = (one.reworded[wording] for one in crossner)
        found[f"mean_{wording}"] = mean_f1([each.measure_counts["micro"] for each in reports])
    if known is not None:
        parts = [split_rows(one, known) for one in crossner]
        for name in parts[0]:
            found[name] = score_rows(np.concatenate([part[name] for part in parts]))
    return found


def split_rows(one: Measured, known: set[str]) -> dict[str, IntArray]:
    """Return the counts of each sentence, of seen and of unseen labels: [sentences, 3] each."""
    rows = {name: np.zeros_like(one.rows) for name in ("seen", "unseen")}
    for label, counts in one.report.type_counts.items():
        rows["seen" if bare_name(label) in known else "unseen"] += counts
    return rows


def score_rows(rows: IntArray) -> dict[str, Any]:
    """Return the scores of counts [sentences, 3], with the 95% interval of F1."""
    counts = Counts(*rows.sum(axis=0).tolist())
    return {**row_to_dict(counts), "interval": interval(rows, RESAMPLES, SEED).f1}


def mean_f1(rows: Sequence[IntArray]) -> dict[str, Any]:
    """Return the mean F1 of several corpora, with its interval over sentences of each."""
    generator = np.random.default_rng(SEED)
    resampled = []
    for each in rows:
        chosen = generator.multinomial(len(each), np.full(len(each), 1 / len(each)), RESAMPLES)
        correct, predicted, gold = (chosen @ each).T
        resampled.append(2 * correct / np.maximum(predicted + gold, 1))
    low, high = np.quantile(np.mean(resampled, axis=0), (0.025, 0.975)).tolist()
    f1 = fmean(Counts(*each.sum(axis=0).tolist()).f1 for each in rows)
    return {"f1": f1, "interval": (low, high)}


def calibration_error(scores: PredictionScores) -> dict[str, Any]:
    return {"error": scores.calibration_error, "entities": len(scores.scores)}


def check_orders(
    ner: DiffusionNER,
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Ask for the same labels in random orders; entities and scores must be identical."""
    words = [sentence.words for sentence in sample.spread(sentences, ORDERED_SENTENCES)]
    generator = random.Random(SEED)
    found = []
    for turn in range(ORDERS):
        progress("orders of labels", turn, ORDERS)
        shuffled = generator.sample(labels, len(labels))
        found.append(ner.predict_tokens(words, labels=shuffled))
    return {
        "orders": ORDERS,
        "sentences": len(words),
        "labels": len(labels),
        "entities": sum(map(len, found[0])),
        "identical": all(one == found[0] for one in found),
    }


def measure_speed(
    ner: DiffusionNER,
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    device: str,
    progress: ProgressCallback,
) -> list[dict[str, Any]]:
    """Measure words per second with more and more labels, read from words or frozen."""
    chosen = sample.spread(sentences, TIMED_SENTENCES)
    grouped = [replace(one, doc=str(i // PER_TEXT)) for i, one in enumerate(chosen)]
    texts = sample.texts(grouped)
    words = sum(len(sentence.words) for sentence in chosen)
    models = {(count, False): ner.for_labels(labels[:count]) for count in TIMED_LABELS}
    with tempfile.TemporaryDirectory() as scratch:
        for count in FROZEN_LABELS if hasattr(ner.engine, "network") else ():  # not ONNX
            # Saved and loaded, as it would be used: on a GPU, it then runs there in bf16.
            folder = Path(scratch) / str(count)
            ner.freeze(labels[:count]).save_pretrained(folder)
            models[count, True] = DiffusionNER.from_pretrained(folder, device)
    tasks = {key: partial(read_all, model, texts) for key, model in models.items()}
    seconds = interleave(tasks, REPEATS, device, progress, "speed")
    speeds = {key: Summary.of([words / s for s in taken]) for key, taken in seconds.items()}
    fastest = max(speed.median for speed in speeds.values())
    return [
        {
            "labels": count,
            "frozen": frozen,
            "texts": len(texts),
            "words": words,
            "words_per_second": speed.to_dict(),
            "of_fastest": speed.median / fastest,
        }
        for (count, frozen), speed in speeds.items()
    ]


def read_all(ner: DiffusionNER, texts: Sequence[str]) -> int:
    """Return the number of entities."""
    return sum(map(len, ner.pipe(texts)))
