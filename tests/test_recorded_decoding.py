"""Inference on a GPU by recordings: the launch logic on any machine, CUDA graphs on a GPU."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from corpus_files import EXCERPT

from benchmarks import agreement
from benchmarks.subjects import Subject
from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence
from diffusionner.inference.gpu import engine as gpu_engine
from diffusionner.inference.gpu import recording
from diffusionner.inference.gpu.engine import LANES, GpuEngine, Lane
from diffusionner.inference.gpu.recording import Recorder, Recordings, Shape, padded_count
from models import assert_same, assert_same_refinements, lively_model

WORDS = [s.words for s in formats.read(EXCERPT)]
INITIALIZER = ("decoder.initializer=types", "decoder.offset_window=3")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


class Again:
    """Stand-in for a CUDA graph: runs the same function again over the same memory."""

    def __init__(self) -> None:
        self.recordings = self.replays = 0

    def __call__(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        result = work()
        self.recordings += 1

        def replay() -> None:
            self.replays += 1
            write_into(result, work())

        return result, replay


def write_into(old: Any, new: Any) -> None:
    """Copy the tensors of a result into those of an earlier one."""
    if isinstance(new, torch.Tensor):
        old.copy_(new)
    elif isinstance(new, (tuple, list)):
        for one, other in zip(old, new, strict=True):
            write_into(one, other)
    elif dataclasses.is_dataclass(new):
        for field in dataclasses.fields(new):
            write_into(getattr(old, field.name), getattr(new, field.name))


def gpu_model_on_cpu(plain: DiffusionNER, record: Recorder, lanes: int = 1) -> DiffusionNER:
    """Return the model with the engine of a GPU, which records with a stand-in."""
    engine = GpuEngine(plain.network, plain.network, cuda_graphs=True)
    seen: Counter[Shape] = Counter()
    engine.lanes = [Lane.recorded(engine.running, record, seen) for _ in range(lanes)]
    return DiffusionNER(engine, plain.subwords, plain.settings, plain.calibration)


def with_recordings(plain: DiffusionNER, lanes: int = 1) -> tuple[DiffusionNER, Again]:
    again = Again()
    return gpu_model_on_cpu(plain, again, lanes), again


def recordings(ner: DiffusionNER) -> list[int]:
    """Return the number of recordings of each lane."""
    return [lane.recordings for lane in ner.engine.lanes]


@pytest.mark.parametrize(
    "options",
    [
        {"start": "noise", "spans": 9, "steps": 1},
        {"start": "noise", "spans": 9, "steps": 3, "average_steps": True},
        {"start": "noise", "spans": "auto", "steps": 2},
        {"start": "noise", "spans": 9, "steps": 3, "eta": 1.0},
        {"start": "candidates", "spans": 9, "steps": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("pooling", ["mean", "endpoints"])
def test_recordings_find_the_same_entities(encoder_folder, options, pooling):
    plain = lively_model(encoder_folder, *INITIALIZER, f"decoder.span_pooling={pooling}")
    recorded, again = with_recordings(plain)
    for first in (0, 40):  # batches of the same shapes, with other sentences
        words = WORDS[first : first + 37]
        expected = plain.predict_tokens(words, batch_size=8, **options)
        assert sum(map(len, expected)) > 37
        for _ in range(2):
            assert_same(recorded.predict_tokens(words, batch_size=8, **options), expected)
    assert again.replays > again.recordings > 0


def test_a_shape_is_recorded_once_when_it_is_seen_again(encoder_folder):
    recorded, again = with_recordings(lively_model(encoder_folder))
    counts = []
    for _ in range(4):
        recorded.predict_tokens(WORDS[:5], batch_size=100)
        counts.append((again.recordings, again.replays))
    assert counts[0] == (0, 0) and counts[1][0] > 0
    assert counts[3][0] == counts[2][0] == counts[1][0], "recorded again"
    assert counts[3][1] > counts[2][1] > counts[1][1] > 0
    recorded.predict_tokens(WORDS[:5], batch_size=100, seed=7)
    recorded.predict_tokens(WORDS[:5], batch_size=100, steps=3, average_steps=True)
    assert again.recordings == counts[3][0], "other noise or more steps are no new shape"
    recorded.predict_tokens(WORDS[:5], batch_size=100, spans=7)
    recorded.predict_tokens(WORDS[:5], batch_size=100, spans=7)
    assert again.recordings == counts[3][0] + 2, "the reverse process is recorded anew"


def test_batches_take_lanes_in_turn(encoder_folder):
    """Each lane has its own recordings, of the shapes that any lane has seen."""
    plain = lively_model(encoder_folder, *INITIALIZER)
    recorded, _ = with_recordings(plain, lanes=2)
    expected = plain.predict_tokens(WORDS[:5], batch_size=100)
    made = []
    for _ in range(4):
        assert_same(recorded.predict_tokens(WORDS[:5], batch_size=100), expected)
        made.append(recordings(recorded))
    assert made == [[0, 0], [0, 2], [2, 2], [2, 2]]
    expected = plain.predict_tokens(WORDS[:60], batch_size=8)
    for _ in range(3):
        assert_same(recorded.predict_tokens(WORDS[:60], batch_size=8), expected)


def test_given_spans_run_without_a_recording(encoder_folder):
    plain = lively_model(encoder_folder, *INITIALIZER, "inference.start=candidates")
    recorded, again = with_recordings(plain)
    items = [(words, [(0, 1), (0, len(words))]) for words in WORDS[:5]]
    for only in (True, False):
        expected = list(plain.refine_pipe(items, only))
        assert sum(len(one.entities) for one in expected) > 3
        for _ in range(3):
            assert_same_refinements(list(recorded.refine_pipe(items, only)), expected)
    assert again.recordings == 1, "only the encoder is recorded"


def test_a_failed_recording_is_not_tried_again(encoder_folder):
    plain = lively_model(encoder_folder)
    tried = []

    def fail(work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        tried.append(work)
        raise torch.OutOfMemoryError("no room")

    recorded = gpu_model_on_cpu(plain, fail)
    expected = plain.predict_tokens(WORDS[:5])
    for _ in range(4):
        assert_same(recorded.predict_tokens(WORDS[:5]), expected)
    assert len(tried) == 2, "the encoder and the reverse process"


def test_recordings_are_dropped_when_a_batch_needs_their_memory(encoder_folder, monkeypatch):
    plain = lively_model(encoder_folder)
    recorded, again = with_recordings(plain)
    expected = plain.predict_tokens(WORDS[:5])
    pooled = recorded.network.encoder.pooled

    def fail_beside_recordings(batch: Any) -> Any:
        if recorded.engine.recordings:
            raise torch.OutOfMemoryError("no room")
        return pooled(batch)

    monkeypatch.setattr(recorded.network.encoder, "pooled", fail_beside_recordings)
    for _ in range(4):
        assert_same(recorded.predict_tokens(WORDS[:5]), expected)
    assert again.recordings and recorded.engine.lanes == [Lane()]


def test_a_batch_that_does_not_fit_without_recordings_fails(encoder_folder, monkeypatch):
    recorded, _ = with_recordings(lively_model(encoder_folder))

    def fail(batch: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(recorded.network.encoder, "pooled", fail)
    with pytest.raises(torch.OutOfMemoryError):
        recorded.predict_tokens(WORDS[:5])


def test_the_least_recently_used_recording_is_dropped(monkeypatch):
    monkeypatch.setattr(recording, "MAX_RECORDINGS", 2)
    recordings: Recordings[str] = Recordings()
    made = []

    def run(name: str) -> int:
        """Return how many recordings two batches of a shape take."""
        before = len(made)
        for _ in range(2):
            recordings.get((name,), lambda: made.append(name) or name)
        return len(made) - before

    assert [run(name) for name in "abac"] == [1, 1, 0, 1]
    assert run("a") == 0 and run("b") == 1
    assert len(recordings) == 2


def test_the_benchmark_notices_wrong_recordings(encoder_folder, tmp_path: Path):
    lively_model(encoder_folder).save_pretrained(tmp_path)
    subject = Subject("lively", tmp_path, "cpu")
    sentences = [Sentence(words) for words in WORDS[:5]]
    (expected,) = agreement.expect(subject, sentences, [2])

    class Wrong(Again):
        """Keeps the result of the first run."""

        def __call__(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
            result, _ = super().__call__(work)
            return result, lambda: None

    for recorder, holds in ((Again(), True), (Wrong(), False)):
        fast = gpu_model_on_cpu(subject.load(), recorder)
        found = agreement.check(subject, "float32", fast, expected, batch_size=100)
        assert recorder.recordings and found.entities and found.holds == holds


def test_padded_counts_are_few_and_close():
    sizes = [padded_count(count) for count in range(1, 2049)]
    for count, size in enumerate(sizes, start=1):
        assert count <= size < count * 9 / 8 + 1
    assert sizes == sorted(sizes) and len(set(sizes)) < 80
    assert padded_count(512) == 512


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("spans", [9, "auto"])
@pytest.mark.parametrize("start", ["noise", "candidates"])
@pytest.mark.parametrize("steps", [1, 4])
def test_cuda_graphs_find_the_same_entities(encoder_folder, tmp_path: Path, start, spans, steps):
    lively_model(encoder_folder, *INITIALIZER).save_pretrained(tmp_path)
    options = {"start": start, "spans": spans, "steps": steps, "average_steps": True}
    plain, recorded = (
        DiffusionNER.from_pretrained(tmp_path, "cuda", precision="float32", cuda_graphs=graphed)
        for graphed in (False, True)
    )
    expected = plain.predict_tokens(WORDS, batch_size=16, **options)
    for _ in range(3):
        assert_same(recorded.predict_tokens(WORDS, batch_size=16, **options), expected)
    assert all(recordings(recorded))


@pytest.mark.gpu
@on_gpu
def test_a_full_gpu_runs_without_graphs(encoder_folder, tmp_path: Path, monkeypatch):
    lively_model(encoder_folder, *INITIALIZER).save_pretrained(tmp_path)
    ner = DiffusionNER.from_pretrained(tmp_path, "cuda")
    expected = ner.predict_tokens(WORDS[:20], batch_size=20)
    begin, end = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end
    total = torch.cuda.get_device_properties(0).total_memory

    def full(graph: torch.cuda.CUDAGraph, **options: Any) -> None:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        begin(graph, **options)

    def free(graph: torch.cuda.CUDAGraph) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0)
        end(graph)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(torch.cuda.CUDAGraph, "capture_begin", full)
            patched.setattr(torch.cuda.CUDAGraph, "capture_end", free)
            assert_same(ner.predict_tokens(WORDS[:20], batch_size=20), expected)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert not any(recordings(ner))
    assert_same(ner.predict_tokens(WORDS[:20], batch_size=20), expected)
    for _ in range(2):
        ner.predict_tokens(WORDS[:20], batch_size=20, spans=7)
    assert any(recordings(ner)), "a failed recording does not harm later ones"


@pytest.mark.gpu
@on_gpu
def test_two_lanes_find_the_same_as_one(monkeypatch):
    """With the defaults: packed, recorded, in bf16, with as many spans as candidates need."""
    found = []
    for lanes in (1, 2):
        monkeypatch.setattr(gpu_engine, "LANES", lanes)
        ner = DiffusionNER.from_pretrained("bio", "cuda")
        assert ner.engine.transformer is not None
        found.append([ner.predict_tokens(WORDS * 10, batch_size=64, steps=3) for _ in range(6)][-1])
        assert ner.engine.recordings and ner.engine.budget.needed
    assert sum(map(len, found[0])) > 100
    assert_same(*found)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("graphed", [False, True])
def test_concurrent_batches_find_the_same_as_one_at_a_time(
    encoder_folder, tmp_path: Path, monkeypatch, graphed
):
    """The memory of a batch must not be reused by the next one, which runs on another stream.

    One lane runs the same kernels: with random weights, any other rounding would change some of
    the many sentences.
    """
    lively_model(encoder_folder, *INITIALIZER).save_pretrained(tmp_path)
    found = []
    for lanes in (1, LANES):
        monkeypatch.setattr(gpu_engine, "LANES", lanes)
        ner = DiffusionNER.from_pretrained(
            tmp_path, "cuda", precision="float32", cuda_graphs=graphed
        )
        assert len({lane.stream for lane in ner.engine.lanes}) == lanes
        turns = [ner.predict_tokens(WORDS * 10, batch_size=32, steps=2) for _ in range(5)]
        found += turns[-2:]  # everything is recorded by then
        assert all(recordings(ner)) == graphed
    assert sum(map(len, found[0])) > len(found[0])
    for other in found[1:]:
        assert_same(found[0], other)
