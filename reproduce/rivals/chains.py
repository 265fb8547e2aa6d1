"""Linear-chain conditional random fields in parallel: sums over tag sequences and the best one.

Shapes: B sentences, L chains each, M words, C types, T tags. Loops are over words only. Padding
changes no result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from diffusionner.model.initializer import IMPOSSIBLE
from reproduce.rivals.tags import BEGIN, END, INSIDE, OUTSIDE, PARTS, SINGLE, followers


class Chains(nn.Module):
    """Scores of transitions between tags, and of first and last tags."""

    def __init__(self, levels: int, types: int) -> None:
        super().__init__()
        self.tags = PARTS * types + 1
        self.transitions = nn.Parameter(torch.zeros(levels, self.tags, self.tags))
        self.first = nn.Parameter(torch.zeros(levels, self.tags))
        self.last = nn.Parameter(torch.zeros(levels, self.tags))
        self.allowed: Tensor
        self.register_buffer("allowed", torch.from_numpy(followers(types)), persistent=False)

    def scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of transitions [L, T, T], first tags [L, T] and last tags [L, T]."""
        # The tags before the first and after the last word count as OUTSIDE.
        begins, stops = self.allowed[OUTSIDE], self.allowed[:, OUTSIDE]
        return (
            self.transitions.float().masked_fill(~self.allowed, IMPOSSIBLE),
            self.first.float().masked_fill(~begins, IMPOSSIBLE),
            self.last.float().masked_fill(~stops, IMPOSSIBLE),
        )

    def log_sums(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return log Σ exp(score) over all tag sequences, [B, L], by the forward algorithm.

        emissions: [B, L, M, T]; mask: [B, M] true for words.
        """
        transitions, first, last = self.scores()
        return (_sums(emissions, mask, transitions, first)[-1] + last).logsumexp(-1)

    def sums_around(self, emissions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log sums over the tags before and after each word, by its tag, and over all.

        Shapes: [B, L, M, T] including the word's own score, [B, L, M, T] and [B, L, 1]. The
        backward pass is a forward pass over reversed sentences, so that one loop does both.
        """
        transitions, first, last = self.scores()
        place = torch.arange(mask.shape[1], device=mask.device)
        turned = mask.sum(1, keepdim=True) - 1 - place
        turned = torch.where(turned >= 0, turned, place)[:, None, :, None]  # its own inverse
        turned = turned.expand_as(emissions)
        found = _sums(
            torch.stack([emissions, emissions.gather(2, turned)]),
            mask,
            torch.stack([transitions, transitions.mT])[:, None],
            torch.stack([first, last])[:, None],
        )
        ahead, behind = torch.stack(found, 3)
        total = (found[-1][0] + last).logsumexp(-1, keepdim=True)
        return ahead, behind.gather(2, turned) - emissions, total

    def best(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return the tags of the best sequences [B, L, M], by the Viterbi algorithm."""
        transitions, first, last = self.scores()
        words, real = emissions.unbind(2), mask.unbind(1)
        score = first + words[0]
        same = torch.arange(self.tags, device=score.device).expand_as(score)
        before: list[Tensor] = []  # best previous tag of each tag, for each word but the first
        for word, is_word in zip(words[1:], real[1:], strict=True):
            joined, pointer = (score[..., None] + transitions).max(-2)
            is_word = is_word[:, None, None]
            score = torch.where(is_word, joined + word, score)
            before.append(torch.where(is_word, pointer, same))
        tags = [(score + last).argmax(-1, keepdim=True)]
        for pointer in reversed(before):
            tags.append(pointer.gather(-1, tags[-1]))
        return torch.cat(tags[::-1], -1)

    def probability(
        self, emissions: Tensor, mask: Tensor, left: Tensor, right: Tensor, type_id: Tensor
    ) -> Tensor:
        """Return the probability of all sequences with an entity at these words.

        left, right, type_id: [B, L, Q] → [B, L, Q]. The tags of the entity are fixed, so this is a
        product of the sum before it, its own score and the sum after it.
        """
        transitions = self.scores()[0]
        ahead, behind, total = self.sums_around(emissions, mask)
        inside = emissions[..., 1 + INSIDE :: PARTS].cumsum(2)  # [B, L, M, C]

        def moves(a: int, b: int) -> Tensor:
            """Return the score of a transition between two parts of the entity."""
            by_type = transitions[:, 1 + a :: PARTS, 1 + b :: PARTS].diagonal(dim1=1, dim2=2)
            return by_type.expand(len(type_id), -1, -1).gather(2, type_id)

        tag = _tag_of(type_id)
        single = left == right
        begins = at(ahead, left, torch.where(single, tag(SINGLE), tag(BEGIN)))
        ends = at(behind, right, torch.where(single, tag(SINGLE), tag(END)))
        short = moves(BEGIN, END)
        between = at(inside, (right - 1).clamp(min=0), type_id) - at(inside, left, type_id)
        long = (
            moves(BEGIN, INSIDE)
            + between
            + (right - left - 2) * moves(INSIDE, INSIDE)
            + moves(INSIDE, END)
        )
        rest = torch.where(right == left + 1, short, long) + at(emissions, right, tag(END))
        return (begins + torch.where(single, 0.0, rest) + ends - total).exp().clamp(max=1.0)


def _sums(emissions: Tensor, mask: Tensor, transitions: Tensor, first: Tensor) -> list[Tensor]:
    """Return the log sums over the tags up to each word, by its tag: [..., B, L, T] per word.

    emissions: [..., B, L, M, T]. After the end of a sentence they stay those of its last word.
    """
    words, real = emissions.unbind(-2), mask.unbind(1)
    found = [first + words[0]]
    for word, is_word in zip(words[1:], real[1:], strict=True):
        joined = (found[-1][..., None] + transitions).logsumexp(-2) + word
        found.append(torch.where(is_word[:, None, None], joined, found[-1]))
    return found


def at(scores: Tensor, word: Tensor, column: Tensor) -> Tensor:
    """Select scores [B, L, M, X] at words and columns [B, L, Q] → [B, L, Q]."""
    return scores.flatten(2).gather(2, word * scores.shape[-1] + column)


def _tag_of(type_id: Tensor) -> Callable[[int], Tensor]:
    return lambda part: 1 + PARTS * type_id + part
