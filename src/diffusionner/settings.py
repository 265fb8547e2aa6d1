"""Every setting, defined once.

The YAML file, `key=value` on the command line and the Python API are views of these dataclasses,
and every model folder stores them. The defaults are the recommended recipe; `configs/paper-*.yaml`
spell out the values of the paper.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from diffusionner.errors import SettingsError, nearest
from diffusionner.methods import METHODS
from diffusionner.setting_values import MAX_SHOWN, allowed, coerce, shown

MAX_SEED = 2**32 - 1
# Inference settings of the reverse process, which only method=diffusion has.
DENOISING = ("steps", "spans", "start", "average_steps", "eta", "seed")


def setting(default: Any, help: str, low: float | None = None, high: float | None = None) -> Any:
    """Return a dataclass field with its help text and the inclusive range of its values."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True)
class DataSettings:
    """The corpora. Relative paths are resolved against the working directory."""

    train: str | None = setting(None, "Training corpus, in any format.")
    dev: str | None = setting(None, "Development corpus, used to select the best epoch.")
    test: str | None = setting(None, "Test corpus, scored once after training.")
    dev_from_train: int = setting(0, "Without `dev`: hold out the last sentences of `train`.", 0)
    format: str | None = setting(None, "Format, as NAME or NAME:OPTION=VALUE; null: detect it.")


@dataclass(frozen=True)
class EncoderSettings:
    """The sentence encoder, which computes H_S once per sentence."""

    name: str = setting(
        "intfloat/e5-small",
        "Pretrained encoder (Hugging Face name, folder, `minilm`) or trained model to start from.",
    )
    pooling: Literal["max", "mean", "first"] = setting("max", "Pooling of subwords to words.")
    context: int = setting(
        2, "Sentences of the document on each side to encode as context.", 0, 100
    )
    passage_words: int = setting(
        0,
        "Words of a document to encode at once, with `context` on each side (0: one sentence).",
        0,
        100_000,
    )
    max_subwords: int = setting(
        512, "Longest encoder input; longer ones are cut into windows.", 16, 100_000
    )
    character_filters: int = setting(
        128, "Size of the character features of a word (0: none).", 0, 10_000
    )
    lstm_layers: int = setting(1, "BiLSTM layers on top of the encoder (0: none).", 0, 100)
    hidden_size: int | None = setting(
        None, "Size h of H_S; null: the encoder's hidden size.", 2, 100_000
    )
    dropout: float = setting(0.1, "Dropout rate on the word states.", 0.0, 0.9)
    cased: bool | None = setting(
        None, "Keep capitals (true) or lower-case (false); null: as the encoder's files say."
    )


@dataclass(frozen=True)
class DiffusionSettings:
    """The forward process on span boundaries."""

    timesteps: int = setting(1000, "Number of diffusion timesteps T.", 1, 10_000)
    schedule: Literal["cosine", "linear"] = setting("cosine", "Noise schedule.")
    expansion: Literal["random", "repetition"] = setting(
        "repetition", "Fill gold spans up to K with Gaussian spans or by repetition."
    )
    spans: int = setting(60, "Number of noisy spans per sentence in training, K.", 1, 10_000)
    scale: float = setting(
        1.0, "Signal scale lambda: boundaries lie in (-lambda, lambda).", 1e-3, 1e3
    )
    coordinates: Literal["left-right", "left-width"] = setting(
        "left-width", "Coordinates to diffuse: both boundaries, or left and width."
    )


@dataclass(frozen=True)
class DecoderSettings:
    """The entity decoder, which turns noisy spans into boundaries and types."""

    span_pooling: Literal["mean", "endpoints"] = setting(
        "endpoints", "Span representation: mean of its words, or first and last."
    )
    layers: int = setting(2, "Span encoder layers (0: no span encoder).", 0, 100)
    self_attention: bool = setting(True, "Let the noisy spans attend to each other.")
    cross_attention: bool = setting(True, "Let the noisy spans attend to the sentence.")
    heads: int = setting(8, "Number of attention heads.", 1, 1000)
    feedforward: int = setting(1024, "Hidden size of the feed-forward layers.", 1, 100_000)
    dropout: float = setting(0.1, "Dropout rate in the decoder.", 0.0, 0.9)
    offset_window: int = setting(
        8, "Words near a noisy boundary scored by distance (0: none).", 0, 1000
    )
    types: Literal["weights", "vectors", "words"] = setting(
        "weights",
        "Each type has its own weights, a learned vector read with the text, or one read from the "
        "words of its label, which can then be any.",
    )
    type_vectors: int = setting(1, "Vectors of each type, with decoder.types=vectors.", 1, 1000)
    initializer: Literal["none", "spans", "types"] = setting(
        "types", "Score every span of a sentence, or every span and type, to get candidates."
    )
    beliefs: bool = setting(
        False, "Denoise types of candidates over the document, instead of their boundaries."
    )
    discontinuous: bool | None = setting(
        None, "Find discontinuous entities; null: if the training data has some."
    )

    @property
    def joins_labels(self) -> bool:
        """Return whether types are vectors, which the encoder reads with the text."""
        return self.types != "weights"


@dataclass(frozen=True)
class TrainingSettings:
    """Optimisation, matching and model selection."""

    output: str = setting("runs/model", "Output folder for the model, training state and logs.")
    epochs: int = setting(10, "Number of epochs, not counting `frozen_epochs`.", 1)
    frozen_epochs: int = setting(0, "Initial epochs with the pretrained encoder frozen.", 0)
    batch_size: int = setting(32, "Sentences per update, over all processes.", 1)
    accumulation: int = setting(1, "Micro-batches per update.", 1)
    encoder_learning_rate: float = setting(1e-4, "Peak rate of the pretrained encoder.", 0.0)
    layer_decay: float = setting(
        1.0, "Factor on the rate from each encoder layer to the one below.", 1e-3, 1.0
    )
    learning_rate: float = setting(5e-4, "Peak rate of all other weights.", 0.0)
    warmup: float = setting(0.1, "Fraction of the updates used for linear warm-up.", 0.0, 1.0)
    weight_decay: float = setting(0.01, "AdamW weight decay.", 0.0)
    clip: float = setting(1.0, "Maximum gradient norm (0: no clipping).", 0.0)
    ema: float = setting(
        0.999, "Decay of the weights' moving average (0: none); less at first.", 0.0, 0.99999
    )
    subword_masking: float = setting(0.0, "Fraction of subwords to mask in training.", 0.0, 0.9)
    consistency: float = setting(
        0.0,
        "Weight of the divergence of the initializer's scores in two passes with different dropout "
        "(0: one pass).",
        0.0,
        1000.0,
    )
    matches_per_entity: int = setting(
        4, "Spans matched to each entity (1: the paper; 0: as many as K allows).", 0
    )
    overlap_cost: float = setting(2.0, "Matching cost of a span that misses the entity.", 0.0)
    soft_match_iou: float = setting(
        0.5, "IoU from which unmatched spans also learn an entity (0: none).", 0.0, 1.0
    )
    tune_threshold: bool = setting(
        True, "Calibrate scores and tune thresholds on dev; false: use `inference.phi` as given."
    )
    tune_steps: bool = setting(
        False,
        "Denoise only if that is better on dev, boundaries significantly; else store steps=0.",
    )
    evaluate_every: int = setting(1, "Epochs between evaluations on dev.", 1)
    checkpoint_minutes: float = setting(5.0, "Minutes between saved states within an epoch.", 0.0)
    precision: Literal["auto", "float32", "bf16"] = setting(
        "auto", "Precision in training; auto: bf16 on a GPU that supports it."
    )
    cuda_graphs: bool = setting(True, "Use CUDA graphs on a single GPU: faster, takes more memory.")
    seed: int = setting(0, "Seed of initial weights, data order, dropout and noise.", 0, MAX_SEED)


@dataclass(frozen=True)
class InferenceSettings:
    """The reverse process and the decoding of its result."""

    steps: int = setting(
        1, "Number of denoising steps, gamma; 0: the initializer's candidates as it scores them.", 0
    )
    spans: int | Literal["auto"] = setting(
        "auto",
        "Noisy spans of a sentence of up to 40 words, K_eval; auto: by its length.",
        1,
        10_000,
    )
    start: Literal["noise", "candidates"] = setting(
        "candidates", "Start from Gaussian noise or from the initializer's candidates."
    )
    average_steps: bool = setting(True, "Average the scores of all steps; false: use the last.")
    eta: float = setting(0.0, "DDIM's eta: 0 is deterministic, 1 as noisy as DDPM.", 0.0, 1.0)
    threshold: float | None = setting(
        None, "Minimum score; null: the threshold of the type, tuned on dev.", 0.0, 1.0
    )
    phi: float | None = setting(None, "Minimum summed probability, as in the paper.", 0.0, 3.0)
    overlap: Literal["nested", "flat", "all"] = setting(
        "nested", "Keep nested but not crossing entities, disjoint ones, or all."
    )
    seed: int = setting(0, "Seed of the initial noise.", 0, MAX_SEED)
    batch_size: int | Literal["auto"] = setting(
        "auto", "Sentences per batch; auto: 32, or 256 on a GPU.", 1, 100_000
    )


@dataclass(frozen=True)
class Settings:
    """One experiment."""

    method: str = setting("diffusion", "Registered method: network and training objective.")
    options: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "Options of the method; diffusion has none.", "low": None, "high": None},
    )
    data: DataSettings = field(default_factory=DataSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    diffusion: DiffusionSettings = field(default_factory=DiffusionSettings)
    decoder: DecoderSettings = field(default_factory=DecoderSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = "settings") -> Settings:
        """Build settings from nested dictionaries; unknown names and invalid values raise."""
        if not isinstance(values, Mapping):
            raise SettingsError(
                f"{origin}: expected sections such as 'encoder:', got {shown(values)}"
            )
        settings: Settings = _build(cls, values, origin)
        settings.check(origin)
        return settings

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Settings:
        """Read a YAML file, then apply `section.key=value` overrides."""
        path = Path(path)
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(
                f"cannot read the config {path}: {error.strerror}; presets are in configs/"
            ) from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{path} is not UTF-8; save it as UTF-8 text") from error
        except yaml.YAMLError as error:
            raise SettingsError(f"{path} is not valid YAML: {error}") from error
        return cls.from_dict({} if values is None else values, str(path)).override(overrides)

    def override(self, assignments: Sequence[str]) -> Settings:
        """Return a copy with `section.key=value` assignments applied; values are parsed as YAML."""
        values = self.to_dict()
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise SettingsError(
                    f"'{assignment}' is not an override; write section.key=value, "
                    "for example training.epochs=10"
                )
            section, _, name = key.strip().rpartition(".")
            if name == "encoder" and not section:
                section, name = name, "name"
            target = values.get(section) if section else values
            known = section == "options" or f"{section}.{name}".lstrip(".") in setting_names()
            if not known or not isinstance(target, dict):
                raise SettingsError(f"unknown setting '{key}'; {nearest(key, setting_names())}")
            try:
                target[name] = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise SettingsError(f"'{assignment}': the value is not valid YAML") from error
        return Settings.from_dict(values, "command line")

    def with_inference(self, options: Mapping[str, Any]) -> Settings:
        """Return a copy with other inference settings; None leaves a setting unchanged."""
        given = {name: value for name, value in options.items() if value is not None}
        for name in DENOISING:
            if name in given:
                self.require_denoising(f"the option {name}={given[name]}")
        if "threshold" in given or "phi" in given:  # the given one replaces the other
            given = {"threshold": None, "phi": None, **given}
        if given.get("start") == "noise" and self.inference.steps == 0:  # which needs some
            given = {"steps": InferenceSettings().steps, **given}
        values = {**dataclasses.asdict(self.inference), **given}
        section = _build(InferenceSettings, values, "options", "inference")
        changed = dataclasses.replace(self, inference=section)
        changed.check("options")
        return changed

    @property
    def denoises(self) -> bool:
        return METHODS[self.method].denoises

    @property
    def reads_documents(self) -> bool:
        """Return whether a sentence depends on more of its document than the context."""
        return self.decoder.beliefs or self.encoder.passage_words > 0

    @property
    def reads_labels(self) -> bool:
        """Return whether types are read from the words of their labels, which can be any."""
        return self.decoder.types == "words"

    @property
    def can_skip_denoising(self) -> bool:
        """Return whether the initializer scores types, which steps=0 needs."""
        return self.decoder.initializer == "types" and self.inference.start == "candidates"

    def require_denoising(self, what: str) -> None:
        """Raise SettingsError if the method has no reverse process."""
        if not self.denoises:
            raise SettingsError(
                f"{what} applies to denoising only, and the method of this model is "
                f"{self.method}; leave it out, or use a model with method=diffusion"
            )

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        if self.encoder.cased is None:  # release 0.1, which does not know it, can read the rest
            del values["encoder"]["cased"]
        if not self.decoder.beliefs:
            del values["decoder"]["beliefs"]
        if self.decoder.discontinuous is None:
            del values["decoder"]["discontinuous"]
        if not self.decoder.joins_labels:
            del values["decoder"]["types"], values["decoder"]["type_vectors"]
        return values

    def check(self, origin: str = "settings") -> None:
        """Raise SettingsError for values that do not go together."""
        if self.method not in METHODS:
            raise SettingsError(
                f"{origin}: method={shown(self.method)} is not registered; "
                f"{nearest(self.method[:MAX_SHOWN], METHODS)}"
            )
        for name in self.options:
            if name not in METHODS[self.method].options:
                raise SettingsError(
                    f"{origin}: method={self.method} has no option {shown(name)}; "
                    "leave it out of 'options'"
                )
        if self.inference.steps > self.diffusion.timesteps:
            raise SettingsError(
                f"{origin}: inference.steps={self.inference.steps} exceeds "
                f"diffusion.timesteps={self.diffusion.timesteps}; use at most that many"
            )
        if self.inference.steps == 0 and not self.can_skip_denoising:
            raise SettingsError(
                f"{origin}: inference.steps=0 needs decoder.initializer=types and "
                f"inference.start=candidates, and these are {self.decoder.initializer} and "
                f"{self.inference.start}; use at least one step"
            )
        if self.inference.threshold is not None and self.inference.phi is not None:
            raise SettingsError(
                f"{origin}: inference.threshold and inference.phi exclude each other; set only one"
            )
        if self.inference.start == "candidates" and self.decoder.initializer == "none":
            raise SettingsError(
                f"{origin}: inference.start=candidates needs decoder.initializer=spans or types, "
                "and this model has none; use inference.start=noise"
            )
        if self.decoder.beliefs and self.decoder.initializer != "types":
            raise SettingsError(
                f"{origin}: decoder.beliefs needs decoder.initializer=types, not "
                f"{self.decoder.initializer}; change one of them"
            )
        if self.decoder.discontinuous and not self.denoises:
            raise SettingsError(
                f"{origin}: method={self.method} cannot find discontinuous entities; use "
                "decoder.discontinuous=false"
            )
        if self.decoder.joins_labels and not self.denoises:
            raise SettingsError(
                f"{origin}: method={self.method} has no decoder.types={self.decoder.types}; use "
                "decoder.types=weights"
            )
        if self.decoder.joins_labels and (
            self.decoder.beliefs or self.decoder.initializer != "types"
        ):
            raise SettingsError(
                f"{origin}: decoder.types={self.decoder.types} needs decoder.initializer=types and "
                "decoder.beliefs=false; change one of them"
            )
        hidden = self.encoder.hidden_size
        if hidden is not None and hidden % self.decoder.heads:
            fitting = max(1, round(hidden / self.decoder.heads)) * self.decoder.heads
            raise SettingsError(
                f"{origin}: encoder.hidden_size={hidden} is not a multiple of "
                f"decoder.heads={self.decoder.heads}; the nearest is {fitting}"
            )
        if self.training.batch_size % self.training.accumulation:
            raise SettingsError(
                f"{origin}: training.batch_size={self.training.batch_size} is not a multiple of "
                f"training.accumulation={self.training.accumulation}; change one of them"
            )


# The class of each section, by name.
SECTIONS: dict[str, Any] = {f.name: f.default_factory for f in dataclasses.fields(Settings)[2:]}


def setting_names() -> list[str]:
    """Return the name of every setting as `key` or `section.key`."""
    return [name for name, _, _ in _fields()]


def describe() -> list[tuple[str, str, Any, str]]:
    """Return (name, allowed values, default, help) of every setting, as the reference shows it."""
    return [
        (name, allowed(hint, f), {} if name == "options" else f.default, f.metadata["help"])
        for name, hint, f in _fields()
    ]


def _fields() -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    """Yield the name, type and field of every setting, starting with those outside sections."""
    for section, cls in {"": Settings, **SECTIONS}.items():
        hints = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if f.name not in SECTIONS:
                yield f"{section}.{f.name}".lstrip("."), hints[f.name], f


def _build(cls: Any, values: Mapping[str, Any], origin: str, section: str = "") -> Any:
    """Build the settings, or one section of them, from checked values."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    built = {}
    for name, value in values.items():
        full = f"{section}.{name}" if section else str(name)
        if name not in fields:
            kind = "setting" if section else "section"
            known = [f"{section}.{other}" if section else other for other in fields]
            full = full[:MAX_SHOWN]
            raise SettingsError(f"{origin}: unknown {kind} '{full}'; {nearest(full, known)}")
        if section or name not in SECTIONS:
            built[name] = coerce(f"{origin}: {full}", value, hints[name], fields[name])
            continue
        if name == "encoder" and isinstance(value, str):
            value = {"name": value}  # shorthand: `encoder: minilm`
        if not isinstance(value, Mapping):
            example = dataclasses.fields(SECTIONS[name])[0].name
            raise SettingsError(
                f"{origin}: section '{name}' must contain settings, not {shown(value)}; "
                f"for example '{name}: {{{example}: ...}}'"
            )
        built[name] = _build(SECTIONS[name], value, origin, name)
    return cls(**built)
