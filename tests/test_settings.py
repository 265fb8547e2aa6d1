"""Settings: every way to give them, and every way to get them wrong."""

from __future__ import annotations

import dataclasses
import operator
import typing
from pathlib import Path

import pytest

import reproduce.rivals  # noqa: F401  (registers the rivals)
from diffusionner.errors import SettingsError
from diffusionner.settings import SECTIONS, Settings, describe, setting_names
from diffusionner.storage.config import upgrade_settings

CONFIGS = sorted((Path(__file__).parents[1] / "configs").rglob("*.y*ml"))
ALONE = ["method", "options"]  # in no section
HINTS = {name: typing.get_type_hints(Settings)[name] for name in ALONE} | {
    f"{section}.{name}": hint
    for section, cls in SECTIONS.items()
    for name, hint in typing.get_type_hints(cls).items()
}
FIELDS = {f.name: f for f in dataclasses.fields(Settings) if f.name in ALONE} | {
    f"{section}.{f.name}": f for section, cls in SECTIONS.items() for f in dataclasses.fields(cls)
}
LITERALS = [name for name in FIELDS if typing.get_origin(HINTS[name]) is typing.Literal]
LOW = [name for name, f in FIELDS.items() if f.metadata["low"] is not None]
HIGH = [name for name, f in FIELDS.items() if f.metadata["high"] is not None]
INTEGERS = [n for n, hint in HINTS.items() if hint is int or int in typing.get_args(hint)]


def given(name: str, value: object) -> Settings:
    if name in ALONE:
        return Settings.from_dict({name: value})
    section, key = name.split(".")
    return Settings.from_dict({section: {key: value}})


def read(settings: Settings, name: str) -> object:
    return operator.attrgetter(name)(settings)


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# What is read


def test_yaml_then_overrides(tmp_path):
    path = write(tmp_path, "training: {epochs: 3, batch_size: 16}\ndiffusion:\n  scale: 2.0\n")
    settings = Settings.load(path, ["training.epochs=7", "inference.overlap=flat"])
    assert settings.training.epochs == 7
    assert settings.training.batch_size == 16
    assert settings.diffusion.scale == 2.0
    assert settings.inference.overlap == "flat"
    assert settings.training.warmup == Settings().training.warmup


def test_the_last_override_wins():
    assert Settings().override(["training.epochs=2", "training.epochs=9"]).training.epochs == 9


def test_overriding_leaves_the_original_alone():
    before = Settings()
    before.override(["training.epochs=2"])
    assert before == Settings()


def test_an_empty_file_means_the_defaults(tmp_path):
    assert Settings.load(write(tmp_path, "# nothing yet\n")) == Settings()


@pytest.mark.parametrize("text", ["2e-5", "2.0e-5", "0.00002"])
def test_exponents_without_a_point_are_numbers(tmp_path, text):
    # YAML 1.1 reads 2e-5 as a string.
    loaded = Settings.load(write(tmp_path, f"training: {{learning_rate: {text}}}"))
    assert loaded.training.learning_rate == 2e-5
    assert Settings().override([f"training.learning_rate={text}"]) == loaded


def test_whole_floats_are_integers():
    epochs = given("training.epochs", "1e1").training.epochs
    assert epochs == 10 and isinstance(epochs, int)


def test_integers_are_floats_where_floats_belong():
    clip = given("training.clip", 2).training.clip
    assert clip == 2.0 and isinstance(clip, float)


def test_encoder_shorthand(tmp_path):
    assert Settings.load(write(tmp_path, "encoder: minilm")).encoder.name == "minilm"
    assert Settings().override(["encoder=minilm"]).encoder.name == "minilm"
    assert Settings().override(["encoder.name=minilm"]).encoder.name == "minilm"


def test_null_where_it_means_something():
    assert given("encoder.hidden_size", None).encoder.hidden_size is None
    assert Settings().override(["data.dev=null"]).data.dev is None
    with pytest.raises(SettingsError, match=r"encoder\.name=None"):
        given("encoder.name", None)


def test_booleans():
    assert Settings().override(["decoder.self_attention=false"]).decoder.self_attention is False
    assert Settings().override(["decoder.self_attention=on"]).decoder.self_attention is True
    for name, value in (("decoder.self_attention", 1), ("training.epochs", True)):
        with pytest.raises(SettingsError, match=name):
            given(name, value)


def test_values_with_an_equals_sign_keep_it():
    assert Settings().override(["data.train=a=b.jsonl"]).data.train == "a=b.jsonl"


def test_the_dictionary_holds_everything():
    settings = Settings().override(["training.epochs=3", "encoder.hidden_size=64"])
    assert Settings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_presets_load(path):
    settings = Settings.load(path)
    assert settings.data.train, "a preset without a corpus is no preset"
    assert settings != Settings()


def test_there_are_presets():
    assert CONFIGS


# The reference


def test_describe_covers_every_setting():
    rows = describe()
    assert [name for name, *_ in rows] == list(FIELDS) == setting_names()
    fields = {f.name: f for f in dataclasses.fields(Settings)}
    assert {name: f.default_factory for name, f in fields.items() if name not in ALONE} == SECTIONS
    for name, allowed, default, text in rows:
        assert default == read(Settings(), name)
        assert given(name, default) == Settings(), "a default must be a possible value"
        assert allowed and text.endswith(".")
    assert len({text for *_, text in rows}) == len(rows), "no two settings share a help text"


def test_describe_shows_choices_and_ranges():
    allowed = {name: text for name, text, *_ in describe()}
    assert allowed["inference.overlap"] == "nested | flat | all"
    assert allowed["training.epochs"] == "int, at least 1"
    assert allowed["inference.phi"] == "float or null, 0 to 3"
    assert allowed["encoder.hidden_size"] == "int or null, 2 to 100000"
    assert allowed["data.train"] == "str or null"
    assert allowed["inference.spans"] == "int or auto, 1 to 10000"


# What is wrong


@pytest.mark.parametrize("name", LITERALS)
def test_unknown_choice_names_the_nearest(name):
    for option in typing.get_args(HINTS[name]):
        with pytest.raises(SettingsError) as caught:
            given(name, option + "x")
        assert f"{name}='{option}x'" in str(caught.value)
        assert f"did you mean '{option}'?" in str(caught.value)


def test_choice_that_resembles_nothing_lists_all():
    with pytest.raises(SettingsError, match="choose one of: nested, flat, all"):
        given("inference.overlap", "qqq")
    with pytest.raises(SettingsError, match=r"inference\.overlap=\['flat'\]"):
        given("inference.overlap", ["flat"])


@pytest.mark.parametrize("name", LOW)
def test_too_small(name):
    low = FIELDS[name].metadata["low"]
    assert read(_lenient(name, low), name) == low
    with pytest.raises(SettingsError) as caught:
        given(name, low - 1)
    assert f"{name}={low - 1!r}" in str(caught.value)
    assert f"nearest valid value is {low:g}" in str(caught.value)


@pytest.mark.parametrize("name", HIGH)
def test_too_large(name):
    high = FIELDS[name].metadata["high"]
    assert read(_lenient(name, high), name) == high
    with pytest.raises(SettingsError) as caught:
        given(name, high + 1)
    assert f"{name}={high + 1!r}" in str(caught.value)
    assert f"nearest valid value is {high:g}" in str(caught.value)


def _lenient(name: str, value: object) -> Settings:
    """The setting at its bound, with the ones it must agree with out of its way."""
    section, key = name.split(".")
    values: dict[str, dict[str, object]] = {"inference": {"steps": 1}, "decoder": {"heads": 1}}
    values.setdefault(section, {})[key] = value
    return Settings.from_dict(values)


@pytest.mark.parametrize("name", FIELDS)
def test_wrong_type(name):
    for value in ([1], {1: 1}):
        with pytest.raises(SettingsError) as caught:
            given(name, value)
        assert f"{name}={value!r} is not valid" in str(caught.value)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_reject_fractions_and_words(name):
    for value in (20.5, "many", float("nan"), float("inf"), "1e999"):
        with pytest.raises(SettingsError) as caught:
            given(name, value)
        assert f"{name}={value!r} is not valid; expected int" in str(caught.value)


def test_floats_reject_what_is_not_finite():
    for value in (float("nan"), "nan", float("inf"), "-inf"):
        with pytest.raises(SettingsError, match=r"training\.learning_rate=.* expected float"):
            given("training.learning_rate", value)


def test_strings_reject_numbers():
    with pytest.raises(SettingsError, match=r"data\.train=3 is not valid; expected str or null"):
        Settings().override(["data.train=3"])


def test_unknown_section():
    with pytest.raises(SettingsError, match=r"my\.yaml: unknown section 'trainning'; .*'training'"):
        Settings.from_dict({"trainning": {}}, "my.yaml")
    with pytest.raises(SettingsError, match="unknown section '7'; choose one of: method, options,"):
        Settings.from_dict({7: {}})


def test_unknown_key():
    with pytest.raises(SettingsError) as caught:
        Settings.from_dict({"training": {"epoch": 3}}, "my.yaml")
    assert str(caught.value) == (
        "my.yaml: unknown setting 'training.epoch'; did you mean 'training.epochs'?"
    )


@pytest.mark.parametrize(
    ("assignment", "meant"),
    [
        ("training.epoch=3", "training.epochs"),
        ("inferrence.steps=3", "inference.steps"),
        ("steps=3", "inference.steps"),
        ("learning_rate=1", "training.learning_rate"),
        ("diffusion.time_steps=3", "diffusion.timesteps"),
    ],
)
def test_unknown_override(assignment, meant):
    with pytest.raises(SettingsError) as caught:
        Settings().override([assignment])
    key = assignment.partition("=")[0]
    assert str(caught.value) == f"unknown setting '{key}'; did you mean '{meant}'?"


def test_override_without_a_value():
    with pytest.raises(SettingsError, match=r"'training\.epochs' is not an override; write sec"):
        Settings().override(["training.epochs"])
    with pytest.raises(SettingsError, match=r"training\.epochs=None is not valid"):
        Settings().override(["training.epochs="])
    with pytest.raises(SettingsError, match=r"training\.epochs=\[1': .* not valid YAML"):
        Settings().override(["training.epochs=[1"])


def test_bad_overrides_name_their_origin(tmp_path):
    path = write(tmp_path, "training: {epochs: 0}")
    with pytest.raises(SettingsError, match=r"config\.yaml: training\.epochs=0"):
        Settings.load(path, ["training.epochs=3"])
    with pytest.raises(SettingsError, match=r"command line: training\.epochs=0"):
        Settings().override(["training.epochs=0"])


def test_more_steps_than_timesteps():
    with pytest.raises(SettingsError, match=r"inference\.steps=11 .*diffusion\.timesteps=10; use"):
        Settings().override(["inference.steps=11", "diffusion.timesteps=10"])
    assert Settings().override(["inference.steps=10", "diffusion.timesteps=10"])


def test_hidden_size_and_heads():
    with pytest.raises(SettingsError, match=r"hidden_size=30 .*decoder\.heads=8; .*nearest is 32"):
        Settings().override(["encoder.hidden_size=30"])
    assert Settings().override(["encoder.hidden_size=30", "decoder.heads=5"])


def test_accumulation():
    with pytest.raises(SettingsError, match=r"batch_size=32 .*training\.accumulation=3"):
        Settings().override(["training.accumulation=3"])
    assert Settings().override(["training.accumulation=2"])


def test_sections_must_be_sections():
    with pytest.raises(
        SettingsError, match=r"section 'training' must contain .*not 3.*training: {"
    ):
        Settings.from_dict({"training": 3})


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n- b\n", "expected sections such as 'encoder:'"), ("a: [1", "is not valid YAML")],
)
def test_files_that_hold_no_settings(tmp_path, text, message):
    with pytest.raises(SettingsError, match=rf"config\.yaml.*{message}"):
        Settings.load(write(tmp_path, text))


def test_missing_file(tmp_path):
    with pytest.raises(SettingsError, match=r"cannot read the config .*absent\.yaml: No such file"):
        Settings.load(tmp_path / "absent.yaml")
    with pytest.raises(SettingsError, match="cannot read the config"):
        Settings.load(tmp_path)


def test_file_in_another_encoding(tmp_path):
    (tmp_path / "config.yaml").write_bytes("data: {train: caf\xe9.jsonl}".encode("latin-1"))
    with pytest.raises(SettingsError, match=r"config\.yaml"):
        Settings.load(tmp_path / "config.yaml")


def test_integers_beyond_floats():
    with pytest.raises(SettingsError, match=r"training\.epochs"):
        given("training.epochs", 10**400)


def test_large_seeds_are_exact_or_refused():
    assert given("training.seed", 2**32 - 1).training.seed == 2**32 - 1
    with pytest.raises(SettingsError, match=r"training\.seed"):
        given("training.seed", 2**53 + 1)


def test_nearest_hidden_size_may_be_smaller():
    with pytest.raises(SettingsError, match="the nearest is 32"):
        given("encoder.hidden_size", 33)


# Options of a prediction


def test_inference_options():
    settings = Settings().with_inference({"steps": 3, "overlap": None, "phi": 2})
    assert settings.inference.steps == 3
    assert settings.inference.overlap == "nested"
    assert settings.inference.phi == 2.0
    assert settings.training == Settings().training


def test_bad_inference_options():
    with pytest.raises(SettingsError, match=r"inference\.overlap='crossing'"):
        Settings().with_inference({"overlap": "crossing"})
    with pytest.raises(SettingsError, match=r"'inference\.step'; did you mean 'inference\.steps'"):
        Settings().with_inference({"step": 1})
    with pytest.raises(SettingsError, match=r"inference\.steps=1001 exceeds"):
        Settings().with_inference({"steps": 1001})


# Methods


def test_the_method(tmp_path):
    loaded = Settings.load(write(tmp_path, "method: crf\ntraining: {epochs: 3}"))
    assert (loaded.method, loaded.denoises) == ("crf", False)
    assert loaded.override(["method=biaffine"]).method == "biaffine"
    assert Settings.from_dict(loaded.to_dict()) == loaded
    assert Settings().denoises
    with pytest.raises(SettingsError, match=r"method='crff' .*did you mean 'crf'"):
        Settings().override(["method=crff"])
    with pytest.raises(SettingsError, match="unknown setting 'training'"):
        Settings().override(["training=3"])


@pytest.mark.parametrize("name", ["steps", "spans", "start", "average_steps", "eta", "seed"])
def test_a_rival_has_no_options_of_denoising(name):
    settings = Settings.from_dict({"method": "biaffine"})
    value = getattr(Settings().inference, name)
    assert Settings().with_inference({name: value})
    with pytest.raises(SettingsError, match=rf"option {name}=.* method of this model is biaffine"):
        settings.with_inference({name: value})
    assert settings.with_inference({name: None, "threshold": 0.5}).inference.threshold == 0.5


def test_options_are_those_of_the_method():
    assert Settings().override(["method=crf", "options.levels=2"]).options == {"levels": 2}
    with pytest.raises(SettingsError, match=r"method=diffusion has no option 'levels'"):
        Settings().override(["options.levels=2"])
    with pytest.raises(SettingsError, match=r"options=3 is not valid; expected mapping"):
        Settings().override(["options=3"])


def test_settings_of_version_1_are_converted():
    old = {
        "data": {"train": "a.jsonl", "choose_on_test": False},
        "encoder": {"character_size": 48, "character_length": 20, "context": 0},
        "decoder": {"reach": 8, "initializer": True, "typed_initializer": True, "levels": "auto"},
        "training": {"near": 0.5, "hidden_subwords": 0.15, "draws": 1, "no_entity_weight": 1.0},
    }
    settings = Settings.from_dict(upgrade_settings(old))
    assert (settings.decoder.offset_window, settings.decoder.initializer) == (8, "types")
    assert (settings.training.soft_match_iou, settings.training.subword_masking) == (0.5, 0.15)
    assert (settings.encoder.context, settings.options) == (0, {})


@pytest.mark.parametrize(("initializer", "expected"), [(True, "spans"), (False, "none")])
def test_settings_that_came_later_keep_their_first_default(initializer, expected):
    values = upgrade_settings({"decoder": {"initializer": initializer}})
    assert values["decoder"] == {"initializer": expected, "offset_window": 0}
    assert values["training"] == {"soft_match_iou": 0.0, "subword_masking": 0.0}
