"""Named types of the reverse process: the spans it starts from and the candidates it ends with.

Shapes: B sentences, K spans each, S denoising steps. Arrays are numpy's on the host and torch's on
a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

Array = TypeVar("Array")


@dataclass
class ReverseStart(Generic[Array]):
    """Spans that the reverse process starts from: G given by the caller, then K of its own.

    Its own are noise or the initializer's candidates, as the settings say.
    """

    slots: Array  # [B, K] true where a sentence has a span of its own
    is_ragged: bool = False  # sentences have different numbers of spans
    given: Array | None = None  # [B, G, 2] left and right word
    given_slots: Array | None = None  # [B, G] true where a sentence has a given span
    timestep: int | None = None  # timestep assigned to the spans, if some are given

    def map(self, function: Callable[[Array], Any]) -> ReverseStart[Any]:
        """Apply a function to every array."""
        given, given_slots = (
            None if array is None else function(array) for array in (self.given, self.given_slots)
        )
        return ReverseStart(function(self.slots), self.is_ragged, given, given_slots, self.timestep)


@dataclass
class GappedCandidates(Generic[Array]):
    """Discontinuous candidates: N for each sentence, each of at most F fragments."""

    fragments: Array  # [B, 1, N, F, 2] first and last word of each fragment; -1 for none
    type_id: Array  # [B, 1, N] most likely type
    probability: Array  # [B, 1, N] 0 where there is no candidate

    def map(self, function: Callable[[Array], Any]) -> GappedCandidates[Any]:
        """Apply a function to every array."""
        return GappedCandidates(*map(function, vars(self).values()))


@dataclass
class Candidates(Generic[Array]):
    """Spans that denoising steps predicted, with the probabilities they are scored by."""

    left: Array  # [B, S, K] first word
    right: Array  # [B, S, K] last word
    type_id: Array  # [B, S, K] most likely type
    summed_probability: Array  # [B, S, K] P^l + P^r + P^c, at most 3
    type_probability: Array  # [B, S, K] P^c
    # [B, S, K] false if no-entity is most likely, right < left or the slot is empty
    is_entity: Array
    slots: Array  # [B, S, K] true where the sentence has a span
    noisy: Array  # [B, S, K, 2] left and right word of the spans that the step saw
    # [B, S, K, C + 1] the initializer's logits of each type and no-entity, if it scores types and
    # they are needed
    logits: Array | None = None
    gapped: GappedCandidates[Array] | None = None  # if the model finds discontinuous entities

    def map(self, function: Callable[[Array], Any]) -> Candidates[Any]:
        """Apply a function to every array."""
        arrays = {name: value for name, value in vars(self).items() if name != "gapped"}
        mapped = {name: None if a is None else function(a) for name, a in arrays.items()}
        return Candidates(**mapped, gapped=self.gapped and self.gapped.map(function))

    @staticmethod
    def combine(
        parts: Sequence[Candidates[Array]], function: Callable[[list[Array]], Array]
    ) -> Candidates[Array]:
        """Stack or concatenate the arrays of several candidates, field by field."""

        def joined(values: list[Any]) -> Any:
            if isinstance(values[0], GappedCandidates):
                arrays = zip(*(vars(value).values() for value in values), strict=True)
                return GappedCandidates(*(function(list(several)) for several in arrays))
            return None if values[0] is None else function(values)

        return Candidates(
            *(joined([getattr(p, f.name) for p in parts]) for f in fields(Candidates))
        )
