"""Recordings of what follows the transformer: the logic anywhere, CUDA graphs on a GPU."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import EXCERPT

from benchmarks import agreement
from benchmarks.subjects import Subject
from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence
from diffusionner.inference import torch_engine
from diffusionner.inference.gpu import recording
from diffusionner.inference.gpu.recording import Shape, padded_count
from diffusionner.inference.torch_engine import LANES, Lane, TorchEngine
from models import assert_same, lively_model

WORDS = [s.words for s in formats.read(EXCERPT)]
INITIALIZER = ("decoder.initializer=types", "decoder.offset_window=3")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


class Again:
    """Stands for a GPU: a recording that runs the same function again over the same memory."""

    def __init__(self) -> None:
        self.recordings = self.replays = 0

    def __call__(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        result = work()
        self.recordings += 1

        def replay() -> None:
            self.replays += 1
            put(work(), result)

        return result, replay


def put(new: Any, old: Any) -> None:
    """Write the tensors of a result to where those of an earlier one lie."""
    if isinstance(new, torch.Tensor):
        old.copy_(new)
    elif isinstance(new, (tuple, list)):
        for one, other in zip(new, old, strict=True):
            put(one, other)
    elif dataclasses.is_dataclass(new):
        for field in dataclasses.fields(new):
            put(getattr(new, field.name), getattr(old, field.name))


def with_recordings(plain: DiffusionNER, lanes: int = 1) -> tuple[DiffusionNER, Again]:
    """The same model, recorded as far as that goes without a GPU."""
    engine = TorchEngine(plain.network, "cpu")
    again = Again()
    seen: Counter[Shape] = Counter()
    engine.lanes = [Lane.recorded(engine.running, again, seen) for _ in range(lanes)]
    return DiffusionNER(engine, plain.subwords, plain.settings), again


def recordings(ner: DiffusionNER) -> list[int]:
    """How many each lane has."""
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
def test_what_is_found_is_the_same(encoder_folder, options, pooling):
    plain = lively_model(encoder_folder, *INITIALIZER, f"decoder.span_pooling={pooling}")
    recorded, again = with_recordings(plain)
    for first in (0, 40):  # batches of the same shapes, with other sentences
        words = WORDS[first : first + 37]
        expected = plain.predict_tokens(words, batch_size=8, **options)
        assert sum(map(len, expected)) > 37
        for _ in range(2):
            assert_same(recorded.predict_tokens(words, batch_size=8, **options), expected)
    assert again.replays > again.recordings > 0


def test_a_shape_is_recorded_when_it_comes_again(encoder_folder):
    recorded, again = with_recordings(lively_model(encoder_folder))
    counts = []
    for _ in range(4):
        recorded.predict_tokens(WORDS[:5], batch_size=100)
        counts.append((again.recordings, again.replays))
    assert counts[0] == (0, 0) and counts[1][0] > 0
    assert counts[3][0] == counts[2][0] == counts[1][0], "once"
    assert counts[3][1] > counts[2][1] > counts[1][1] > 0
    recorded.predict_tokens(WORDS[:5], batch_size=100, seed=7)
    recorded.predict_tokens(WORDS[:5], batch_size=100, steps=3, average_steps=True)
    assert again.recordings == counts[3][0], "nor for other noise, or more steps"
    recorded.predict_tokens(WORDS[:5], batch_size=100, spans=7)
    recorded.predict_tokens(WORDS[:5], batch_size=100, spans=7)
    assert again.recordings == counts[3][0] + 2, "other spans are another shape for all but words"


def test_batches_take_turns(encoder_folder):
    """Each lane has recordings of its own, of the shapes that any has met."""
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


def test_what_cannot_be_recorded_is_run(encoder_folder):
    plain = lively_model(encoder_folder)
    recorded, again = with_recordings(plain)
    given = [[(0, 1), (0, len(words))] for words in WORDS[:5]]
    expected = plain.predict_tokens(WORDS[:5], from_spans=given)
    for _ in range(3):
        assert_same(recorded.predict_tokens(WORDS[:5], from_spans=given), expected)
    assert again.recordings == 1, "what a sentence's words are is the same"


def test_without_memory_for_recordings_all_is_found(encoder_folder):
    plain = lively_model(encoder_folder)
    engine = TorchEngine(plain.network, "cpu")
    tried = []

    def fail(work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        tried.append(work)
        raise torch.OutOfMemoryError("no room")

    engine.lanes = [Lane.recorded(plain.network, fail, Counter())]
    recorded = DiffusionNER(engine, plain.subwords, plain.settings)
    expected = plain.predict_tokens(WORDS[:5])
    for _ in range(4):
        assert_same(recorded.predict_tokens(WORDS[:5]), expected)
    assert len(tried) == 2, "words and spans once each, not again"


def test_recordings_go_when_a_batch_needs_their_memory(encoder_folder, monkeypatch):
    plain = lively_model(encoder_folder)
    recorded, again = with_recordings(plain)
    expected = plain.predict_tokens(WORDS[:5])
    encode = recorded.network.encoder.pooled

    def short(batch: Any) -> Any:
        if recorded.engine.recordings:
            raise torch.OutOfMemoryError("no room")
        return encode(batch)

    monkeypatch.setattr(recorded.network.encoder, "pooled", short)
    for _ in range(4):
        assert_same(recorded.predict_tokens(WORDS[:5]), expected)
    assert again.recordings and recorded.engine.lanes == [Lane()]

    def full(batch: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    recorded, _ = with_recordings(plain)
    monkeypatch.setattr(recorded.network.encoder, "pooled", full)
    with pytest.raises(torch.OutOfMemoryError):
        recorded.predict_tokens(WORDS[:5])


def test_the_recording_unused_for_longest_goes(encoder_folder, monkeypatch):
    monkeypatch.setattr(recording, "MOST", 2)
    recorded, again = with_recordings(lively_model(encoder_folder))

    def run(spans: int) -> int:
        """How many recordings it took, of which a shape has two."""
        before = again.recordings
        for _ in range(2):
            recorded.predict_tokens(WORDS[:1], spans=spans)
        return (again.recordings - before) // 2

    assert [run(spans) for spans in (1, 2, 1, 3)] == [1, 1, 0, 1]
    assert run(1) == 0 and run(2) == 1


def test_the_bench_notices_wrong_recordings(encoder_folder, tmp_path: Path):
    lively_model(encoder_folder).save_pretrained(tmp_path)
    subject = Subject("lively", tmp_path, "cpu")
    sentences = [Sentence(words) for words in WORDS[:5]]
    (expected,) = agreement.expect(subject, sentences, [2])

    class Wrong(Again):
        """Runs the first step again and again."""

        def __call__(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
            result, _ = super().__call__(work)
            return result, lambda: None

    for recorder, holds in ((Again(), True), (Wrong(), False)):
        fast = subject.load()
        fast.engine.lanes = [Lane.recorded(fast.engine.running, recorder, Counter())]
        found = agreement.check(subject, "float32", fast, expected, batch_size=100)
        assert recorder.recordings and found.entities and found.holds == holds


def test_sizes_are_few_and_little_of_them_is_padding():
    sizes = [padded_count(count) for count in range(1, 2049)]
    for count, size in enumerate(sizes, start=1):
        assert count <= size < count * 9 / 8 + 1
    assert sizes == sorted(sizes) and len(set(sizes)) < 80
    assert padded_count(512) == 512


def test_a_cpu_records_nothing():
    engine = DiffusionNER.from_pretrained("en", device="cpu").engine
    assert engine.lanes == [Lane()] and engine.transformer is None


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("spans", [9, "auto"])
@pytest.mark.parametrize("start", ["noise", "candidates"])
@pytest.mark.parametrize("steps", [1, 4])
def test_cuda_graphs_find_the_same(encoder_folder, tmp_path: Path, start, spans, steps):
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
def test_a_full_gpu_runs_without_recordings(encoder_folder, tmp_path: Path, monkeypatch):
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
    assert any(recordings(ner)), "a failed recording does no harm to later ones"


@pytest.mark.gpu
@on_gpu
def test_streams_do_not_disturb_each_other(monkeypatch):
    """As it is by default: packed, recorded, in 16 bits, with as many spans as candidates need."""
    found = []
    for lanes in (1, 2):
        monkeypatch.setattr(torch_engine, "LANES", lanes)
        ner = DiffusionNER.from_pretrained("bio", "cuda")
        assert ner.engine.transformer is not None and ner.engine.enough is not None
        found.append([ner.predict_tokens(WORDS * 10, batch_size=64, steps=3) for _ in range(6)][-1])
        assert ner.engine.recordings
    assert sum(map(len, found[0])) > 100
    assert_same(*found)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("graphed", [False, True])
def test_a_batch_beside_the_next_finds_the_same(
    encoder_folder, tmp_path: Path, monkeypatch, graphed
):
    """Its memory must not be taken by the next one, which is on another stream.

    Compared with what one stream finds by the same kernels: with random weights any other rounding
    tells in some of so many sentences.
    """
    lively_model(encoder_folder, *INITIALIZER).save_pretrained(tmp_path)
    found = []
    for lanes in (1, LANES):
        monkeypatch.setattr(torch_engine, "LANES", lanes)
        ner = DiffusionNER.from_pretrained(
            tmp_path, "cuda", precision="float32", cuda_graphs=graphed
        )
        assert len({lane.stream for lane in ner.engine.lanes}) == lanes
        turns = [ner.predict_tokens(WORDS * 10, batch_size=32, steps=2) for _ in range(5)]
        found += turns[-2:]  # when all is recorded
        assert all(recordings(ner)) == graphed
    assert sum(map(len, found[0])) > len(found[0])
    for other in found[1:]:
        assert_same(found[0], other)
