"""Fitting of the belief network on candidates of documents; see `diffusion.beliefs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.diffusion import Schedule
from diffusionner.diffusion.beliefs import (
    CandidateSet,
    analog_bits,
    network_inputs,
    softmax,
    timestep_inputs,
)
from diffusionner.diffusion.sampler import ddim_step
from diffusionner.inference.documents import (
    CandidateColumns,
    candidate_sets,
    document_blocks,
    group_documents,
    pad_documents,
)
from diffusionner.model.beliefs import BeliefNetwork

EPOCHS = 8
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.05
WARMUP = 0.1
MAX_PAIRS = 400_000  # of candidates in a batch
MIN_BATCHES = 30  # per epoch, so that small corpora are not learned in a few updates
MAX_DROPPED = 0.6  # fraction of the candidates
CERTAINTY = (0.6, 1.6)  # factors on the logits


class LabelledSet(NamedTuple):
    """The candidates of one document with their gold types."""

    candidates: CandidateSet[np.ndarray]  # [1, N]
    types: np.ndarray  # [1, N] gold type; C for no entity, -1 if it is not known


def fit_beliefs(documents: Sequence[LabelledSet], schedule: Schedule, seed: int) -> BeliefNetwork:
    """Train a network on candidates of documents, which may have different types.

    Each document is used as it is and disturbed, since the models that the network is for have
    other candidates: fewer or more, less or more certain.
    """
    random = np.random.default_rng(seed)
    batches = _batches([*documents, *(_disturb(document, random) for document in documents)])
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # initial weights, dropout
    network = BeliefNetwork()
    total = EPOCHS * len(batches)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min(1.0, (done + 1) / (WARMUP * total)) * (1 - done / total)
    )
    network.train()
    for _ in range(EPOCHS):
        for index in torch.randperm(len(batches), generator=generator).tolist():
            candidates, types = batches[index]
            loss = _loss(network, candidates, types, schedule, generator)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            rate.step()
    return network.eval().requires_grad_(False)


def _disturb(document: LabelledSet, random: np.random.Generator) -> LabelledSet:
    """Drop some candidates and change how certain the others are."""
    count = document.types.shape[1]
    kept = np.flatnonzero(random.random(count) >= random.uniform(0.0, MAX_DROPPED))
    kept = kept if len(kept) else np.arange(count)
    candidates = document.candidates.map(lambda array: array[:, kept])
    logits = candidates.logits * np.float32(random.uniform(*CERTAINTY))
    candidates = replace(candidates, logits=logits, start=softmax(logits))
    return LabelledSet(candidates, document.types[:, kept])


def _loss(
    network: BeliefNetwork,
    candidates: CandidateSet[Tensor],
    types: Tensor,
    schedule: Schedule,
    generator: torch.Generator,
) -> Tensor:
    """Denoise noised gold, the initializer's beliefs and the network's own draw: mean loss."""
    count = candidates.logits.shape[-1]
    documents = len(types)
    known = candidates.present & (types >= 0)

    def draw_timestep(highest: int) -> np.ndarray:
        uniform = torch.rand(documents, 1, 1, generator=generator).numpy()
        return np.asarray((uniform * highest).astype(np.int64) + 1)

    def predict(z: Tensor, t: np.ndarray) -> Tensor:
        time = [torch.as_tensor(part, dtype=z.dtype) for part in timestep_inputs(t, schedule)]
        result: Tensor = network(network_inputs(candidates, z, time), candidates.logits)
        return result

    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits[known], types[known], reduction="sum")

    prior = analog_bits(candidates.start)
    start = np.full((documents, 1, 1), schedule.candidate_start)
    # Where the gold is not known, the belief of the initializer stands for it.
    gold = nn.functional.one_hot(types.clamp(min=0), count).to(prior.dtype)
    gold = torch.where(types[..., None] >= 0, analog_bits(gold), prior)
    t = draw_timestep(schedule.timesteps)
    alpha_bar = torch.from_numpy(schedule.alpha_bar[t])
    noise = torch.randn(prior.shape, generator=generator)
    total = loss(predict(alpha_bar.sqrt() * gold + (1 - alpha_bar).sqrt() * noise, t))
    of_prior = predict(prior, start)
    total = total + loss(of_prior)
    later = draw_timestep(schedule.candidate_start)
    now, then = (torch.from_numpy(schedule.alpha_bar[t[:, 0, 0]]) for t in (start, later))
    with torch.no_grad():
        own = ddim_step(prior, analog_bits(of_prior.softmax(-1)), now, then)
    total = total + loss(predict(own, later))
    return total / (3 * max(1, int(known.sum())))


def _batches(documents: Sequence[LabelledSet]) -> list[tuple[CandidateSet[Tensor], Tensor]]:
    """Return padded batches of documents with equally many types and similarly many candidates."""
    by_types: dict[int, list[LabelledSet]] = {}
    for document in documents:
        by_types.setdefault(document.candidates.logits.shape[-1], []).append(document)
    most = math.ceil(len(documents) / MIN_BATCHES)
    batches = []
    for alike in by_types.values():
        sizes = [one.types.shape[1] for one in alike]
        for group in group_documents(sizes, MAX_PAIRS, MAX_PAIRS, most):
            candidates = pad_documents([alike[i].candidates for i in group])
            types = np.full(candidates.left.shape, -1)
            for row, i in zip(types, group, strict=True):
                row[: sizes[i]] = alike[i].types[0]
            batches.append((candidates.map(torch.from_numpy), torch.from_numpy(types)))
    return batches


def label_candidates(
    columns: CandidateColumns,
    corpus: EncodedCorpus,
    sentences: Sequence[Sentence],
    labels: Sequence[str],
) -> list[LabelledSet]:
    """Return the candidates of each document with their gold types."""
    gold = {
        (number, start, end - 1): labels.index(label)
        for number, sentence in enumerate(sentences)
        for start, end, label in sentence.entities
    }
    spans = zip(*(column.tolist() for column in columns[:3]), strict=True)
    types = np.array([gold.get(span, len(labels)) for span in spans], dtype=np.int64)
    # Where not all types are annotated, a span without one may be an entity.
    complete = np.array([s.types is None for s in sentences])
    types[(types == len(labels)) & ~complete[columns.sentence]] = -1
    number = range(len(sentences))
    blocks = document_blocks(corpus, number)
    sets, places = candidate_sets(columns, softmax(columns.logits), corpus, number, blocks)
    return [LabelledSet(s, types[place][None]) for s, place in zip(sets, places, strict=True)]
