"""Denoising of beliefs: what the candidates of a document tell about each other.

The boundaries of a span are denoised within its sentence. What is believed of it, a probability of
each type and of no entity, is denoised over the document: the second "Jordan" knows of the first,
and a span inside another knows what the outer one is. The diffused state of a candidate is its type
as analog bits, z in (-1, 1) with one entry for each type and no-entity. The network sees z of all
candidates at timestep t and adds a residual to the initializer's logits, so a network that has
learned nothing changes nothing.

The network scores one candidate for one type at a time. It sees the belief in this type, in no
entity and in the likeliest other type, never which type it is. So it learns how mentions support
each other in general: the order of the types cannot matter, and one network serves any types.

The functions take numpy's arrays at inference, whatever runs the sentence encoder, and torch's in
training. Shapes: D documents, N candidates each, C types, R relations, I inputs, h hidden size.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from diffusionner.diffusion.coordinates import Array
from diffusionner.diffusion.sampler import reverse_process, timestep_sequence
from diffusionner.diffusion.schedule import Schedule

Kind = TypeVar("Kind")
RELATIONS = 13  # number of the relations below
INPUTS = 11 + 5 * RELATIONS  # I
NEAR, FAR = 2, 8  # sentences between two candidates
MIN_LOG = -8.0  # log-probabilities are clipped to it
MAX_LOGIT = 30.0
MAX_PAIRS = 2**19  # pairs of candidates whose relations are in memory at a time


@dataclass
class CandidateSet(Generic[Kind]):
    """The candidates of D documents."""

    logits: Kind  # [D, N, C + 1] of the initializer; that of no-entity, the last, is zero
    start: Kind  # [D, N, C + 1] probabilities believed before the first step
    sentence: Kind  # [D, N] number of the sentence in the document
    left: Kind  # [D, N] first word in the sentence
    right: Kind  # [D, N] last word
    words: Kind  # [D, N] id of the candidate's words; equal words have equal ids
    first_word: Kind  # [D, N] id of its first word
    last_word: Kind  # [D, N] id of its last word, often the head
    present: Kind  # [D, N] false for padding

    def map(self, function: Any) -> CandidateSet[Any]:
        """Apply a function to every array."""
        return CandidateSet(*(function(getattr(self, f.name)) for f in fields(self)))


class BeliefWeights(NamedTuple):
    """A perceptron with one hidden layer; weights as in `torch.nn.Linear`."""

    hidden: Array  # [h, I]
    hidden_bias: Array  # [h]
    output: Array  # [1, h]
    output_bias: Array  # [1]


def relations(candidates: CandidateSet[Array], rows: slice = slice(None)) -> Array:
    """Return which candidates j each candidate i of the rows is related to: [D, R, rows, N].

    The entries are zeros and ones.
    """
    c = candidates

    def pairs(array: Array) -> tuple[Array, Array]:
        return array[:, rows, None], array[:, None]

    (left, left_j), (right, right_j) = pairs(c.left), pairs(c.right)
    sentence, sentence_j = pairs(c.sentence)
    (present, present_j), position = pairs(c.present), _positions(c.left)
    others = present & present_j & (position[rows, None] != position)
    same = sentence == sentence_j
    distance = abs(sentence - sentence_j)
    contains = (left <= left_j) & (right >= right_j)
    inside = (left_j <= left) & (right_j >= right)
    overlap = (left <= right_j) & (left_j <= right)
    words, first, last = (x == y for x, y in map(pairs, (c.words, c.first_word, c.last_word)))
    found = [
        same & contains,
        same & inside,
        same & overlap & ~contains & ~inside,  # crosses
        same & ~overlap,
        same & (left == left_j),
        same & (right == right_j),
        same,
        words & ~same,
        last,
        first,
        ~same & (distance <= NEAR),
        (distance > NEAR) & (distance <= FAR),
        distance > FAR,
    ]
    xp = _namespace(c.left)
    one = xp.ones_like(c.logits[:1, :1, :1, None])
    return xp.stack([each & others for each in found], 1) * one


def network_inputs(candidates: CandidateSet[Array], z: Array, time: Sequence[Array]) -> Array:
    """Return the inputs of each candidate for each type: [D, N, C, I].

    z: [D, N, C + 1]; time: three numbers, or arrays that broadcast to [D, N, 1], that tell the
    timestep.
    """
    xp = _namespace(z)
    prior = softmax(candidates.logits)
    log_prior = xp.log(prior + 1e-9).clip(MIN_LOG, 0.0) / -MIN_LOG
    one = xp.ones_like(z[..., :-1])
    inputs = [
        *(part for belief in (log_prior, prior, z) for part in _type_and_none(belief)),
        *(_likeliest_other(belief[..., :-1]) for belief in (prior, z)),
        *(one * part for part in time),
    ]
    pooled, half = _pooled_beliefs(candidates, xp.concatenate([prior, z], -1)), z.shape[-1]
    for relation in range(RELATIONS):
        mean, number = pooled[:, relation, :, :-1], pooled[:, relation, :, -1:]
        inputs += [*_type_and_none(mean[..., :half]), *_type_and_none(mean[..., half:])]
        inputs.append(one * number)
    return xp.stack(inputs, -1)


def _type_and_none(belief: Array) -> tuple[Array, Array]:
    """Split [..., C + 1] into the beliefs in each type and in no entity, [..., C] each."""
    types = belief[..., :-1]
    return types, _namespace(belief).broadcast_to(belief[..., -1:], types.shape)


def _likeliest_other(types: Array) -> Array:
    """Return the belief in the likeliest other type: [..., C] → [..., C]; -1 if there is none."""
    xp = _namespace(types)
    if types.shape[-1] == 1:
        return xp.zeros_like(types) - 1.0
    is_best = _positions(types) == types.argmax(-1)[..., None]
    second = xp.amax(xp.where(is_best, -xp.inf, types), -1)[..., None]
    return xp.where(is_best, second, xp.amax(types, -1)[..., None])


def _pooled_beliefs(candidates: CandidateSet[Array], believed: Array) -> Array:
    """Return the mean belief of the candidates in each relation, and the logarithm of their number.

    believed: [D, N, B] → [D, R, N, B + 1], for some rows at a time, which limits memory
    """
    xp = _namespace(believed)
    documents, count, _ = believed.shape
    rows = max(1, MAX_PAIRS // (documents * count))
    parts = []
    for first in range(0, count, rows):
        related = relations(candidates, slice(first, first + rows))
        number = related.sum(-1)[..., None]  # [D, R, rows, 1]
        mean = related @ believed[:, None] / (number + 1)
        parts.append(xp.concatenate([mean, xp.log1p(number)], -1))
    return xp.concatenate(parts, 2)


def belief_logits(weights: BeliefWeights, inputs: Array, logits: Array) -> Array:
    """Return the logits of each type and of no-entity, which stays zero: [D, N, C + 1]."""
    hidden = (inputs @ weights.hidden.T + weights.hidden_bias).clip(0.0)
    residual = (hidden @ weights.output.T + weights.output_bias)[..., 0]
    return _namespace(logits).concatenate([logits[..., :-1] + residual, logits[..., -1:]], -1)


def timestep_inputs(t: Any, schedule: Schedule) -> tuple[Any, Any, Any]:
    """Return the numbers by which the network is told the timestep, an integer or an array."""
    alpha_bar = schedule.alpha_bar[t]
    return t / schedule.timesteps, alpha_bar**0.5, (1 - alpha_bar) ** 0.5


def analog_bits(probabilities: Array) -> Array:
    """Return the diffused state of probabilities."""
    return 2 * probabilities - 1


class BeliefDenoiser(NamedTuple):
    """A trained belief network with its schedule."""

    weights: BeliefWeights
    schedule: Schedule

    def __call__(self, candidates: CandidateSet[np.ndarray], steps: int) -> np.ndarray:
        """Run γ denoising steps from what is believed at first, at the timestep of candidates.

        Return the probabilities of each type and of no-entity: [D, N, C + 1].
        """
        schedule = self.schedule

        def denoise(z: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
            inputs = network_inputs(candidates, z, timestep_inputs(t, schedule))
            probabilities = softmax(belief_logits(self.weights, inputs, candidates.logits))
            return analog_bits(probabilities), probabilities

        start = analog_bits(candidates.start)
        sequence = timestep_sequence(max(schedule.candidate_start, steps), steps)
        *_, last = reverse_process(denoise, start, schedule.alpha_bar, sequence)
        result: np.ndarray = last.prediction
        return result


def softmax(logits: Array) -> Array:
    """Return probabilities; the last axis sums to one."""
    exponentials = _namespace(logits).exp(logits.clip(-MAX_LOGIT, MAX_LOGIT))
    return exponentials / exponentials.sum(-1)[..., None]


def _positions(array: Array) -> Array:
    """Return 0 to N - 1 for an array [..., N]."""
    if isinstance(array, np.ndarray):
        return np.arange(array.shape[-1])
    return sys.modules["torch"].arange(array.shape[-1], device=array.device)


def _namespace(array: Array) -> Any:
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]
