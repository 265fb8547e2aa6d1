"""Belief networks, fitted on some corpora and measured on them and on others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from diffusionner import DiffusionNER
from diffusionner.batching import EncodedCorpus
from diffusionner.diffusion import BeliefDenoiser, Schedule
from diffusionner.errors import SettingsError, nearest
from diffusionner.evaluation import score_sentences
from diffusionner.evaluation.significance import difference
from diffusionner.inference.decoding import (
    DecodedEntity,
    ScoreRule,
    entities_by_sentence,
    to_spans,
)
from diffusionner.inference.stream import PredictionTask
from diffusionner.model.beliefs import BeliefNetwork
from diffusionner.settings import InferenceSettings
from diffusionner.training.selection import evaluate_on_dev
from reproduce.belief_fitting import LabelledSet, fit_beliefs, label_candidates
from reproduce.corpora import CORPORA
from reproduce.cross_fitting import (
    PARTS,
    CorpusSplits,
    FoldRun,
    execute_all,
    first_documents,
    number_documents,
    sum_by_document,
)
from reproduce.sources import SPLITS, Sources, load_preset

RESAMPLES = 10_000
STEPS = (1, 2, 5)


class CrossFittedCorpus:
    """A corpus with the candidates to fit on, and those of dev and test to measure on."""

    def __init__(self, runs: Sequence[FoldRun]) -> None:
        whole, *halves = runs
        self.splits = splits = whole.corpus
        diffusion = whole.settings.diffusion
        self.schedule = Schedule(diffusion.schedule, diffusion.timesteps)
        self.inference = whole.settings.inference
        ner = DiffusionNER.from_pretrained(whole.model, device="cpu")
        self.labels = ner.labels
        self.documents: list[LabelledSet] = []
        for run in halves:
            ((name, sentences),) = splits.read(run.part).items()
            corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)
            self.documents += label_candidates(run.candidates(name), corpus, sentences, self.labels)
        self.tasks = {}
        for name, sentences in splits.read("whole").items():
            corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)
            self.tasks[name] = PredictionTask(corpus, range(len(sentences)))
            self.tasks[name].candidates.append(whole.candidates(name))

    def counts(self, denoiser: BeliefDenoiser, steps: int, split: str) -> np.ndarray:
        """Return correct, predicted and gold entities of each document: [documents, 3].

        Scores and thresholds for test are fitted on dev. Those for every other document of dev are
        fitted on the rest of dev.
        """
        sentences = self.splits.read("whole")[split]
        every = np.arange(len(sentences))
        folds = [(np.arange(len(self.splits.dev)), every)]
        if split == "dev":
            odd = number_documents(sentences) % 2 == 1
            folds = [(every[odd], every[~odd]), (every[~odd], every[odd])]
        found: list[list[DecodedEntity]] = [[] for _ in sentences]
        for fit_on, scored in folds:
            for i, entities in zip(
                scored.tolist(), self._predict(denoiser, steps, split, fit_on, scored), strict=True
            ):
                found[i] = entities
        report = score_sentences(sentences, [to_spans(one, self.labels) for one in found])
        return sum_by_document(report, sentences)

    def _predict(
        self,
        denoiser: BeliefDenoiser,
        steps: int,
        split: str,
        fit_on: np.ndarray,
        scored: np.ndarray,
    ) -> list[list[DecodedEntity]]:
        """Return entities of sentences of a split, with scores fitted on sentences of dev."""

        def decode(
            name: str, chosen: np.ndarray, inference: InferenceSettings, rule: ScoreRule
        ) -> list[list[DecodedEntity]]:
            task = self.tasks[name]
            policy = rule.flat_policy if inference.overlap == "flat" else inference.overlap
            columns = task.denoise(denoiser, steps, rule)
            found = entities_by_sentence([columns], task.sentences, policy)
            return [found[i] for i in chosen.tolist()]

        fitted = evaluate_on_dev(
            lambda inference, rule: decode("dev", fit_on, inference, rule),
            [self.splits.dev[i] for i in fit_on.tolist()],
            self.labels,
            self.inference,
            tune=True,
        )
        rule = ScoreRule(fitted.inference, self.labels, fitted.calibration)
        return decode(split, scored, fitted.inference, rule)


def fit_and_measure(
    corpora: Sequence[str],
    sources: Sources,
    encoder: str,
    documents: int | None,
    seeds: int,
    fits: int,
    parallel: int,
    split: str,
) -> tuple[list[str], BeliefNetwork]:
    """Execute the missing runs; return a table and a network fitted on all corpora."""
    corpora = list(dict.fromkeys(corpora))
    groups = {
        (name, seed): _runs(name, seed, documents, sources, encoder)
        for name in corpora
        for seed in range(seeds)
    }
    execute_all([run for group in groups.values() for run in group], parallel)
    fitted = {key: CrossFittedCorpus(group) for key, group in groups.items()}
    lines = [
        _line("corpus", "fitted on", "γ", "F1", "difference", "95% interval", "p"),
        _line(*["---"] * 7),
    ]
    for name in corpora:
        lines += _measure(name, fitted, split, fits)
    everything = [document for one in fitted.values() for document in one.documents]
    return lines, fit_beliefs(everything, next(iter(fitted.values())).schedule, 0)


def _runs(
    name: str, seed: int, documents: int | None, sources: Sources, encoder: str
) -> list[FoldRun]:
    if name not in CORPORA:
        raise SettingsError(f"unknown corpus '{name}'; {nearest(name, CORPORA)}")
    if missing := sources.missing_files(name):
        raise SettingsError(f"{CORPORA[name].title}: no {missing[0]}; see --data and --configs")
    settings = load_preset(sources.preset(name), sources.overrides)
    if settings.decoder.initializer != "types":
        raise SettingsError(
            f"beliefs need decoder.initializer=types, not {settings.decoder.initializer}"
        )
    settings = replace(
        settings,
        encoder=replace(settings.encoder, name=encoder),
        training=replace(settings.training, seed=seed),
    )
    train, dev, test = (sources.sentences(name, split) for split in SPLITS)
    splits = CorpusSplits(name, first_documents(train, documents), dev, test)
    splits.check()
    return [FoldRun(splits, part, settings, sources.work) for part in PARTS]


def _measure(
    name: str,
    fitted: dict[tuple[str, int], CrossFittedCorpus],
    split: str,
    fits: int,
) -> list[str]:
    """Return the lines of a corpus."""
    counts: dict[tuple[str, int], list[np.ndarray]] = {}
    alone: list[np.ndarray] = []
    for (own, seed), corpus in fitted.items():
        if own != name:
            continue
        others = [
            document
            for key, other in fitted.items()
            if key[0] != name and key[1] == seed
            for document in other.documents
        ]
        untrained = BeliefDenoiser(BeliefNetwork().weights(), corpus.schedule)
        alone += [corpus.counts(untrained, 0, split)] * fits
        for fit in range(fits):
            for source, documents in (("this corpus", corpus.documents), ("other corpora", others)):
                if not documents:
                    continue
                network = fit_beliefs(documents, corpus.schedule, fit)
                denoiser = BeliefDenoiser(network.weights(), corpus.schedule)
                for steps in STEPS:
                    found = corpus.counts(denoiser, steps, split)
                    counts.setdefault((source, steps), []).append(found)
    title = f"{CORPORA[name].title}, {len(alone[0])} {split} documents"
    lines = [_line(title, "", "0 (initializer alone)", _f1(alone), "", "", "")]
    for (source, steps), each in counts.items():
        change = difference(np.sum(each, axis=0), np.sum(alone, axis=0), RESAMPLES, 0)
        low, high = (100 * bound for bound in change.interval)
        interval = f"{low:+.2f} to {high:+.2f}"
        gain = f"{100 * change.f1:+.2f}"
        lines.append(_line(title, source, str(steps), _f1(each), gain, interval, f"{change.p:.4f}"))
    return lines


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _f1(counts: Iterable[np.ndarray]) -> str:
    """Return the mean F1 and the range."""
    totals = [each.sum(0) for each in counts]
    each = [200 * correct / max(1, predicted + gold) for correct, predicted, gold in totals]
    return f"{fmean(each):.2f} ({min(each):.2f} to {max(each):.2f})"
