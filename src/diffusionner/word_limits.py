"""How many words a model reads at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from diffusionner.corpus import Sentence

# A model finds few of the names in a long list: few training sentences have as many. So a window
# counts a separator as several words.
SEPARATORS = frozenset(",;|/•·、，；")
SEPARATOR_SIZE = 4
MAX_PHRASE = 4  # words of a repeated phrase


class WordLimits(NamedTuple):
    """Limits to sentences that are read whole, so that a model reads what it was trained on.

    Where a phrase of up to four words stands three times or more in a row ("Paris Paris Paris"),
    each of its words counts as a separator, and each phrase is read alone.
    """

    sentence: int = 50  # words of a sentence that is read whole
    separators: int = 7  # commas, semicolons … of such a sentence
    window: int = 21  # words of the windows in which others are read

    @classmethod
    def of(cls, sentences: Sequence[Sentence], passages: bool = False) -> WordLimits:
        """Return the limits for a model that is trained on these sentences.

        Sentences with more words than 95% of these, or more separators than 99%, are read in
        windows. A model that is trained on passages reads more of them whole: 99.5% and 99.9%.
        Windows have the size of an average sentence, and all but the longest 1% of the entities
        fit into half of one, the overlap of two windows.
        """
        most_words, most_separators = (0.995, 0.999) if passages else (0.95, 0.99)
        words = [len(s.words) for s in sentences]
        separators = [sum(word in SEPARATORS for word in s.words) for s in sentences]
        entity_words = [e.end - e.start for s in sentences for e in s.all_entities] or [1]
        average = round(sum(words) / len(words))
        window = max(average, 2 * _quantile(entity_words, 0.99), 2)
        return cls(
            max(_quantile(words, most_words), window),
            _quantile(separators, most_separators),
            window,
        )


def _quantile(values: Iterable[int], share: float) -> int:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(share * (len(ordered) - 1))]
