"""`python -m benchmarks refine`"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.coarse import FINE, coarse
from benchmarks.compare_spacy import load_spacy
from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Entity, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.evaluation.scorer import score

SPACY_LABELS = {"PERSON": "PER", "ORG": "ORG", "LOC": "LOC", "GPE": "LOC", "FAC": "LOC"}
JITTER = 3  # words at most
WRONG_LABELS = 0.2  # share
Spans = Sequence[Sequence[Span]]  # by sentence


def spacy_spans(folder: str, sentences: Sequence[Sentence]) -> list[list[Span]]:
    """Return the entities of a spaCy pipeline; labels without a counterpart are left out."""
    from spacy.tokens import Doc

    nlp = load_spacy(folder)
    docs = nlp.pipe((Doc(nlp.vocab, words=s.words) for s in sentences), batch_size=256)
    return [
        [Span(e.start, e.end, SPACY_LABELS[e.label_]) for e in doc.ents if e.label_ in SPACY_LABELS]
        for doc in docs
    ]


def jittered(sentences: Sequence[Sentence], labels: Sequence[str], seed: int) -> list[list[Span]]:
    """Move one or both boundaries of each gold entity, and change some of the labels.

    A span keeps at least one word of its entity. One that can move nowhere stays.
    """
    generator = random.Random(seed)
    steps = range(-JITTER, JITTER + 1)
    moves = [(left, right) for left in steps for right in steps if left or right]

    def jitter(span: Span, words: int) -> Span:
        start, end, label = span
        places = [(start + left, end + right) for left, right in moves]
        possible = [(a, b) for a, b in places if 0 <= a < b <= words and a < end and b > start]
        start, end = generator.choice(possible or [(start, end)])
        if generator.random() < WRONG_LABELS:
            label = generator.choice([other for other in labels if other != label])
        return Span(start, end, label)

    return [[jitter(span, len(s.words)) for span in s.entities] for s in sentences]


def dictionary_matches(
    sentences: Sequence[Sentence], corpora: Sequence[Path], labels: Sequence[str]
) -> list[list[Span]]:
    """Return the longest matches of the entities of other corpora, each with its usual label."""
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for sentence in (s for path in corpora for s in formats.read(path)):
        for start, end, label in sentence.entities:
            counts[tuple(sentence.words[start:end])][label] += 1
    usual = {words: count.most_common(1)[0][0] for words, count in counts.items()}
    known = {words: label for words, label in usual.items() if label in labels}
    longest = max(map(len, known), default=0)
    found = []
    for words in (s.words for s in sentences):
        matches, at = [], 0
        while at < len(words):
            sizes = range(min(longest, len(words) - at), 0, -1)
            size = next((n for n in sizes if tuple(words[at : at + n]) in known), 0)
            if size:
                matches.append(Span(at, at + size, known[tuple(words[at : at + size])]))
            at += size or 1
        found.append(matches)
    return found


def _as_type(span: Span, types: Sequence[str]) -> Span:
    return span if span.label in types else span._replace(label=FINE[span.label])


def refine(
    data: Annotated[Path, typer.Option(help="Corpus with gold entities, in any format.")],
    model: Annotated[str, typer.Option(help="Model that refines.")] = "en",
    spacy: Annotated[str | None, typer.Option(help="Folder of a spaCy pipeline.")] = None,
    dictionary: Annotated[
        list[Path] | None, typer.Option(help="Corpus whose entities make a dictionary. Repeatable.")
    ] = None,
    steps: Annotated[list[int] | None, typer.Option(help="Denoising steps. Repeatable.")] = None,
    timestep: Annotated[int | None, typer.Option(help="Timestep of the given spans.")] = None,
    sentences: Annotated[int | None, typer.Option(help="Only the first N sentences.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the jitter.")] = 0,
) -> None:
    """Measure what refining the spans of others is worth, in strict F1.

    Sources of spans are spaCy's NER (GPE and FAC count as LOC, other labels are left out), gold
    entities with boundaries moved by one to three words and a fifth of the labels wrong, and the
    longest matches of a dictionary. Only labels of the corpus are scored. `spacy --help` says where
    to get spaCy's en_core_web_md.
    """
    ner = DiffusionNER.from_pretrained(model, device="cpu")
    corpus = formats.read(data)[:sentences]
    known = set(map(coarse, ner.labels))
    labels = sorted({span.label for s in corpus for span in s.entities} & known)
    if len(labels) < 2:
        raise DataError(f"{data}: fewer than two labels that the model knows: {', '.join(labels)}")
    gold = [[e for e in s.entities if e.label in labels] for s in corpus]

    def f1(found: Sequence[Sequence[Span | Entity]]) -> float:
        named = ([Span(e[0], e[1], coarse(e[2])) for e in entities] for entities in found)
        counted = [[e for e in entities if e.label in labels] for entities in named]
        return 100 * score(gold, counted).micro.f1

    sources: dict[str, Callable[[], Spans]] = {}
    if spacy is not None:
        sources["spaCy"] = lambda: spacy_spans(spacy, corpus)
    sources["jittered gold"] = lambda: jittered(
        [Sentence(s.words, own) for s, own in zip(corpus, gold, strict=True)], labels, seed
    )
    if dictionary:
        sources["dictionary"] = lambda: dictionary_matches(corpus, dictionary, labels)
    own = f1(ner.predict_tokens([s.words for s in corpus], [s.doc for s in corpus]))
    print(f"{data}: {len(corpus)} sentences, {sum(map(len, gold))} entities")
    print(f"{model} alone: {own:.2f}\n")
    print("| spans | F1 | steps | refined, only | refined, together | outcomes with only |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, make in sources.items():
        given = make()
        for number in steps or (None,):
            items = [
                (s.words, [_as_type(span, ner.labels) for span in spans], s.doc)
                for s, spans in zip(corpus, given, strict=True)
            ]
            alone, together = (
                list(ner.refine_pipe(items, only, steps=number, timestep=timestep))
                for only in (True, False)
            )
            changes = Counter(outcome.change for one in alone for outcome in one.outcomes)
            listed = ", ".join(f"{change} {count}" for change, count in changes.most_common())
            scores = [f1([one.entities for one in refined]) for refined in (alone, together)]
            print(
                f"| {name} | {f1(given):.2f} | {'default' if number is None else number} | "
                f"{scores[0]:.2f} | {scores[1]:.2f} | {listed} |",
                flush=True,
            )
