"""Models asked for labels: any, read as words, or some of those that a model has."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, cast

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Entities, Sentence, collect_labels
from diffusionner.errors import SettingsError
from diffusionner.inference.decoding import DecodedEntity, ScoreRule
from diffusionner.inference.engine import Engine, OpenEngine
from diffusionner.inference.stream import PredictionTask, predict, separate_documents
from diffusionner.label_set import Labels, LabelSet
from diffusionner.settings import EncoderSettings, InferenceSettings

MAX_VIEWS, MAX_KEPT = 32, 4000  # label sets whose vectors a model keeps, and labels in them
LOOK_AHEAD = 256  # texts among which those with the same labels are read together
_lock = threading.Lock()  # of the kept views


def view(ner: Any, labels: LabelSet) -> Any:
    """Return a `DiffusionNER` asked for labels, sharing its weights."""
    ner = ner.base
    views: dict[LabelSet, Any] = ner._views
    with _lock:
        found = views.pop(labels, None)
    same = found is not None and found.settings is ner.settings
    if not same or found.calibration is not ner.calibration:
        if ner.is_open:
            engine = cast(OpenEngine, ner.engine).bind(labels, ner.subwords)
            found = ner.changed(engine=engine, labels=engine.labels, asked=labels, base=ner)
        else:
            found = ner.changed(asked=labels, base=ner)
    with _lock:
        views[labels] = found  # as the last one used
        while len(views) > MAX_VIEWS or sum(len(one.names) for one in views) > MAX_KEPT:
            del views[next(iter(views))]
    return found


def freeze(ner: Any, labels: LabelSet) -> Any:
    """Return a model whose types are the vectors of these labels."""
    if not ner.is_open:
        raise SettingsError(
            "only a model with open labels can be frozen; this one has fixed labels"
        )
    from torch import nn

    from diffusionner.inference.torch_engine import TorchEngine

    network = copy.deepcopy(ner.network)  # an exported model has none, and says so
    engine = view(ner, labels).engine
    assert isinstance(engine, TorchEngine)
    table = engine.table()
    network.labels = list(labels.names)
    network.table = nn.Parameter(table.to(engine.device, next(network.parameters()).dtype))
    decoder = replace(ner.settings.decoder, types="vectors", type_vectors=table.shape[1])
    settings = replace(ner.settings, decoder=decoder)
    return type(ner)(TorchEngine(network), ner.subwords, settings, ner.calibration)


def pipe(ner: Any, texts: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Entities]:
    """Yield the entities of texts, or of pairs of text and labels, in order."""
    coming = iter(texts)
    first = list(islice(coming, 1))
    everything = chain(first, coming)
    if first and isinstance(first[0], tuple):
        yield from _pipe_pairs(ner, _checked_pairs(everything), options)
    else:
        yield from ner.stream(separate_documents(everything), **options)


def _checked_pairs(pairs: Iterable[Any]) -> Iterator[tuple[str, Labels]]:
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(f"item {number} is no pair of a text and its labels, as the first is")
        if pair[1] is None:
            raise TypeError(f"item {number} has no labels; give each text its own, or none")
        yield pair


def _pipe_pairs(
    ner: Any, pairs: Iterator[tuple[str, Labels]], options: Mapping[str, Any]
) -> Iterator[Entities]:
    """Yield the entities of texts with labels of their own, in order.

    Neighbouring texts with the same labels are read in one batch.
    """
    while waiting := list(islice(pairs, LOOK_AHEAD)):
        members: dict[LabelSet, list[int]] = {}
        for number, (_, labels) in enumerate(waiting):
            members.setdefault(ner.label_set(labels), []).append(number)
        found: dict[int, Entities] = {}
        for asked, numbers in members.items():
            texts = separate_documents([waiting[i][0] for i in numbers])
            results = view(ner, asked).stream(texts, **options)
            found.update(zip(numbers, results, strict=True))
        yield from (found[number] for number in range(len(waiting)))


def asked_labels(sentences: Iterable[Sentence]) -> list[str]:
    """Return all labels that were annotated in a corpus, found or not."""
    sentences = list(sentences)
    listed = {label for types in {s.types for s in sentences} for label in types or ()}
    return sorted(listed.union(collect_labels(sentences)))


def predict_asked(
    engine: Engine,
    subwords: SubwordTokenizer,
    encoder: EncoderSettings,
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    inference: InferenceSettings,
    rule: ScoreRule,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[DecodedEntity]]:
    """Return the entities of each sentence, of the labels that were annotated in it.

    labels: all labels of the corpus, which type ids and the rule refer to.
    """
    index = {label: i for i, label in enumerate(labels)}
    members: dict[tuple[str, ...] | None, list[int]] = {}
    for number, sentence in enumerate(sentences):
        if sentence.types != ():  # something was looked for
            members.setdefault(sentence.types, []).append(number)
    found: list[list[DecodedEntity]] = [[] for _ in sentences]
    done, total = 0, sum(map(len, members.values()))
    for types, numbers in members.items():
        asked = LabelSet.of(types or labels)
        ids = [index[name] for name in asked.names]
        corpus = EncodedCorpus([sentences[i] for i in numbers], subwords, encoder)
        bound = cast(OpenEngine, engine).bind(asked, subwords)
        task = PredictionTask(corpus, range(len(numbers)))
        decoded = predict(bound, task, inference, rule.take(ids))
        for number, entities in zip(numbers, decoded, strict=True):
            found[number] = [e._replace(type_id=ids[e.type_id]) for e in entities]
        done += len(numbers)
        progress(done, total)
    return found
