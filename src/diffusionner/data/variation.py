"""Varied copies of sentences: text without capitals or punctuation, damaged text, and lists.

Training corpora are mostly tidy text; the copies teach a model to read what is not. A copy keeps
the `types` of its sentence, and a copy of several sentences is made of neighbours with the same
`types`. Copies have no running text, only words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from random import Random

from diffusionner.corpus import Discontinuous, Sentence, Span
from diffusionner.errors import DataError

_STRETCH_WORDS = (30, 120)
_LIST_NAMES = (8, 40)
_CELLS = (2, 4)  # of a row of a table
_NAME_WORDS = 6  # longer names are not put into lists
# Probabilities that a word gets a wrong character, is split, or is joined to the next.
_DAMAGE, _SPLIT, _JOIN = 0.1, 0.02, 0.02
_CONFUSED = {
    pair[0]: pair[1]
    for pair in map(
        str.split,
        "l 1,1 l,O 0,0 O,o 0,m rn,rn m,e c,c e,h b,b h,i l,I l,S 5,s 5,5 S,B 8,8 B,a o,u n,n u,"
        "cl d,d cl,t f,f t,g q,w vv,y v,Z 2,G 6".split(","),
    )
}
_LAYOUTS = ("commas", "lines", "row", "table")
_Types = tuple[str, ...] | None


def vary(sentences: Sequence[Sentence], share: float, seed: int = 0) -> Iterator[Sentence]:
    """Yield the sentences and then varied copies, made of about this share of them."""
    if not 0 <= share <= 1:
        raise DataError(f"the share of the sentences to vary is {share:g}; give one from 0 to 1")
    yield from sentences
    random, lists = Random(seed), _Lists(sentences)
    left = round(share * len(sentences))
    while left > 0:
        start, kind = random.randrange(len(sentences)), random.random()
        taken = 1
        if kind < 0.35:
            stretch = _neighbours(sentences, start, random.randint(*_STRETCH_WORDS))
            copies, taken = [without_capitals_and_punctuation(join(stretch))], len(stretch)
        elif kind < 0.4:
            copies = lists.draw(random)
            taken = len(copies) or 1
        elif kind < 0.7:
            copies = [_recased(sentences[start], random)]
        elif kind < 0.75:
            copies = [damaged(_recased(sentences[start], random), random)]
        else:
            copies = [damaged(sentences[start], random)]
        left -= taken
        yield from (copy for copy in copies if copy.words)


def _recased(sentence: Sentence, random: Random) -> Sentence:
    return random.choices([in_lower_case, in_upper_case, in_title_case], [3, 2, 1])[0](sentence)


def in_lower_case(sentence: Sentence) -> Sentence:
    return rewritten(sentence, [[word.lower()] for word in sentence.words])


def in_upper_case(sentence: Sentence) -> Sentence:
    return rewritten(sentence, [[word.upper()] for word in sentence.words])


def in_title_case(sentence: Sentence) -> Sentence:
    return rewritten(sentence, [[word[:1].upper() + word[1:]] for word in sentence.words])


def without_capitals_and_punctuation(sentence: Sentence) -> Sentence:
    """Return the words with letters or digits, in lower case, as in a transcript of speech."""
    kept = (word.lower() if any(map(str.isalnum, word)) else "" for word in sentence.words)
    return rewritten(sentence, [[word] if word else [] for word in kept])


def damaged(sentence: Sentence, random: Random) -> Sentence:
    """Return the sentence as a scanner may read it: characters and spaces confused."""
    edges = {edge for e in sentence.all_entities for part in e.fragments for edge in part}
    pieces: list[list[str]] = []
    for number, word in enumerate(sentence.words):
        if random.random() < _DAMAGE:
            word = _confused(word, random)
        if pieces and pieces[-1] and number not in edges and random.random() < _JOIN:
            pieces[-1][-1] += word
            pieces.append([])
        elif len(word) > 3 and random.random() < _SPLIT:
            place = random.randint(1, len(word) - 1)
            pieces.append([word[:place], word[place:]])
        else:
            pieces.append([word])
    return rewritten(sentence, pieces)


def _confused(word: str, random: Random) -> str:
    """Return the word with one of its characters taken for another."""
    places = [(i, old) for old in _CONFUSED for i in range(len(word)) if word.startswith(old, i)]
    if not places:
        return word
    place, old = random.choice(places)
    return word[:place] + _CONFUSED[old] + word[place + len(old) :]


def rewritten(sentence: Sentence, pieces: Sequence[Sequence[str]]) -> Sentence:
    """Return a sentence in which each word is replaced by words, or by none, with its entities."""
    new = list(accumulate(map(len, pieces), initial=0))
    spans = [Span(new[e.start], new[e.end], e.label) for e in sentence.entities]
    parts = [
        Discontinuous(tuple((new[start], new[end]) for start, end in e.fragments), e.label)
        for e in sentence.discontinuous
    ]
    return Sentence(
        [word for piece in pieces for word in piece],
        sorted({span for span in spans if span.start < span.end}),
        types=sentence.types,
        discontinuous=[
            e for e in parts if all(start < end for start, end in (*e.fragments, *e.gaps))
        ],
    )


def join(sentences: Sequence[Sentence], between: str | None = None) -> Sentence:
    """Return several sentences, which must have the same types, as one.

    between: a word to put between them.
    """
    joined = Sentence([], types=sentences[0].types)
    for number, sentence in enumerate(sentences):
        joined.words += [between] if between and number else []
        shift = len(joined.words)
        joined.words += sentence.words
        joined.entities += [
            Span(e.start + shift, e.end + shift, e.label) for e in sentence.entities
        ]
        for entity in sentence.discontinuous:
            moved = tuple((start + shift, end + shift) for start, end in entity.fragments)
            joined.discontinuous.append(Discontinuous(moved, entity.label))
    return joined


def _neighbours(sentences: Sequence[Sentence], start: int, words: int) -> Sequence[Sentence]:
    """Return sentences from `start` on that have the same types, up to a number of words."""
    end, count = start + 1, len(sentences[start].words)
    while end < len(sentences) and sentences[end].types == sentences[start].types:
        count += len(sentences[end].words)
        if count > words:
            break
        end += 1
    return sentences[start:end]


class _Lists:
    """Lists and tables of names from a corpus; the names of one have the same types annotated."""

    def __init__(self, sentences: Iterable[Sentence]) -> None:
        names: dict[_Types, dict[str, list[Sentence]]] = {}
        for sentence in sentences:
            by_label = names.setdefault(sentence.types, defaultdict(list))
            for name in filter(lambda name: _stands_alone(name, sentence), sentence.entities):
                words = sentence.words[name.start : name.end]
                if len(words) <= _NAME_WORDS:
                    entity = Span(0, len(words), name.label)
                    by_label[name.label].append(Sentence(words, [entity], types=sentence.types))
        # Without types of which there are too few names for a list.
        self.names = [
            [some for some in by_label.values() if len(some) >= _LIST_NAMES[0]]
            for by_label in names.values()
        ]
        self.weights = [sum(map(len, by_label)) for by_label in self.names]
        self.drawn = 0

    def draw(self, random: Random) -> list[Sentence]:
        """Return a list as one sentence, or the lines of a list or table, which form a document."""
        if not any(self.weights):
            return []
        [names] = random.choices(self.names, self.weights)
        count, layout = random.randint(*_LIST_NAMES), random.choice(_LAYOUTS)
        cells = random.randint(*_CELLS) if layout == "table" else 1
        columns = random.choices(names, [len(some) ** 0.5 for some in names], k=cells)
        rows = [join(list(map(random.choice, columns)), "|") for _ in range(max(2, count // cells))]
        if layout in ("commas", "row"):
            return [join(rows, "," if layout == "commas" else None)]
        self.drawn += 1
        for row in rows:
            row.doc = f"list {self.drawn}"
        return rows


def _stands_alone(entity: Span, sentence: Sentence) -> bool:
    """Return whether no other entity overlaps this one."""
    others = (other for other in sentence.all_entities if other is not entity)
    return all(other.end <= entity.start or entity.end <= other.start for other in others)
