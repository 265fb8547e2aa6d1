"""Input to chunks: texts or words are read a little at a time and cut into sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Entities, Entity, Sentence
from diffusionner.inference.decoding import DecodedEntity
from diffusionner.settings import EncoderSettings
from diffusionner.text import TextSentence, split_sentences

BUFFERED_BATCHES = 32  # sentences are sorted by length within so many batches
# A device starts on the first batch, then each chunk is so many times the last one until they are
# enough: a device takes three times as long as it takes to read as much text, so it need not wait.
GROWTH = 2


@dataclass
class Chunk:
    """Items that are predicted together, with the sentences around them as context."""

    items: list[Item]
    corpus: EncodedCorpus
    chosen: range  # the sentences of the items among those of the corpus

    def entities(self, found: list[list[DecodedEntity]], labels: Sequence[str]) -> list[Entities]:
        """Of each item, from what was found in each of its sentences."""
        results = iter(found)
        return [
            Entities(item.entities(results, labels), item.content, labels) for item in self.items
        ]


class Reader:
    """Reads the input and cuts it into chunks, a little at a time."""

    def __init__(
        self,
        items: Iterable[tuple[str | Sequence[str], str | None]],
        size: int,
        subwords: SubwordTokenizer,
        settings: EncoderSettings,
    ) -> None:
        """size: sentences of a batch."""
        self.items = iter(items)
        self.subwords = subwords
        self.settings = settings
        self.step = size
        self.context = settings.context
        self.enough = size
        self.most = size * BUFFERED_BATCHES
        self.number = 0  # items read
        self.waiting: list[Item] = []
        self.held = 0  # sentences in them
        self.before: list[Sentence] = []  # the last ones of the chunk before
        self.ended = False

    def advance(self, sentences: int | None = None) -> bool:
        """Read that many more; whether it is enough for a chunk.

        By default as many as a batch has: more at a time, and a device waits for the next launch.
        """
        limit = min(self.enough, self.held + (sentences or self.step))
        while self.held < limit and not self.ended:
            given = next(self.items, None)
            if given is None:
                self.ended = True
                break
            self.waiting.append(Item(*given, self.number))
            self.number += 1
            self.held += len(self.waiting[-1].sentences)
        return self.ended or self.held >= self.enough

    def _ready(self) -> int:
        """Items that can be predicted; the last must wait until their right context is known."""
        ready = len(self.waiting)
        behind = 0
        while ready and behind < self.context and not self.ended:
            ready -= 1
            behind += len(self.waiting[ready].sentences)
        return ready

    def finish(self) -> Chunk | None:
        """The next chunk, whatever must still be read for it; None at the end."""
        self.advance(self.enough)
        while not (ready := self._ready()):
            if self.ended:
                return None
            self.enough = self.held + 1
            self.advance()
        # Small chunks first, so that a device starts early.
        self.enough = min(GROWTH * self.enough, self.most)
        items, self.waiting = self.waiting[:ready], self.waiting[ready:]
        sentences = _sentences(items)
        after = _sentences(self.waiting)
        self.held = len(after)
        corpus = EncodedCorpus(self.before + sentences + after, self.subwords, self.settings)
        chosen = range(len(self.before), len(self.before) + len(sentences))
        self.before = (self.before + sentences)[-self.context :] if self.context else []
        return Chunk(items, corpus, chosen)


def _sentences(items: list[Item]) -> list[Sentence]:
    return [sentence for item in items for sentence in item.sentences]


class Item:
    """One input, text or words, with its sentences."""

    def __init__(self, content: str | Sequence[str], doc: str | None, number: int) -> None:
        self.content = content
        self.text = content if isinstance(content, str) else None
        self.parts: list[TextSentence] = []
        if isinstance(content, str):
            self.parts = split_sentences(content)
            # The sentences of one text are each other's context, whatever the caller says.
            doc = f"\0text {number}" if doc is None else doc
            self.sentences = [Sentence(part.words, doc=doc) for part in self.parts]
        else:
            if not all(issubclass(kind, str) for kind in set(map(type, content))):
                raise TypeError(f"the words of sentence {number} are not all strings")
            self.sentences = [Sentence(list(content), doc=doc)] if content else []

    def entities(self, found: Iterator[list[DecodedEntity]], labels: Sequence[str]) -> list[Entity]:
        """Those of all its sentences; found has what is in each of them next."""
        return [
            entity
            for sentence in range(len(self.sentences))
            for entity in self.of_sentence(sentence, next(found), labels)
        ]

    def of_sentence(
        self, sentence: int, found: Sequence[DecodedEntity], labels: Sequence[str]
    ) -> list[Entity]:
        """The entities in the offsets of the input."""
        text = self.text
        if text is None:
            words = self.sentences[sentence].words
            return [
                Entity(left, right + 1, labels[kind], score, " ".join(words[left : right + 1]), n)
                for left, right, kind, _, score, n in found
            ]
        starts, ends = self.parts[sentence].starts, self.parts[sentence].ends
        places = [(starts[one.left], ends[one.right], one) for one in found]
        return [
            Entity(start, end, labels[one.kind], one.score, text[start:end], one.votes)
            for start, end, one in places
        ]
