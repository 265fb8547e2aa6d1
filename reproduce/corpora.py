"""The corpora, encoders and methods that the tables speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Corpus:
    """The preset says where its files lie below the data folder, and how it is trained on."""

    name: str
    title: str
    preset: str
    encoder: str = "e5-small"
    sold: bool = False  # by the LDC: read from the user's own copy


@dataclass(frozen=True)
class Encoder:
    name: str
    hub: str  # where it is taken from if no folder is given
    folders: tuple[str, ...]  # how a folder with it is called


@dataclass(frozen=True)
class Method:
    """A model family, and the settings it is trained with instead of the preset's."""

    name: str
    title: str
    changes: tuple[str, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)  # of the encoder, by corpus

    def overrides(self, corpus: str | None = None) -> list[str]:
        """corpus: none for what is not trained."""
        rate = None if corpus is None else self.rates.get(corpus)
        return [*self.changes, *(f"{key}={value}" for key, value in learning_rates(rate))]


def learning_rates(encoder: float | None) -> list[tuple[str, float]]:
    """Of the encoder and of the rest, which has five times as much in all presets."""
    if encoder is None:
        return []
    rest = float(f"{5 * encoder:g}")  # as it is written in presets
    return [("training.encoder_learning_rate", encoder), ("training.learning_rate", rest)]


def _by_name(*entries: Corpus) -> dict[str, Corpus]:
    return {entry.name: entry for entry in entries}


NESTED = _by_name(
    Corpus("ace04", "ACE04", "ace04-e5-small", sold=True),
    Corpus("ace05", "ACE05", "ace05-e5-small", sold=True),
    Corpus("genia", "GENIA", "genia-e5-small"),
    Corpus("litbank", "LitBank", "litbank-e5-small"),
    Corpus("gum", "GUM", "gum-e5-small"),
    Corpus("germeval2014", "GermEval 2014", "germeval2014-e5-small"),
)
FLAT = _by_name(
    Corpus("conll03", "CoNLL03", "conll03-e5-small"),
    Corpus("ontonotes", "OntoNotes", "ontonotes-e5-small", sold=True),
    Corpus("msra", "MSRA", "msra-m3e-small", "m3e-small"),
    Corpus("wnut17", "WNUT-17", "wnut17-e5-small"),
    Corpus("bc5cdr", "BC5CDR", "bc5cdr-e5-small"),
)
CORPORA = {**NESTED, **FLAT}

# The first is the one that another takes the place of.
ENCODERS = {
    encoder.name: encoder
    for encoder in (
        Encoder("e5-small", "intfloat/e5-small", ("e5-small",)),
        Encoder("minilm-l6", "minilm", ("minilm-l6", "all-MiniLM-L6-v2")),
        Encoder("m3e-small", "moka-ai/m3e-small", ("m3e-small", "m3e-small-zh")),
    )
}
MAIN_ENCODER = next(iter(ENCODERS))

MAIN_METHOD = "diffusion"
SEQUENTIAL = "autoregressive"  # what the speed of the others is compared with
# What only denoising has a use for: the runs of a rival stay known when a preset changes it. Rates
# are other than the preset's where the table of learning rates says so.
_WITHOUT = ("decoder.reach=0", "decoder.typed_initializer=false")
METHODS = {
    method.name: method
    for method in (
        Method(MAIN_METHOD, "DiffusionNER"),
        Method("crf", "tagging (CRF)", _WITHOUT),
        Method("biaffine", "span classification (biaffine)", _WITHOUT, {"litbank": 2e-4}),
        # With twice this rate, as these presets have it, it forgets all on GENIA.
        Method(
            "queries",
            "learned queries, no diffusion",
            _WITHOUT,
            {"genia": 1e-4, "gum": 1e-4, "germeval2014": 1e-4},
        ),
        Method(SEQUENTIAL, "autoregressive generation", _WITHOUT),
    )
}
METHOD_TITLES = [(name, method.title) for name, method in METHODS.items()]
