"""Sampling of the labels that each row of a training batch is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diffusionner.batching import Batch, RowLabels
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.diffusion import mix_keys
from diffusionner.label_set import SEPARATOR, label_text
from diffusionner.model.fragments import PAIRS

_SALT = 9  # differs from those of the span noise and of the subword masking
MAX_ASKED = 25  # labels of a row
DROPPED = 0.15  # share of the labels with entities that a row is not asked for
ALL_ABSENT = 0.7  # share of the rows that are asked for as many labels without entities as possible
UNDESCRIBED = 0.5  # share of the descriptions that are left out


class LabelSampler:
    """Draws labels among those that were annotated, with or without their descriptions.

    A model learns from what it is not asked for, too: the entities of a label that is left out are
    no entities.
    """

    def __init__(self, labels: Sequence[str], tokenizer: SubwordTokenizer) -> None:
        """labels: names, or "name: description"."""
        self.pad = tokenizer.pad
        # Subwords of each label with and without its description.
        self.variants: list[list[list[int]]] = []
        for label in labels:
            name, _, description = label.partition(SEPARATOR)
            texts = label_text(name, description), label_text(name)
            self.variants.append(list(map(tokenizer.label_subwords, texts)))

    def apply(self, batch: Batch[np.ndarray], keys: np.ndarray) -> Batch[np.ndarray]:
        """Return the batch with labels for its rows, and only their entities.

        keys: [R], unique to row and epoch.
        """
        rows, annotated = len(batch.subwords), batch.annotated_types
        asked: list[np.ndarray] = []
        read: list[list[list[int]]] = []  # subwords of each label of each row
        for row, key in enumerate(mix_keys(keys, _SALT).tolist()):
            random = np.random.default_rng(abs(key))
            windows = np.flatnonzero(batch.row == row)
            gold = np.unique(batch.gold_types[windows])
            looked_for = np.flatnonzero(annotated[windows].any(0))
            chosen = _choose(gold[gold >= 0], looked_for, random)
            bare = (random.random(len(chosen)) < UNDESCRIBED).astype(int).tolist()
            read.append([self.variants[i][v] for i, v in zip(chosen.tolist(), bare, strict=True)])
            asked.append(chosen)
        present = np.arange(max(map(len, asked))) < np.array([[len(one)] for one in asked])
        labels_of_row = np.zeros(present.shape, dtype=np.int64)
        labels_of_row[present] = np.concatenate(asked)
        local = np.full((rows, annotated.shape[1]), -1)  # place of a label among those of its row
        for row, chosen in enumerate(asked):
            local[row, chosen] = np.arange(len(chosen))
        types = np.where(batch.gold_types >= 0, local[batch.row[:, None], batch.gold_types], -1)
        order = np.argsort(types < 0, axis=1, kind="stable")  # entities before padding
        gap_cells = batch.gap_cells
        if gap_cells is not None:
            # Fragments and jumps are those of all types; their grids follow those of the types.
            pairs = np.broadcast_to(present.shape[1] + np.arange(PAIRS), (rows, PAIRS))
            grids = np.concatenate([local, pairs], 1)
            grid = gap_cells[..., 0]
            moved = np.where(grid >= 0, grids[batch.row[:, None], grid], -1)
            gap_cells = np.concatenate([moved[..., None], gap_cells[..., 1:]], -1)
        return replace(
            batch,
            gold=np.take_along_axis(batch.gold, order[..., None], 1),
            gold_types=np.take_along_axis(types, order, 1),
            gold_counts=(types >= 0).sum(1),
            annotated_types=present[batch.row]
            & np.take_along_axis(annotated, labels_of_row[batch.row], 1),
            labels=RowLabels.of(read, self.pad),
            gap_cells=gap_cells,
        )


def _choose(gold: np.ndarray, annotated: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the labels to ask for: most of those with entities, and others."""
    kept = random.permutation(gold[random.random(len(gold)) >= DROPPED])[:MAX_ASKED]
    absent = random.permutation(np.setdiff1d(annotated, gold))
    room = min(len(absent), MAX_ASKED - len(kept))
    if random.random() >= ALL_ABSENT:
        room = int(random.integers(0, room + 1))
    chosen = np.concatenate([kept, absent[:room]])
    if not len(chosen):  # nothing was left: a label that does not count if it was not looked for
        chosen = annotated[:1] if len(annotated) else np.zeros(1, dtype=np.int64)
    return np.sort(chosen)
