"""Words to subwords, with a cache of the words seen before."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from diffusionner.files import read_bounded
from diffusionner.word_limits import WordLimits

MAX_SUBWORDS_PER_WORD = 100  # only garbage is longer
# 0 is padding; code points below 255 have their own code, others share the rest.
CHARACTER_CODES = 512
CHARACTERS_PER_WORD = 20  # from both ends of a longer word
# Memory that a cache keeps: about 200,000 ordinary words. It is emptied when it needs more.
MAX_CACHED_BYTES = 64 * 2**20
BYTES_PER_WORD = 100  # of a dictionary, beside the string: its slot and the id
CHUNK = 4096  # words tokenised at a time
NO_WORD = 0  # id of padding: no subwords, no characters
BACKEND_FILE, NAMES_FILE = "tokenizer.json", "tokenizer_config.json"
# Bytes; the largest known, for a vocabulary of 256,000 subwords, have 34 and one million.
MAX_TOKENIZER, MAX_NAMES = 50_000_000, 4_000_000
# How many times longer a tokenizer may make a text. NFKC makes 33 bytes of one ligature.
MAX_GROWTH = 1000
INSERTED = ("content", "prepend", "replacement", "continuing_subword_prefix", "end_of_word_suffix")
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class WordTable:
    """Words as ids, with the subwords and characters of every distinct word (V of them)."""

    word_ids: np.ndarray  # [words]
    subwords: np.ndarray  # subword ids of all distinct words, flat
    subword_start: np.ndarray  # [V] first subword of each
    subword_count: np.ndarray  # [V] at least one, except for NO_WORD
    characters: np.ndarray  # [V, C] codes, padded with zeros
    character_count: np.ndarray  # [V]


class _GrowingArray:
    """An array that rows are appended to; views of it handed out earlier stay valid."""

    def __init__(self, dtype: type, *shape: int) -> None:
        self.rows: np.ndarray = np.zeros((1024, *shape), dtype)
        self.size = 0

    def extend(self, rows: np.ndarray) -> None:
        needed = self.size + len(rows)
        if needed > len(self.rows):
            grown = np.zeros((2 * needed, *self.rows.shape[1:]), self.rows.dtype)
            grown[: self.size] = self.rows[: self.size]
            self.rows = grown
        self.rows[self.size : needed] = rows
        self.size = needed


class WordCache:
    """Subwords and characters of the distinct words seen so far.

    Most words of a text have been seen before, and a tokenizer treats pre-split words
    independently.
    """

    def __init__(self, tokenizer: SubwordTokenizer, width: int) -> None:
        """width: number of characters read of a word; 0 for none."""
        self.tokenizer = tokenizer
        self.width = width
        self.lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.ids: dict[str, int] = {}
        self.bytes_of_ids = 0
        self.subwords = _GrowingArray(np.int64)
        self.starts = _GrowingArray(np.int64)
        self.counts = _GrowingArray(np.int64)
        self.characters = _GrowingArray(np.int16, self.width)
        self.character_counts = _GrowingArray(np.int64)
        # In the order of a `WordTable`.
        self.arrays = (
            self.subwords, self.starts, self.counts, self.characters, self.character_counts
        )  # fmt: skip
        for array in self.arrays[1:]:
            array.extend(np.zeros((1, *array.rows.shape[1:]), array.rows.dtype))  # NO_WORD

    def look_up(self, words: Sequence[str]) -> WordTable:
        """Return the ids of the words, tokenising those that are new."""
        with self.lock:
            ids: list[Any] = list(map(self.ids.get, words))
            has_new = None in ids
            if has_new:
                new = {word: None for word, id in zip(words, ids, strict=True) if id is None}
                self._add(list(new))
                ids = list(map(self.ids.get, words))
            views = (array.rows[: array.size] for array in self.arrays)
            table = WordTable(np.array(ids, dtype=np.int64), *views)
            if has_new and self.size > MAX_CACHED_BYTES:
                self._clear()  # the table keeps what it shows
            return table

    @property
    def size(self) -> int:
        """Memory in bytes."""
        return self.bytes_of_ids + sum(array.rows.nbytes for array in self.arrays)

    def _add(self, words: list[str]) -> None:
        for first in range(0, len(words), CHUNK):
            chunk = words[first : first + CHUNK]
            subwords = self.tokenizer.subwords_of_each(chunk)
            counts = np.array([len(one) for one in subwords], dtype=np.int64)
            characters = character_codes(chunk, self.width)
            sizes = [array.size for array in self.arrays]
            try:
                self.starts.extend(self.subwords.size + np.cumsum(counts) - counts)
                self.counts.extend(counts)
                self.subwords.extend(np.concatenate(subwords))
                self.characters.extend(characters)
                self.character_counts.extend(np.count_nonzero(characters, axis=1))
            except BaseException:  # an interrupt must not leave a word half added
                for array, size in zip(self.arrays, sizes, strict=True):
                    array.size = size
                raise
            self.ids.update(zip(chunk, range(sizes[1], 10**9), strict=False))
            self.bytes_of_ids += sum(map(sys.getsizeof, chunk)) + BYTES_PER_WORD * len(chunk)


def parse_backend(content: bytes) -> Tokenizer:
    """Parse a tokenizer.json; raise ValueError if it is not valid."""
    try:
        text = content.decode()
        growth = math.prod(_growth_factors(json.loads(text)))
        if growth > MAX_GROWTH:
            raise ValueError(f"it makes texts up to {float(growth):.3g} times longer")
        return _bare(Tokenizer.from_str(text))
    except Exception as error:  # tokenizers has no exception class of its own
        raise ValueError(str(error)) from error


def _growth_factors(values: Any) -> Iterator[int]:
    """Yield how many times longer each step of a tokenizer.json can make a text."""
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise ValueError("it describes no tokenizer")
    affixes = {name: values["model"].get(name) for name in INSERTED}
    queue = [values.get("normalizer"), values.get("pre_tokenizer"), affixes]
    while queue:
        value = queue.pop()
        if isinstance(value, list):
            queue += value
        elif isinstance(value, dict):
            queue += value.values()
            for name in INSERTED:
                if isinstance(value.get(name), str):
                    yield max(1, len(value[name]))
            if value.get("type") == "ByteLevel" or value.get("pattern") == {"String": ""}:
                yield 2
            if "content" in value and "Regex" in value.get("pattern", ()):
                yield 2  # it may match between any two characters
            if isinstance(characters := value.get("precompiled_charsmap"), str):
                # The size of an index, the index, and what characters are replaced by.
                table = b64decode(characters)
                replacements = table[4 + int.from_bytes(table[:4], "little") :]
                yield max(1, *map(len, replacements.split(b"\0")))


def _bare(backend: Tokenizer) -> Tokenizer:
    backend.no_truncation()  # windows and batches take care of lengths
    backend.no_padding()
    return backend


@dataclass
class SubwordTokenizer:
    """Splits words into subwords; knows the special tokens around a sentence."""

    backend: Tokenizer
    limit: int  # subwords that the encoder has positions for
    prefix: list[int]
    suffix: list[int]
    pad: int
    unknown: int
    word_limits: WordLimits | None = None  # None: sentences are read whole
    files: dict[str, bytes] | None = None  # of the Hugging Face tokenizer, if read from these
    hf: Any = None  # the Hugging Face tokenizer, if it was made from one
    caches: dict[int, WordCache] = field(default_factory=dict, repr=False)  # by their width

    @classmethod
    def from_hf(cls, tokenizer: Any, limit: int) -> SubwordTokenizer:
        """Wrap a (fast) Hugging Face tokenizer."""
        backend, pad = _bare(tokenizer.backend_tokenizer), tokenizer.pad_token_id
        wrapped = cls._from_backend(backend, limit, pad, tokenizer.unk_token_id)
        wrapped.hf = tokenizer
        return wrapped

    @classmethod
    def read(cls, folder: Path, limit: int) -> SubwordTokenizer:
        """Read the files of a Hugging Face tokenizer without transformers, which is slow to import.

        Raise OSError or ValueError if a file is missing or malformed.
        """
        limits = {BACKEND_FILE: MAX_TOKENIZER, NAMES_FILE: MAX_NAMES}
        files = {name: read_bounded(folder / name, most) for name, most in limits.items()}
        backend, names = parse_backend(files[BACKEND_FILE]), json.loads(files[NAMES_FILE])
        if not isinstance(names, dict):
            raise ValueError(f"{NAMES_FILE} is not a JSON object")

        def token_id(name: str) -> int | None:
            token = names.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            return None if token is None else backend.token_to_id(token)

        tokenizer = cls._from_backend(backend, limit, token_id("pad_token"), token_id("unk_token"))
        tokenizer.files = files
        return tokenizer

    @classmethod
    def _from_backend(
        cls, backend: Tokenizer, limit: int, pad: int | None, unknown: int | None
    ) -> SubwordTokenizer:
        # Special tokens are read off an example: families differ in what surrounds a sentence.
        bare = backend.encode("a", add_special_tokens=False).ids
        full = backend.encode("a").ids
        at = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        pad = 0 if pad is None else pad
        unknown = pad if unknown is None else unknown
        return cls(backend, limit, full[:at], full[at + len(bare) :], pad, unknown)

    def __post_init__(self) -> None:
        self.special_count = len(self.prefix) + len(self.suffix)

    def look_up(self, words: Sequence[str], width: int = 0) -> WordTable:
        """Return the subwords of many words and the codes of up to `width` characters of each."""
        if width not in self.caches:
            self.caches.setdefault(width, WordCache(self, width))
        return self.caches[width].look_up(words)

    def label_subwords(self, text: str) -> list[int]:
        """Return the subwords of a label, with the special tokens around it."""
        clean = SURROGATE.sub("\ufffd", text)
        own: list[int] = self.backend.encode(clean, add_special_tokens=False).ids
        room = self.limit - self.special_count
        return [*self.prefix, *(own[:room] or [self.unknown]), *self.suffix]

    def subwords_of_each(self, words: Sequence[str]) -> list[np.ndarray]:
        """Return the subword ids of each word.

        A word that the tokenizer's normaliser deletes (such as a lone control character) becomes
        the unknown token, so that every word has a state. Lone surrogates, which no tokenizer can
        encode, are replaced.
        """
        options = {"is_pretokenized": True, "add_special_tokens": False}
        try:
            encoded = self.backend.encode_batch([[word] for word in words], **options)
        except TypeError:
            whole = [[SURROGATE.sub("\ufffd", word)] for word in words]
            encoded = self.backend.encode_batch(whole, **options)
        return [
            np.array(encoding.ids[:MAX_SUBWORDS_PER_WORD] or [self.unknown], dtype=np.int64)
            for encoding in encoded
        ]


def character_codes(words: Sequence[str], width: int) -> np.ndarray:
    """Return character codes [words, width]; a longer word is cut in the middle."""
    if not width:
        return np.zeros((len(words), 0), dtype=np.int64)
    half = width // 2
    shown = [word if len(word) <= width else word[: width - half] + word[-half:] for word in words]
    sizes = np.array([len(one) for one in shown])
    text = "".join(shown).encode("utf-32-le", "surrogatepass")
    points = np.frombuffer(text, dtype=np.uint32).astype(np.int64)
    shared = 256 + points % (CHARACTER_CODES - 256)
    table = np.zeros((len(words), width), dtype=np.int64)
    table[np.arange(width) < sizes[:, None]] = np.where(points < 255, points + 1, shared)
    return table
