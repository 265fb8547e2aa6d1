"""Words to subwords, and what is remembered of words met before."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

MAX_PIECES = 48  # subwords read of one word: nothing but garbage is longer
CHARACTER_LENGTH = 20  # characters read of one word, from both ends
CHARACTER_CODES = 512  # 0 pads; code points below 255 have their own code, others share the rest
MOST_KNOWN = 200_000  # words that are remembered before all are forgotten
CHUNK = 4096  # words tokenised at a time
NO_WORD = 0  # the kind of what is padding: no subwords, no characters
BACKEND_FILE, NAMES_FILE = "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True)
class WordTable:
    """Some words, each as the number of its kind, with what belongs to each kind."""

    kinds: np.ndarray  # [words]
    pieces: np.ndarray  # subword ids of all kinds, flat
    piece_start: np.ndarray  # [kinds] where those of a kind start
    piece_count: np.ndarray  # [kinds] at least one, but for NO_WORD
    characters: np.ndarray  # [kinds, C] codes, behind them zeros
    character_count: np.ndarray  # [kinds]


class _Column:
    """Rows that only grow: what was handed out stays as it was."""

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

    def view(self) -> np.ndarray:
        return self.rows[: self.size]


class Lexicon:
    """The distinct words met so far: most words of a text have been met before.

    A tokenizer treats words that are given apart one by one, so a word's subwords can be kept.
    """

    def __init__(self, tokenizer: SubwordTokenizer, width: int) -> None:
        """width: characters of a word that are read; 0 for none."""
        self.tokenizer = tokenizer
        self.width = width
        self.lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.known: dict[str, int] = {}
        self.pieces = _Column(np.int64)
        self.starts = _Column(np.int64)
        self.counts = _Column(np.int64)
        self.characters = _Column(np.int16, self.width)
        self.character_counts = _Column(np.int64)
        for column in self._columns()[1:]:
            column.extend(np.zeros((1, *column.rows.shape[1:]), column.rows.dtype))  # NO_WORD

    def _columns(self) -> tuple[_Column, ...]:
        """Of subwords, then of kinds: in the order of a `WordTable`."""
        return self.pieces, self.starts, self.counts, self.characters, self.character_counts

    def look_up(self, words: Sequence[str]) -> WordTable:
        with self.lock:
            if len(self.known) > MOST_KNOWN:
                self._forget()
            kinds: list[Any] = list(map(self.known.get, words))
            if None in kinds:
                new = {word: None for word, kind in zip(words, kinds, strict=True) if kind is None}
                self._learn(list(new))
                kinds = list(map(self.known.get, words))
            views = (column.view() for column in self._columns())
            return WordTable(np.array(kinds, dtype=np.int64), *views)

    def _learn(self, words: list[str]) -> None:
        for first in range(0, len(words), CHUNK):
            chunk = words[first : first + CHUNK]
            pieces = self.tokenizer.pieces_of_each(chunk)
            counts = np.array([len(one) for one in pieces], dtype=np.int64)
            characters = character_codes(chunk, self.width)
            columns = self._columns()
            sizes = [column.size for column in columns]
            try:
                self.starts.extend(self.pieces.size + np.cumsum(counts) - counts)
                self.counts.extend(counts)
                self.pieces.extend(np.concatenate(pieces))
                self.characters.extend(characters)
                self.character_counts.extend(np.count_nonzero(characters, axis=1))
            except BaseException:  # an interrupt: nothing may stay half known
                for column, size in zip(columns, sizes, strict=True):
                    column.size = size
                raise
            self.known.update(zip(chunk, range(sizes[1], 10**9), strict=False))


def parse_backend(content: bytes) -> Tokenizer:
    """A tokenizer.json; ValueError where it is none."""
    try:
        return _bare(Tokenizer.from_str(content.decode()))
    except Exception as error:  # tokenizers has no exception class of its own
        raise ValueError(str(error)) from error


def _bare(backend: Tokenizer) -> Tokenizer:
    """Lengths are our business."""
    backend.no_truncation()
    backend.no_padding()
    return backend


@dataclass
class SubwordTokenizer:
    """Subwords of words, and what stands around a sentence."""

    backend: Tokenizer
    limit: int  # subwords the encoder has positions for
    prefix: list[int]
    suffix: list[int]
    pad: int
    unknown: int
    files: dict[str, bytes] | None = None  # of the Hugging Face tokenizer, where it was read so
    lexicons: dict[int, Lexicon] = field(default_factory=dict, repr=False)  # by their width

    @classmethod
    def of(cls, tokenizer: Any, limit: int) -> SubwordTokenizer:
        """From a (fast) Hugging Face tokenizer."""
        backend, pad = _bare(tokenizer.backend_tokenizer), tokenizer.pad_token_id
        found = cls._of_backend(backend, limit, pad, tokenizer.unk_token_id)
        found.hf = tokenizer
        return found

    @classmethod
    def read(cls, folder: Path, limit: int) -> SubwordTokenizer:
        """The same from the files of one, without transformers, which takes long to import.

        OSError or ValueError where a file is missing or not as it should be.
        """
        files = {name: (folder / name).read_bytes() for name in (BACKEND_FILE, NAMES_FILE)}
        backend, said = parse_backend(files[BACKEND_FILE]), json.loads(files[NAMES_FILE])
        if not isinstance(said, dict):
            raise ValueError(f"{NAMES_FILE} has no names in it")

        def number(name: str) -> int | None:
            token = said.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            return None if token is None else backend.token_to_id(token)

        found = cls._of_backend(backend, limit, number("pad_token"), number("unk_token"))
        found.files = files
        return found

    @classmethod
    def _of_backend(
        cls, backend: Tokenizer, limit: int, pad: int | None, unknown: int | None
    ) -> SubwordTokenizer:
        # Special tokens are found by example: families differ in what they put around a sentence.
        bare = backend.encode("a", add_special_tokens=False).ids
        full = backend.encode("a").ids
        at = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        return cls(backend, limit, full[:at], full[at + len(bare) :], pad or 0, unknown or pad or 0)

    @cached_property
    def hf(self) -> Any:
        """The Hugging Face tokenizer around it; None where there is none."""
        if self.files is None:
            return None
        from diffusionner.model.pretrained import load_tokenizer

        with tempfile.TemporaryDirectory() as folder:
            for name, content in self.files.items():
                (Path(folder) / name).write_bytes(content)
            return load_tokenizer(folder, self.limit, offline=True).hf

    @property
    def special_count(self) -> int:
        return len(self.prefix) + len(self.suffix)

    def look_up(self, words: Sequence[str], width: int = 0) -> WordTable:
        """Subwords and, of `width` characters at most, the codes of many words."""
        return self.lexicons.setdefault(width, Lexicon(self, width)).look_up(words)

    def pieces_of_each(self, words: Sequence[str]) -> list[np.ndarray]:
        """The subword ids of words, each on its own.

        A word that the tokenizer's normaliser deletes (a lone control character, say) becomes the
        unknown token, so that every word has a state.
        """
        encoded = self.backend.encode_batch(
            [[word] for word in words], is_pretokenized=True, add_special_tokens=False
        )
        return [
            np.array(encoding.ids[:MAX_PIECES] or [self.unknown], dtype=np.int64)
            for encoding in encoded
        ]


def character_codes(words: Sequence[str], width: int) -> np.ndarray:
    """Codes [words, width] of the characters of words; of a long word, of both its ends."""
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
