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
from diffusionner.inference.decoding import ScoreRule, entities_by_sentence, to_spans
from diffusionner.inference.documents import owned_candidates
from diffusionner.inference.engine import Engine
from diffusionner.inference.stream import PredictionTask
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model.beliefs import BeliefNetwork
from diffusionner.model.network import DenoisingNetwork
from diffusionner.settings import InferenceSettings
from diffusionner.training.beliefs import MASKING, fit_beliefs, labelled_candidates
from diffusionner.training.masking import SubwordMasking

EVEN = 1.5  # summed probability of a type that is as likely as not
STEPS = (1, 2, 5)


def beliefs(
    train: Annotated[Path, typer.Option(help="The corpus that the model was trained on.")],
    data: Annotated[Path, typer.Option(help="Corpus to score, which the model does not know.")],
    model: Annotated[str, typer.Option(help="A model with decoder.initializer=types.")] = "bio",
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
    inference = replace(ner.settings.inference, phi=EVEN, threshold=None)
    documents = labelled_candidates(network, encoded, corpus, masking, inference, 0, readings)
    print(f"{sum(d.types.size for d in documents):,} candidates in {len(documents):,} documents")
    task = _read(TorchEngine(network), ner, gold, inference)
    rule = ScoreRule(inference, ner.labels, None)

    def counts(steps: int) -> np.ndarray:
        """Return the correct, predicted and gold entities of each sentence: [sentences, 3]."""
        denoiser = network.belief_denoiser()
        assert denoiser is not None
        columns = task.denoise(denoiser, steps, rule)
        found = entities_by_sentence([columns], task.sentences, inference.overlap)
        report = score_sentences(gold, [to_spans(entities, ner.labels) for entities in found])
        return report.measure_counts["micro"]

    alone = counts(0)
    found: dict[int, list[np.ndarray]] = {steps: [] for steps in STEPS}
    for seed in range(seeds):
        torch.manual_seed(seed)
        network.beliefs = BeliefNetwork(len(ner.labels))
        fit_beliefs(network.beliefs, documents, network.schedule, seed)
        for steps in STEPS:
            found[steps].append(counts(steps))
    print(f"initializer alone: {_f1(alone):.2f}")
    for steps, of_seeds in found.items():
        each = [_f1(one) for one in of_seeds]
        change = difference(np.sum(of_seeds, axis=0), alone * seeds, 2000, 0)
        low, high = (100 * bound for bound in change.interval)
        print(
            f"γ = {steps}: {fmean(each):.2f} ({min(each):.2f} to {max(each):.2f}), "
            f"{100 * change.f1:+.2f} ({low:+.2f} to {high:+.2f}), p = {change.p:.4f}"
        )


def _read(
    engine: Engine, ner: DiffusionNER, gold: list[Sentence], inference: InferenceSettings
) -> PredictionTask:
    """Find the candidates of all sentences, which every belief network gets."""
    corpus = EncodedCorpus(gold, ner.subwords, ner.settings.encoder)
    task = PredictionTask(corpus, range(len(gold)))
    for chosen in corpus.sorted_batches(32, task.sentences):
        found = task.launch(engine, chosen, inference)()
        task.candidates.append(owned_candidates(found, corpus.windows, chosen))
    return task


def _f1(counts: np.ndarray) -> float:
    correct, predicted, gold = counts.sum(0)
    return float(200 * correct / max(1, predicted + gold))
