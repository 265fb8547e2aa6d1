"""`python -m benchmarks beliefs`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from diffusionner import DiffusionNER, formats
from diffusionner.batching import EncodedCorpus
from diffusionner.diffusion import BeliefDenoiser, Schedule
from diffusionner.errors import SettingsError
from diffusionner.evaluation import score_sentences
from diffusionner.evaluation.significance import difference
from diffusionner.inference.decoding import ScoreRule, entities_by_sentence, to_spans
from diffusionner.inference.stream import PredictionTask
from diffusionner.storage.beliefs import FITTED, read_beliefs

EVEN = 1.5  # summed probability of a type that is as likely as not
STEPS = (1, 2, 5)
RESAMPLES = 10_000


def beliefs(
    data: Annotated[Path, typer.Option(help="Corpus to score, which the model does not know.")],
    model: Annotated[str, typer.Option(help="A model with decoder.initializer=types.")] = "bio",
    weights: Annotated[Path, typer.Option(help="Belief network to add.")] = FITTED,
) -> None:
    """Add a fitted belief network to a trained model and compare it with the initializer alone.

    The model stays as it is. A candidate is an entity if some type is more likely than not, so
    nothing is tuned. Intervals and p resample documents.
    """
    # Imports the trainer, whose dependencies the other commands do without.
    from reproduce.cross_fitting import read_candidates, sum_by_document

    gold = formats.read(data)
    ner = DiffusionNER.from_pretrained(model, device="cpu")
    if not ner.settings.denoises or ner.settings.decoder.initializer != "types":
        raise SettingsError(f"{model} has no initializer of types; choose another model")
    corpus = EncodedCorpus(gold, ner.subwords, ner.settings.encoder)
    task = PredictionTask(corpus, range(len(gold)))
    task.candidates.append(read_candidates(ner, gold))
    diffusion = ner.settings.diffusion
    denoiser = BeliefDenoiser(
        read_beliefs(weights), Schedule(diffusion.schedule, diffusion.timesteps)
    )
    inference = replace(ner.settings.inference, phi=EVEN, threshold=None)
    rule = ScoreRule(inference, ner.labels, None)

    def counts(steps: int) -> np.ndarray:
        columns = task.denoise(denoiser, steps, rule)
        found = entities_by_sentence([columns], task.sentences, inference.overlap)
        report = score_sentences(gold, [to_spans(entities, ner.labels) for entities in found])
        return sum_by_document(report, gold)

    alone = counts(0)
    print(f"initializer alone: {_f1(alone):.2f}")
    for steps in STEPS:
        denoised = counts(steps)
        change = difference(denoised, alone, RESAMPLES, 0)
        low, high = (100 * bound for bound in change.interval)
        interval = f"{100 * change.f1:+.2f} ({low:+.2f} to {high:+.2f})"
        print(f"γ = {steps}: {_f1(denoised):.2f}, {interval}, p = {change.p:.4f}")


def _f1(counts: np.ndarray) -> float:
    correct, predicted, gold = counts.sum(0)
    return float(200 * correct / max(1, predicted + gold))
