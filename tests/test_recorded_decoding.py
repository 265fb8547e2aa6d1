"""Recordings of what follows the encoder: the logic anywhere, CUDA graphs themselves on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from corpora import EXCERPT
from models import assert_same, lively_model

from diffusionner import DiffusionNER, formats
from diffusionner.errors import SettingsError
from diffusionner.inference import graphs
from diffusionner.inference.graphs import GraphedDecoding, padded_count
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model import DenoisingNetwork

WORDS = [s.words for s in formats.read(EXCERPT)]
INITIALIZER = ("decoder.initializer=true", "decoder.typed_initializer=true", "decoder.reach=3")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


class Again:
    """Stands for a GPU: a recording that runs the same function again over the same memory."""

    def __init__(self) -> None:
        self.recordings = self.replays = 0

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        table = work()
        self.recordings += 1

        def replay() -> None:
            self.replays += 1
            table.copy_(work())

        return replay, table


def with_recordings(plain: DiffusionNER) -> tuple[DiffusionNER, Again]:
    """The same model, recorded as far as that goes without a GPU."""
    engine = TorchEngine(plain.network, "cpu")
    assert isinstance(engine.running, DenoisingNetwork)
    again = Again()
    engine.graphs = GraphedDecoding(engine.running, again)
    return DiffusionNER(engine, plain.subwords, plain.settings), again


@pytest.mark.parametrize(
    "options",
    [
        {"start": "noise", "spans": 9, "steps": 1},
        {"start": "noise", "spans": 9, "steps": 3, "average_steps": True},
        {"start": "noise", "spans": "auto", "steps": 2},
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
    assert again.recordings == counts[3][0], "other noise is no other shape"
    recorded.predict_tokens(WORDS[:5], batch_size=100, steps=3)
    recorded.predict_tokens(WORDS[:5], batch_size=100, steps=3)
    assert again.recordings == 2 * counts[3][0], "other steps are"


def test_what_cannot_be_recorded_is_run(encoder_folder):
    plain = lively_model(encoder_folder)
    recorded, again = with_recordings(plain)
    given = [[(0, 1), (0, len(words))] for words in WORDS[:5]]
    for options in ({"eta": 1.0}, {"from_spans": given}):
        expected = plain.predict_tokens(WORDS[:5], **options)
        for _ in range(3):
            assert_same(recorded.predict_tokens(WORDS[:5], **options), expected)
    assert again.recordings == 0


def test_the_recording_unused_for_longest_goes(encoder_folder, monkeypatch):
    monkeypatch.setattr(graphs, "MOST", 2)
    recorded, again = with_recordings(lively_model(encoder_folder))

    def run(steps: int) -> int:
        """How many recordings it took."""
        before = again.recordings
        for _ in range(2):
            recorded.predict_tokens(WORDS[:1], steps=steps)
        return again.recordings - before

    assert [run(steps) for steps in (1, 2, 1, 3)] == [1, 1, 0, 1]
    assert run(1) == 0 and run(2) == 1


def test_sizes_are_few_and_little_of_them_is_padding():
    sizes = [padded_count(count) for count in range(1, 2049)]
    for count, size in enumerate(sizes, start=1):
        assert count <= size < count * 9 / 8 + 1
    assert sizes == sorted(sizes) and len(set(sizes)) < 80
    assert padded_count(512) == 512


def test_a_gpu_is_needed():
    with pytest.raises(SettingsError, match="CUDA graphs need a GPU; device is 'cpu'"):
        DiffusionNER.from_pretrained("en", device="cpu", cuda_graphs=True)


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
    assert recorded.engine.graphs.recorded
