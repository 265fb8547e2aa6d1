"""Coverage of a text: unread characters, sentences and windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import MAX_SUBWORDS_PER_WORD, SURROGATE, SubwordTokenizer
from diffusionner.corpus import Coverage, Entities, Sentence
from diffusionner.errors import DataError
from diffusionner.settings import EncoderSettings
from diffusionner.text import MAX_WORD, split_sentences, visible_gaps


def measure_coverage(
    content: str | Sequence[str], subwords: SubwordTokenizer, settings: EncoderSettings
) -> Coverage:
    """Return the coverage of a text or of the words of a sentence.

    Splitting depends on nothing else, so it is repeated here instead of being kept with every
    result.
    """
    starts, ends, sentences = [], [], [Sentence(list(content))] if content else []
    if isinstance(content, str):
        parts = split_sentences(content)
        sentences = [Sentence(part.words) for part in parts]
        starts = [start for part in parts for start in part.starts]
        ends = [end for part in parts for end in part.ends]
    if not sentences:
        return Coverage(visible_gaps(str(content), []) if content else [], [], [])
    corpus = EncodedCorpus(sentences, subwords, settings)
    windows = corpus.windows
    words = [word for sentence in sentences for word in sentence.words]
    bounds = np.cumsum([0, *(len(sentence.words) for sentence in sentences)])
    sentence_words = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    window_words = list(
        zip(windows.word_start.tolist(), (windows.word_start + windows.words).tolist(), strict=True)
    )
    cut = dict(_cut_words(words, corpus, min(settings.max_subwords, subwords.limit)))
    if not isinstance(content, str):
        return Coverage([(word, word + 1) for word in sorted(cut)], sentence_words, window_words)

    def characters(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(starts[first], ends[last - 1]) for first, last in spans]

    unread = [(starts[word] + read, ends[word]) for word, read in cut.items()]
    unread += visible_gaps(content, zip(starts, ends, strict=True))
    return Coverage(sorted(unread), characters(sentence_words), characters(window_words))


def _cut_words(words: list[str], corpus: EncodedCorpus, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the words that are not read to their end, with the number of characters read."""
    tokenizer = corpus.tokenizer
    kept = min(MAX_SUBWORDS_PER_WORD, limit - tokenizer.special_count)
    counts = np.diff(corpus.subword_offset)
    for number in np.flatnonzero(counts >= kept).tolist():
        encoding = tokenizer.backend.encode(
            [SURROGATE.sub("\ufffd", words[number])], is_pretokenized=True, add_special_tokens=False
        )
        if len(encoding.ids) > kept:
            yield number, min(start for start, _ in encoding.offsets[kept:])
    for number, word in enumerate(words):
        # WordPiece knows a word that is too long only as the unknown token.
        if len(word) > MAX_WORD and counts[number] == 1:
            yield number, 0
        elif lone := SURROGATE.search(word):
            yield number, lone.start()


def refuse_unread(results: Iterable[Entities]) -> Iterator[Entities]:
    """Raise DataError at the first result of a text that was not read completely."""
    for number, entities in enumerate(results):
        check_read(entities, f"input {number}")
        yield entities


def check_read(entities: Entities, place: str) -> None:
    """Raise DataError if the text of a result was not read completely."""
    if unread := entities.coverage.unread:
        start, end = unread[0]
        is_text = isinstance(entities.text, str)
        part = entities.text[start:end] if is_text else entities.text[start]
        raise DataError(
            f"{place}: {'characters' if is_text else 'words'} {start} to {end} "
            f"({str(part)[:20]!a}) cannot be read by the model; remove or shorten them, or "
            "leave out strict to read the rest"
        )
