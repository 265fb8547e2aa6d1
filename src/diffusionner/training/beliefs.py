"""Training of the belief network, the last part of a run.

It learns from the candidates of a trained network on its training documents. There the network
hardly errs any more, so it reads them with dropout and masked subwords, and errs as it will on new
text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Sentence
from diffusionner.diffusion import AUTO, ReverseStart, Schedule, mix_keys, span_slots
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
    owned_candidates,
    pad_documents,
)
from diffusionner.model.beliefs import BeliefNetwork
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device, to_device
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.training.masking import SubwordMasking
from diffusionner.training.processes import share_weights

if TYPE_CHECKING:
    from accelerate import Accelerator

EPOCHS = 8
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.05
WARMUP = 0.1
MAX_PAIRS = 400_000  # of candidates in a batch
MIN_BATCHES = 30  # per epoch, so that small corpora are not learned in a few updates
BATCH = 32  # windows
READINGS = 2  # of the training documents
MASKING = 0.2  # fraction of subwords


class LabelledSet(NamedTuple):
    """The candidates of one document with their gold types."""

    candidates: CandidateSet[np.ndarray]  # [1, N]
    types: np.ndarray  # [1, N] gold type; C for no entity, -1 if it is not known


def train_beliefs(
    network: DenoisingNetwork,
    corpus: EncodedCorpus,
    sentences: Sequence[Sentence],
    tokenizer: SubwordTokenizer,
    settings: Settings,
    accelerator: Accelerator,
) -> None:
    """Train the belief network of a trained network on the same sentences."""
    device = next(network.parameters()).device
    network.reset_beliefs(settings.training.seed)
    assert network.beliefs is not None
    if accelerator.is_main_process:
        can_mask = tokenizer.hf.mask_token_id is not None
        masking = SubwordMasking.for_tokenizer(tokenizer, MASKING) if can_mask else None
        seed = settings.training.seed
        documents = labelled_candidates(
            network, corpus, sentences, masking, settings.inference, seed
        )
        fit_beliefs(network.beliefs.cpu(), documents, network.schedule, seed)
        network.beliefs.to(device)
    share_weights(network.beliefs)


def fit_beliefs(
    network: BeliefNetwork,
    documents: Sequence[LabelledSet],
    schedule: Schedule,
    seed: int,
) -> None:
    """Train the network on candidates of documents."""
    batches = _batches(documents)
    if not batches:
        return
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    total = EPOCHS * len(batches)
    network.requires_grad_(True)
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
    network.eval().requires_grad_(False)


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
    """Return padded batches of documents with similar numbers of candidates."""
    sizes = [one.types.shape[1] for one in documents]
    most = math.ceil(len(documents) / MIN_BATCHES)
    batches = []
    for group in group_documents(sizes, MAX_PAIRS, most):
        candidates = pad_documents([documents[i].candidates for i in group])
        types = np.full(candidates.left.shape, -1)
        for row, i in zip(types, group, strict=True):
            row[: sizes[i]] = documents[i].types[0]
        batches.append((candidates.map(torch.from_numpy), torch.from_numpy(types)))
    return batches


def labelled_candidates(
    network: DenoisingNetwork,
    corpus: EncodedCorpus,
    sentences: Sequence[Sentence],
    masking: SubwordMasking | None,
    inference: InferenceSettings,
    seed: int,
    readings: int = READINGS,
) -> list[LabelledSet]:
    """Read the training documents with dropout and masking, and label their candidates."""
    device = next(network.parameters()).device
    blocks = document_blocks(corpus, range(len(sentences)))
    gold = {
        (number, start, end - 1): network.labels.index(label)
        for number, sentence in enumerate(sentences)
        for start, end, label in sentence.entities
    }
    complete = np.array([s.types is None for s in sentences])
    none, found = len(network.labels), []
    batches = corpus.sorted_batches(BATCH, range(len(sentences)))
    network.train()
    for reading in range(readings):
        torch.manual_seed(seed + reading)
        parts = []
        for chosen in batches:
            batch = corpus.batch(chosen)
            if masking is not None:
                batch.subwords = masking.apply(batch.subwords, mix_keys(chosen, seed, reading))
            slots = span_slots(batch.lengths, AUTO, "candidates")
            start = ReverseStart(slots).map(lambda array: to_device([array], device)[0])
            with torch.inference_mode():
                encoding = network.encode(batch_to_device(batch, device))
                candidates = network.candidates(encoding, batch.keys, start, inference)
            arrays = candidates.map(lambda tensor: tensor.cpu().numpy())
            parts.append(owned_candidates(arrays, corpus.windows, chosen))
        columns = CandidateColumns(*map(np.concatenate, zip(*parts, strict=True)))
        spans = zip(*(column.tolist() for column in columns[:3]), strict=True)
        types = np.array([gold.get(span, none) for span in spans], dtype=np.int64)
        # Where not all types are annotated, a span without one may be an entity.
        types[(types == none) & ~complete[columns.sentence]] = -1
        beliefs = softmax(columns.logits)
        sets, places = candidate_sets(columns, beliefs, corpus, range(len(sentences)), blocks)
        found += [LabelledSet(s, types[place][None]) for s, place in zip(sets, places, strict=True)]
    network.eval()
    return found
