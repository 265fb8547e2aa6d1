"""Runs the reverse process over an encoded corpus, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from diffusionner.batching import EncodedCorpus
from diffusionner.inference.decoding import Found, deduplicate, read_out, resolve_overlaps
from diffusionner.model import DenoisingNetwork
from diffusionner.settings import InferenceSettings


def predict(
    network: DenoisingNetwork,
    corpus: EncodedCorpus,
    sentences: Sequence[int],
    settings: InferenceSettings,
    given: Sequence[Sequence[tuple[int, int]]] | None = None,
    start: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Found]]:
    """Entities of the chosen sentences of a corpus, overlaps resolved, *not* yet filtered by φ.

    given: for every sentence of the corpus, spans (start, end exclusive) from which the reverse
    process starts at timestep `start`. progress is called with the windows done and
    their number.
    """
    device = next(network.parameters()).device
    was_training = network.training
    network.eval()
    collected: dict[int, list[Found]] = {number: [] for number in sentences}
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    try:
        with torch.inference_mode(), autocast:
            batches = list(corpus.sorted_batches(settings.batch_size, sentences))
            done, total = 0, sum(map(len, batches))
            for chosen in batches:
                batch = corpus.batch(chosen).to(device)
                spans = slots = None
                if given is not None:
                    spans, slots = _place(given, corpus, chosen, device)
                prediction = network.reverse(batch, settings, spans, slots, start)
                table = read_out(prediction, slots).cpu().numpy()
                for sentence, found in deduplicate(table, corpus.windows, chosen):
                    collected[sentence].append(found)
                done += len(chosen)
                if progress is not None:
                    progress(done, total)
    finally:
        network.train(was_training)
    return [resolve_overlaps(found, settings.overlap) for found in collected.values()]


def _place(
    given: Sequence[Sequence[tuple[int, int]]],
    corpus: EncodedCorpus,
    chosen: np.ndarray,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The caller's spans as [B, K, 2] window-relative boundaries and a mask [B, K]."""
    windows = corpus.windows
    rows = []
    for window in chosen:
        offset, words = int(windows.offset[window]), int(windows.words[window])
        spans = given[int(windows.sentence[window])]
        rows.append(
            [(s - offset, e - 1 - offset) for s, e in spans if s < offset + words and e > offset]
        )
    most = max(1, max(len(row) for row in rows))
    table = torch.zeros(len(rows), most, 2, dtype=torch.long)
    slots = torch.zeros(len(rows), most, dtype=torch.bool)
    for i, row in enumerate(rows):
        if row:
            table[i, : len(row)] = torch.tensor(row)
            slots[i, : len(row)] = True
    lengths = torch.from_numpy(windows.words[chosen])[:, None, None]
    table = torch.minimum(table.clamp(min=0), lengths - 1)
    return table.to(device), slots.to(device)
