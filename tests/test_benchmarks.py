"""`python -m benchmarks speed`: measurements of tiny models, and their parts."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus_files import EXCERPT

from benchmarks import agreement, run, sample, scaling, shapes, training
from benchmarks.cli import main
from benchmarks.run import Request
from benchmarks.stages import STAGES
from benchmarks.subjects import Subject
from benchmarks.throughput import ENCODER, TEXT, WORDS, Axes
from benchmarks.timing import Summary, interleave, percentile
from benchmarks.training import STAGES as TRAINING_STAGES
from benchmarks.training import Speedometer
from diffusionner import Entity, formats
from diffusionner.corpus import Sentence
from diffusionner.errors import CheckpointError
from diffusionner.inference.calibration import Calibration
from diffusionner.model import pointer
from diffusionner.settings import Settings
from models import lively_model
from reproduce.rivals.autoregressive import Generator

QUICK = ("speed", "--quick", "--seconds", "0.05", "--device", "cpu", "--data", EXCERPT)

TINY = (2, 32, 4, 64, 5000)


@pytest.fixture(scope="module")
def lively_folder(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that finds entities in every sentence."""
    folder = tmp_path_factory.mktemp("lively") / "model"
    lively_model(encoder_folder, "encoder.max_subwords=128").save_pretrained(folder)
    return folder


@pytest.fixture
def cli(cli):
    return partial(cli, main=main)


@pytest.fixture
def refused(refused):
    return partial(refused, main=main)


# --- Whole runs -------------------------------------------------------------------------------


def test_all_measurements_of_a_model(cli, lively_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result = cli(*QUICK, "--model", lively_folder, "--scaling", "--json", path)
    assert result.status == 0, result.err
    record = json.loads(path.read_text())
    found = {"date", "machine", "device", "data", "subjects", "throughput", "stages", "latency"}
    assert found | {"memory", "agreement", "training", "scaling", "repeats"} <= record.keys()
    assert {"torch", "transformers", "diffusionner"} <= record["machine"]["versions"].keys()
    assert record["data"]["fingerprint"]["sentences"] == len(formats.read(EXCERPT))
    (subject,) = record["subjects"]
    assert not subject["random_weights"]
    assert subject["settings"]["inference"]["overlap"] == "all"

    points = {(p["what"], p["steps"], p["spans"]): p for p in record["throughput"]}
    assert points.keys() == {
        (ENCODER, None, None), (WORDS, 1, 60), (TEXT, 1, 60), (WORDS, 5, 60), (TEXT, 5, 60),
        (WORDS, 1, "auto"), (TEXT, 1, "auto"),
    }  # fmt: skip
    assert points[ENCODER, None, None]["share_of_encoder"] is None
    for point in (points[WORDS, 1, 60], points[WORDS, 5, 60]):
        speed = point["sentences_per_second"]
        assert 0 < speed["low"] <= speed["median"] <= speed["high"]
        assert len(speed["values"]) == record["repeats"] == 2
        assert 0 < point["share_of_encoder"] < 1
    assert points[WORDS, 5, 60]["share_of_encoder"] < points[WORDS, 1, 60]["share_of_encoder"]

    (stages,) = record["stages"]
    assert list(stages["ms_per_sentence"]) == list(STAGES)
    assert stages["ms_per_sentence"]["denoise"]["median"] > 0
    (training,) = record["training"]
    assert training["sentences_per_second"]["low"] > 0
    assert list(training["ms_per_update"]) == list(TRAINING_STAGES)
    assert all(training["ms_per_update"][name] > 0 for name in ("forward", "match", "backward"))
    (latency,) = record["latency"]
    assert 0 < latency["spans_auto"]["p50_ms"] <= latency["spans_auto"]["p95_ms"]
    assert record["memory"]["resident_mb"] > 50
    assert record["memory"]["gpu_mb"] is None
    assert all(one["holds"] and one["entities"] > 100 for one in record["agreement"])
    assert [one["steps"] for one in record["agreement"]] == [1, 5]

    (growth,) = record["scaling"]
    sizes = [size["sentences"] for size in growth["sizes"]]
    assert sizes == [sizes[0] * times for times in (1, 10, 100)]
    assert growth["encoder_calls"]["1"] == growth["encoder_calls"]["5"] > 0
    for title in ("Throughput", "Stages of inference", "Training", "Agreement of the fast path"):
        assert title in result.out
    assert "Scaling: " in result.out
    assert "random weights, so" not in result.out


def test_a_shape_has_random_weights(cli, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    path = tmp_path / "bench.json"
    result = cli(
        *QUICK, "--shape", "tiny", "--json", path, "encoder.context=1", "encoder.lstm_layers=1",
        "training.batch_size=4", "diffusion.spans=12",
    )  # fmt: skip
    assert result.status == 0, result.err
    record = json.loads(path.read_text())
    (subject,) = record["subjects"]
    assert subject["random_weights"]
    assert subject["settings"]["encoder"]["context"] == 1
    assert subject["subwords_per_word"] == pytest.approx(1.3, abs=0.1)
    assert record["training"][0]["batch_size"] == 4
    assert record["scaling"] == []
    assert all(one["holds"] and one["entities"] for one in record["agreement"])
    assert "random weights, so its entities are meaningless" in result.out


def test_random_weights_generate_as_many_entities_as_gold_has(cli, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    told: list[int] = []
    generate = Generator.generate

    def noted(self: Generator, sentence: Any, counts: torch.Tensor | None = None) -> Any:
        found = generate(self, sentence, counts)
        if counts is not None:
            told.append(int(counts.max()))
            assert found.left.shape[2] == told[-1]
        return found

    monkeypatch.setattr(Generator, "generate", noted)
    path = tmp_path / "bench.json"
    result = cli(
        *QUICK, "--shape", "tiny", "--json", path, "method=autoregressive", "--no-train",
        "encoder.lstm_layers=1",
    )  # fmt: skip
    assert result.status == 0, result.err
    assert told and max(told) > 2
    record = json.loads(path.read_text())
    # From text the number is unknown.
    assert [point["what"] for point in record["throughput"]] == [ENCODER, WORDS]


def test_the_plain_network_has_its_own_pointers(lively_folder: Path, monkeypatch) -> None:
    """Otherwise an error in the fast ones would be on both sides of the comparison."""
    subject = Subject("lively", lively_folder, "cpu")
    sentences = formats.read(EXCERPT)[:6]
    expected = subject.load().predict_sentences(sentences)
    scores = pointer.pointer_scores
    monkeypatch.setattr(pointer, "pointer_scores", lambda *given: -scores(*given))
    assert any(expected)
    assert subject.load_plain().predict_sentences(sentences) == expected
    with pytest.raises(CheckpointError, match="self-test"):
        subject.load()


def test_the_plain_network_has_the_same_scores(lively_folder: Path, tmp_path: Path) -> None:
    ner = Subject("lively", lively_folder, "cpu").load()
    ner.calibration = Calibration((0.0, 3.0), (0.0, 0.6), dict.fromkeys(ner.labels, 0.2))
    ner.save_pretrained(tmp_path / "calibrated")
    subject = Subject("calibrated", tmp_path / "calibrated", "cpu")
    sentences = formats.read(EXCERPT)[:6]
    words, docs = [s.words for s in sentences], [s.doc for s in sentences]
    found = subject.load_plain().predict_tokens(words, docs)
    assert any(found)
    assert max(one.score for entities in found for one in entities) <= 0.6
    assert [[e[:3] for e in entities] for entities in found] == [
        [e[:3] for e in entities] for entities in subject.load().predict_tokens(words, docs)
    ]


def test_a_different_result_of_the_fast_path_is_an_error(
    cli, lively_folder: Path, monkeypatch, tmp_path: Path
) -> None:
    load = Subject.load

    def tampered(self: Subject, precision: str | None = None):
        ner = load(self, precision)
        with torch.no_grad():
            ner.network.decoder.left.output.weight[:, :4] *= -1
        return ner

    monkeypatch.setattr(Subject, "load", tampered)
    path = tmp_path / "bench.json"
    result = cli(*QUICK, "--no-train", "--model", lively_folder, "--json", path)
    assert result.status == 1
    assert "the fast path finds other entities than the plain network" in result.err
    assert "DIFFERENT" in result.out
    record = json.loads(path.read_text())  # measurements are not lost
    assert not any(one["holds"] for one in record["agreement"])
    assert record["training"] == []


def test_every_section_is_saved_once_measured(
    cli, lively_folder: Path, monkeypatch, tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    saved: list[set[str]] = []
    expect = agreement.expect

    def noted(*arguments):
        saved.append(set(json.loads(path.read_text())))
        return expect(*arguments)

    def interrupted(job: training.Job, *arguments):
        saved.append(set(json.loads(path.read_text())))
        raise KeyboardInterrupt

    monkeypatch.setattr(agreement, "expect", noted)
    monkeypatch.setattr(training, "measure", interrupted)
    result = cli(
        "speed", "--data", EXCERPT, "--device", "cpu", "--model", lively_folder, "--json", path,
        "--steps", "1", "--spans", "60", "--batch-sizes", "32", "--repeats", "1",
        "--seconds", "0.05",
    )  # fmt: skip
    assert result.status == 130
    assert {"throughput", "latency", "stages", "memory"} <= saved[0]
    assert saved[1] - saved[0] == {"agreement"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--model FOLDER, or --shape"),
        (("--shape", "bert-lage"), "did you mean 'bert-large'?"),
        (("--shape", "minilm", "--model", "x"), "exclude each other"),
        (("--shape", "minilm", "--precision", "fp16"), "did you mean 'bf16'?"),
        (("--shape", "minilm", "--steps", "1,no"), "--steps: 'no' is not a positive number"),
        (("--shape", "minilm", "--spans", "0"), "--spans: '0' is not a positive number"),
        (("--shape", "tiny", "--device", "cuda:99"), "device 'cuda:99' cannot be used"),
        (("--model", "./nowhere"), "no model in 'nowhere'"),
    ],
)
def test_invalid_arguments_are_refused(refused, monkeypatch, arguments, words) -> None:
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    assert words in refused("speed", "--data", EXCERPT, *arguments)


# --- Parts ------------------------------------------------------------------------------------


def test_measurements_take_turns_after_a_warm_up() -> None:
    called: list[str] = []

    def slow_at_first() -> None:
        called.append("a")
        if len(called) == 1:
            time.sleep(0.3)

    tasks = {"a": slow_at_first, "b": lambda: called.append("b")}
    told: list[tuple[str, int, int]] = []
    seconds = interleave(tasks, 3, "cpu", lambda *words: told.append(words), "here")
    assert called == ["a", "b"] * 4
    assert [len(values) for values in seconds.values()] == [3, 3]
    assert max(seconds["a"]) < 0.3
    assert told[0] == ("here", 0, 8)
    assert told[-1] == ("here", 8, 8)


def test_a_gpu_needs_more_warm_up_turns(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    called: list[int] = []
    tasks = {"a": lambda: called.append(1)}
    assert len(interleave(tasks, 3, "cuda:0", lambda *words: None, "here")["a"]) == 3
    assert len(called) == 7
    called.clear()
    interleave(tasks, 3, "cuda:0", lambda *words: None, "here", uncounted=1)
    assert len(called) == 4, "already warm"


def test_summary_and_percentiles() -> None:
    summary = Summary.of([5.0, 1.0, 2.0, 100.0, 3.0])
    assert (summary.median, summary.low, summary.high) == (3.0, 1.0, 100.0)
    values = [float(i) for i in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.95) == 95
    assert percentile([7.0], 0.95) == 7


def test_axes_vary_one_parameter_at_a_time() -> None:
    axes = Axes((1, 2), ("auto", 60), (8, 32), 1, 60, 32)
    points = list(axes.points("m", "float32", whole=True))
    assert len(points) == len(set(points)) == 2 + 2 + 2 + 2 + 1  # encoder, base, γ, auto, batches
    assert {p.batch_size for p in points if p.what == ENCODER} == {8, 32}
    base = (1, 60, 32)
    for point in points:
        if point.what != ENCODER:
            here = (point.steps, point.spans, point.batch_size)
            assert sum(a != b for a, b in zip(here, base, strict=True)) <= 1
    assert len(list(axes.points("m", "bf16", whole=False))) == 3


def test_a_sample_has_whole_documents_from_all_of_the_corpus() -> None:
    sentences = [Sentence([f"w{d}.{i}"], doc=f"d{d}") for d in range(10) for i in range(4)]
    few = sample.draw(sentences, 20)
    assert [s.doc for s in few] == [f"d{d}" for d in (0, 2, 4, 6, 8) for _ in range(4)]
    many = sample.draw(sentences, 90)
    assert len(many) == 90
    assert many[:40] == sentences
    assert [s.words for s in many[40:80]] == [s.words for s in sentences]
    assert len({s.doc for s in many}) == 10 + 10 + 3  # repetitions are not each other's context
    assert len(sample.exactly(sentences, 18)) == 18
    assert sample.exactly(sentences, 90) == many
    uneven = [Sentence(["a"], doc="short"), *(Sentence(["b"], doc="long") for _ in range(50))]
    assert [len(sample.exactly(uneven, count)) for count in (3, 30, 51, 60)] == [3, 30, 51, 60]
    assert sample.spread(sentences, 4) == sentences[::10]
    assert len(sample.spread(sentences, 0)) == 1
    assert sample.spread(sentences, 1000) == sentences
    alone = [Sentence(["a", "b"]), Sentence(["c"])]
    assert sample.texts([*alone, *sentences[:2]]) == ["a b", "c", "w0.0\n\nw0.1"]


@pytest.mark.parametrize("epoch", [2, 9, 1000])  # updates
def test_speed_excludes_the_time_between_epochs(epoch: int, monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr(training.time, "perf_counter", lambda: now)
    meter = Speedometer("cpu", 0.02)
    for number in range(100):
        first, last = number % epoch == 0, (number + 1) % epoch == 0
        now += 0.05 if first else 0.005  # the first update includes the time between epochs
        meter.after_update(4, last)
    assert len(meter.found) > 3
    assert meter.found == pytest.approx([4 / 0.005] * len(meter.found))


@pytest.fixture
def job(encoder_folder: Path, tmp_path: Path, monkeypatch) -> training.Job:
    """A job with epochs of six updates and short sentences."""
    monkeypatch.setattr(training, "EPOCH", 6)
    sentences = [s for s in formats.read(EXCERPT) if len(s.words) < 16]
    settings = Settings().override(
        ["training.batch_size=3", "diffusion.spans=8", "decoder.heads=4", "encoder.lstm_layers=0"]
    )
    return training.Job(settings, encoder_folder, sentences, tmp_path)


def watch(trainer: training.TimedTrainer, monkeypatch) -> list[int]:
    """Train; return the numbers, from 1, of the updates that count for the speed."""
    counted: list[int] = []
    after_update = trainer.meter.after_update

    def note(sentences: int, last: bool) -> None:
        number = trainer.progress.step + 1
        counted.append(number)
        assert sentences == 3
        assert last == (number % 6 == 0)
        after_update(sentences, last)

    monkeypatch.setattr(trainer.meter, "after_update", note)
    trainer.run_until_measured()
    return counted


def test_training_warms_up_before_measuring(job, monkeypatch) -> None:
    told: list[tuple[int, int]] = []
    trainer = training.TimedTrainer(job.prepare(), 2, 0.3, lambda *given: told.append(given))
    counted = watch(trainer, monkeypatch)
    assert counted[0] >= training.WARM_UP
    assert counted[-1] > 6  # a window continues in the next epoch
    assert len(trainer.meter.found) == 2
    assert told[-1] == (2, 2)
    assert trainer.clock is not None
    assert training.WARM_UP <= len(trainer.clock.found) <= training.STAGE_UPDATES
    assert trainer.clock.medians().keys() == TRAINING_STAGES.keys()
    assert not list(job.folder.rglob("*.safetensors"))  # nothing is saved


def test_with_cuda_graphs_the_first_epoch_is_the_warm_up(job, monkeypatch) -> None:
    trainer = training.TimedTrainer(job.prepare(), 1, 0.02, lambda *given: None)
    monkeypatch.setattr(trainer, "_record_largest", lambda: None)  # needs a GPU
    trainer.uses_graphs = True
    counted = watch(trainer, monkeypatch)
    assert counted[0] == 7
    assert len(trainer.meter.found) == 1


def test_the_record_names_device_and_precision(job, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = job.settings.override(["training.cuda_graphs=true"])
    found = training.measure(replace(job, settings=settings), 1, 0.05, lambda *given: None)
    assert (found["device"], found["precision"], found["cuda_graphs"]) == ("cpu", "float32", False)


def test_compare_tolerates_rounding_only() -> None:
    one = Entity(0, 2, "PER", 0.9)
    at_threshold = Entity(3, 4, "PER", 0.8334)
    sure = Entity(3, 4, "PER", 0.95)
    least = {"PER": 2.5 / 3}
    assert agreement.compare([[one]], [[one, at_threshold]], least)[:4] == (1, 1, 1, 1)
    assert agreement.compare([[one]], [[one, sure]], least)[:4] == (0, 1, 2, 1)
    moved = one._replace(score=0.8)
    assert agreement.compare([[one], []], [[moved], []], least) == (2, 1, 1, 1, pytest.approx(0.1))


def test_the_plain_network_runs_once_for_all_precisions(lively_folder: Path, monkeypatch) -> None:
    loaded: list[str] = []
    load_plain = Subject.load_plain

    def noted(self: Subject):
        loaded.append(self.name)
        return load_plain(self)

    monkeypatch.setattr(Subject, "load_plain", noted)
    request = Request(
        EXCERPT, (lively_folder,), None, Settings(), None, "cpu", ("bf16",), False,
        Axes((1, 5), (60,), (8,), 1, 60, 8), 1, 0.05, (), 10, False,
    )  # fmt: skip
    subjects = [Subject("lively", lively_folder, "cpu")]
    found = run._agreement(request, subjects, formats.read(EXCERPT), lambda *words: None)
    pairs = [(one["precision"], one["steps"]) for one in found]
    assert pairs == [("float32", 1), ("float32", 5), ("bf16", 1), ("bf16", 5)]
    assert [one["sentences"] for one in found] == [10] * 4
    assert loaded == ["lively"]


def test_a_slow_plain_network_reads_few_sentences(
    encoder_folder: Path, monkeypatch, tmp_path: Path
) -> None:
    """The last sentence still has its following context, on both sides of the comparison."""
    lively_model(encoder_folder, "encoder.context=2").save_pretrained(tmp_path / "model")
    subject = Subject("lively", tmp_path / "model", "cpu")
    sentences = formats.read(EXCERPT)[:40]
    monkeypatch.setattr(agreement, "TIME_LIMIT", 0.0)
    expected = agreement.expect(subject, sentences, (1, 3))
    assert [one.steps for one in expected] == [1, 3]
    for one in expected:
        assert agreement.MIN_SENTENCES <= len(one.entities) < 10
        assert one.sentences == sentences[: len(one.entities) + 2]
        found = agreement.check(subject, "float32", subject.load(), one, batch_size=8)
        assert found.holds
        assert (found.sentences, found.f1) == (len(one.entities), 1.0)
    monkeypatch.setattr(agreement, "TIME_LIMIT", 1e6)
    (one,) = agreement.expect(subject, sentences[:12], (1,))
    assert len(one.entities) == 12


@pytest.mark.parametrize("random", [True, False])
def test_scores_are_compared_for_trained_weights_only(lively_folder: Path, random: bool) -> None:
    """With random weights, rounding decides between duplicates, which may differ in score."""
    subject = Subject("lively", lively_folder, "cpu", random)
    fast = subject.load()
    (expected,) = agreement.expect(subject, formats.read(EXCERPT)[:8], (1,))

    def holds(entities: list[list[Entity]]) -> bool:
        given = replace(expected, entities=entities)
        return agreement.check(subject, "float32", fast, given, batch_size=4).holds

    assert holds(expected.entities)
    moved = [[e._replace(score=e.score - 0.02) for e in found] for found in expected.entities]
    assert holds(moved) == random
    other = [[e._replace(start=e.start - 1) for e in found] for found in expected.entities]
    assert not holds(other)


def test_tf32_is_disabled_during_the_comparison(lively_folder: Path, monkeypatch) -> None:
    subject = Subject("lively", lively_folder, "cpu")
    fast = subject.load()
    (expected,) = agreement.expect(subject, formats.read(EXCERPT)[:4], (1,))
    allowed: list[bool] = []
    predict = fast.predict_tokens

    def noted(*arguments, **options):
        allowed.append(torch.backends.cudnn.allow_tf32)
        return predict(*arguments, **options)

    monkeypatch.setattr(fast, "predict_tokens", noted)
    before = torch.backends.cudnn.allow_tf32
    agreement.check(subject, "float32", fast, expected, batch_size=4)
    assert allowed and not any(allowed)
    assert torch.backends.cudnn.allow_tf32 == before


def test_positions_reveal_a_stream_that_slows_down() -> None:
    steady = np.arange(1000) * 0.002
    even = scaling.positions(steady)
    assert even["first_ms_per_sentence"] == pytest.approx(2)
    assert even["last_ms_per_sentence"] == pytest.approx(2)
    slowing = scaling.positions(steady**2)
    assert slowing["last_ms_per_sentence"] > 5 * slowing["first_ms_per_sentence"]


def test_calls_of_all_instances_are_counted() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with scaling.counted(torch.nn.Linear) as calls:
        torch.nn.Sequential(first, torch.nn.ReLU(), second)(torch.zeros(1, 2))
    first(torch.zeros(1, 2))
    assert len(calls) == 2
