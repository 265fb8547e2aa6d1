"""`python -m benchmarks beliefs`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import numpy as np
import torch
import typer

from diffusionner import DiffusionNER, formats
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.errors import SettingsError
from diffusionner.evaluation import score_sentences
from diffusionner.evaluation.significance import difference
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model.beliefs import BeliefNetwork
from diffusionner.model.network import DenoisingNetwork
from diffusionner.storage.registry import DEFAULT
from diffusionner.training.beliefs import MASKING, fit_beliefs, labelled_candidates
from diffusionner.training.masking import SubwordMasking

EVEN = 1.5  # summed probability of a type that is as likely as not
STEPS = (1, 2, 5)


def beliefs(
    train: Annotated[Path, typer.Option(help="The corpus that the model was trained on.")],
    data: Annotated[Path, typer.Option(help="Corpus to score, which the model does not know.")],
    model: Annotated[str, typer.Option(help="A model with decoder.initializer=types.")] = DEFAULT,
    seeds: Annotated[int, typer.Option(help="Belief networks to train.")] = 3,
    readings: Annotated[int, typer.Option(help="Times to read the training corpus.")] = 2,
    sentences: Annotated[int | None, typer.Option(help="Read only the first ones.")] = None,
) -> None:
    """Add a belief network to a trained model and compare it with the initializer alone.

    The rest of the model stays as it is. A candidate is an entity if some type is more likely than
    not, so nothing is tuned. The difference has a 95% paired bootstrap interval over sentences,
    with the counts of all seeds added up.
    """
    corpus, gold = formats.read(train)[:sentences], formats.read(data)
    ner = DiffusionNER.from_pretrained(model, device="cpu")
    network = ner.network
    if not isinstance(network, DenoisingNetwork) or ner.settings.decoder.initializer != "types":
        raise SettingsError(f"{model} has no initializer of types; choose another model")
    encoded = EncodedCorpus(corpus, ner.subwords, ner.settings.encoder)
    assert ner.tokenizer is not None
    masking = SubwordMasking.for_tokenizer(ner.subwords, MASKING)
    network.beliefs = BeliefNetwork(len(ner.labels))
    ner.settings = replace(ner.settings, decoder=replace(ner.settings.decoder, beliefs=True))
    inference = ner.settings.inference
    documents = labelled_candidates(network, encoded, corpus, masking, inference, 0, readings)
    print(f"{sum(d.types.size for d in documents):,} candidates in {len(documents):,} documents")
    ner.engine = TorchEngine(network)
    alone = _counts(ner, gold, 0)
    found: dict[int, list[np.ndarray]] = {steps: [] for steps in STEPS}
    for seed in range(seeds):
        torch.manual_seed(seed)
        network.beliefs = BeliefNetwork(len(ner.labels))
        fit_beliefs(network.beliefs, documents, network.schedule, seed)
        ner.engine = TorchEngine(network)
        for steps in STEPS:
            found[steps].append(_counts(ner, gold, steps))
    print(f"initializer alone: {_f1(alone):.2f}")
    for steps, counts in found.items():
        each = [_f1(one) for one in counts]
        change = difference(np.sum(counts, axis=0), alone * seeds, 2000, 0)
        low, high = (100 * bound for bound in change.interval)
        print(
            f"γ = {steps}: {fmean(each):.2f} ({min(each):.2f} to {max(each):.2f}), "
            f"{100 * change.f1:+.2f} ({low:+.2f} to {high:+.2f}), p = {change.p:.4f}"
        )


def _counts(ner: DiffusionNER, gold: list[Sentence], steps: int) -> np.ndarray:
    """Return the correct, predicted and gold entities of each sentence: [sentences, 3]."""
    found = ner.predict_sentences(gold, steps=steps, phi=EVEN)
    return score_sentences(gold, found).measure_counts["micro"]


def _f1(counts: np.ndarray) -> float:
    correct, predicted, gold = counts.sum(0)
    return float(200 * correct / max(1, predicted + gold))
