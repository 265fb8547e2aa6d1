"""Corpora, encoders and methods of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Corpus:
    """A corpus. Its preset names the files below the data folder and how to train on them."""

    name: str
    title: str
    preset: str
    encoder: str = "e5-small"
    sold: bool = False  # by the LDC; read from the user's own copy


@dataclass(frozen=True)
class Encoder:
    name: str
    hub: str  # where to load it from if no folder is given
    folders: tuple[str, ...]  # folder names that it is recognized by


@dataclass(frozen=True)
class ComparedMethod:
    """A method, and the settings in which its runs differ from the preset."""

    name: str
    title: str
    changes: tuple[str, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)  # encoder learning rate by corpus

    def overrides(self, corpus: str | None = None) -> list[str]:
        """Return the settings as KEY=VALUE; learning rates only with a corpus to train on."""
        rate = None if corpus is None else self.rates.get(corpus)
        return [*self.changes, *(f"{key}={value}" for key, value in learning_rates(rate))]


def learning_rates(encoder: float | None) -> list[tuple[str, float]]:
    """Return the rates of the encoder and of the rest, five times as high in all presets."""
    if encoder is None:
        return []
    rest = float(f"{5 * encoder:g}")  # as written in the presets
    return [("training.encoder_learning_rate", encoder), ("training.learning_rate", rest)]


NESTED = {
    corpus.name: corpus
    for corpus in (
        Corpus("ace04", "ACE04", "ace04-e5-small", sold=True),
        Corpus("ace05", "ACE05", "ace05-e5-small", sold=True),
        Corpus("genia", "GENIA", "genia-e5-small"),
        Corpus("litbank", "LitBank", "litbank-e5-small"),
        Corpus("gum", "GUM", "gum-e5-small"),
        Corpus("germeval2014", "GermEval 2014", "germeval2014-e5-small"),
    )
}
FLAT = {
    corpus.name: corpus
    for corpus in (
        Corpus("conll03", "CoNLL03", "conll03-e5-small"),
        Corpus("ontonotes", "OntoNotes", "ontonotes-e5-small", sold=True),
        Corpus("msra", "MSRA", "msra-m3e-small", "m3e-small"),
        Corpus("wnut17", "WNUT-17", "wnut17-e5-small"),
        Corpus("bc5cdr", "BC5CDR", "bc5cdr-e5-small"),
    )
}
GAPPED = {  # with discontinuous entities
    corpus.name: corpus
    for corpus in (
        Corpus("cadec", "CADEC", "cadec-e5-small"),
        Corpus("genia-coord", "GENIA, coordinations resolved", "genia-coord-e5-small"),
        Corpus("craft", "CRAFT", "craft-e5-small"),
        Corpus("chia", "Chia", "chia-e5-small"),
        Corpus("tac2017-adr", "TAC 2017 ADR", "tac2017-adr-e5-small"),
    )
}
CORPORA = {**NESTED, **FLAT, **GAPPED}

ENCODERS = {
    encoder.name: encoder
    for encoder in (
        Encoder("e5-small", "intfloat/e5-small", ("e5-small",)),
        Encoder("minilm-l6", "minilm", ("minilm-l6", "all-MiniLM-L6-v2")),
        Encoder("m3e-small", "moka-ai/m3e-small", ("m3e-small", "m3e-small-zh")),
    )
}
MAIN_ENCODER = "e5-small"  # the first --encoder replaces it

MAIN_METHOD = "diffusion"
SEQUENTIAL = "autoregressive"  # baseline of the speed-ups
# Settings that only denoising uses are fixed for the rivals, so that changing them in a preset does
# not make their runs new ones. Learning rates differ from the preset's where `tuning` says so.
_WITHOUT = ("decoder.offset_window=0", "decoder.initializer=spans")
METHODS = {
    method.name: method
    for method in (
        ComparedMethod(MAIN_METHOD, "DiffusionNER"),
        ComparedMethod("crf", "tagging (CRF)", _WITHOUT),
        ComparedMethod("biaffine", "span classification (biaffine)", _WITHOUT, {"litbank": 2e-4}),
        # With these presets' rates, twice as high, it diverges on GENIA.
        ComparedMethod(
            "queries",
            "learned queries, no diffusion",
            _WITHOUT,
            {"genia": 1e-4, "gum": 1e-4, "germeval2014": 1e-4},
        ),
        ComparedMethod(SEQUENTIAL, "autoregressive generation", _WITHOUT),
    )
}
METHOD_TITLES = [(name, method.title) for name, method in METHODS.items()]
