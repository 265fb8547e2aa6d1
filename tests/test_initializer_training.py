"""Training with an initializer: its draws, its loss, and a run that memorises sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusionner import DiffusionNER
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.corpus import Sentence, collect_labels
from diffusionner.diffusion.sampler import ddim_step
from diffusionner.evaluation.scorer import score
from diffusionner.model.initializer import best_spans, span_loss
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device
from diffusionner.settings import Settings
from diffusionner.storage.encoders import load_encoder, load_tokenizer
from diffusionner.training.objective import DenoisingObjective, NoisySpans
from diffusionner.training.trainer import Trainer
from models import by_heart

CPU = torch.device("cpu")
Make = Callable[..., tuple[DenoisingObjective, Batch[np.ndarray]]]


@pytest.fixture
def make(tiny_settings: Settings, still_encoder: Path, nested_sentences: list[Sentence]) -> Make:
    """Function that returns an objective with an initializer, without dropout, and a batch."""

    def build(*overrides: str) -> tuple[DenoisingObjective, Batch[np.ndarray]]:
        still = ["encoder.dropout=0", "decoder.dropout=0", "decoder.initializer=spans"]
        settings = tiny_settings.override([*still, *overrides])
        labels = collect_labels(nested_sentences)
        torch.manual_seed(0)
        network = DenoisingNetwork(load_encoder(str(still_encoder)), labels, settings)
        tokenizer = load_tokenizer(still_encoder, limit=128)
        corpus = EncodedCorpus(nested_sentences[:5], tokenizer, settings.encoder, labels)
        return DenoisingObjective(network, settings), corpus.batch(np.arange(5))

    return build


def test_an_initializer_adds_two_draws(make):
    objective, batch = make()
    plain, _ = make("decoder.initializer=none")
    assert (objective.draws, plain.draws) == (3, 1)
    counts = np.array([2, 0, 1])
    assert objective.denominator(counts) == 3 * plain.denominator(counts) == 3 * 3
    keys = np.arange(5)
    noisy, expected = objective.noise(batch, keys), plain.noise(batch, keys)
    assert np.array_equal(noisy.spans, expected.spans), "noised gold is the same"
    assert np.array_equal(noisy.t[:, :1], expected.t)
    assert noisy.t.dtype == np.int64
    assert (noisy.t[:, 1] == 20).all()
    assert noisy.start_noise.shape == (5, 12, 2) and noisy.start_noise.dtype == np.float32
    drawn = [objective.noise(batch, keys + 5 * n) for n in range(400)]
    later = np.concatenate([one.t[:, 2] for one in drawn])
    from_noise = np.concatenate([one.from_noise for one in drawn])
    assert from_noise.mean() == pytest.approx(0.5, abs=0.05)
    for most, part in ((20, later[~from_noise]), (100, later[from_noise])):
        assert part.min() == 1 and part.max() == most
        shares = np.bincount(part)[1:] / len(part)
        assert shares == pytest.approx(np.full(most, 1 / most), abs=0.03)


def tensors_of(noisy: NoisySpans) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in noisy]


@torch.no_grad()
def own_draw(
    objective: DenoisingObjective, batch: Batch[torch.Tensor], noisy: NoisySpans
) -> torch.Tensor:
    """Return the spans of the network's own draw: [B, K, 2]."""
    return objective.predict(batch, *tensors_of(noisy)).prediction.spans[:, 2]


@pytest.mark.parametrize("start", ["candidates", "noise"])
@pytest.mark.parametrize("kind", ["left-right", "left-width"])
def test_the_own_draw_is_one_reverse_step(make, kind, start):
    objective, batch = make(f"diffusion.coordinates={kind}")
    network = objective.network.eval()
    tensors = batch_to_device(batch, CPU)
    lengths = tensors.lengths[:, None]
    schedule, coordinates = network.schedule, network.coordinates
    with torch.no_grad():
        sentence = network.prepare(tensors)
        noisy = objective.noise(batch, batch.keys)
        now, x = 100, torch.from_numpy(noisy.start_noise)
        if start == "candidates":
            now, spans = 20, best_spans(sentence.initial.spans, 12)[0]
            x = coordinates.encode(spans, tensors.lengths)
        x = x[:, None]
        x0, prediction = network.denoise(sentence, x, torch.full((5, 1), now))
    left, right = prediction.left.argmax(-1), prediction.right.argmax(-1)
    predicted = torch.stack([left, torch.maximum(left, right)], -1)
    assert torch.equal(coordinates.encode(predicted, lengths), x0)
    distinct = set()
    noisy.from_noise[:] = start == "noise"
    alpha_bar = schedule.alpha_bar.tolist()
    for later in (0, 1, 5, 10, 19, 20):
        noisy.t[:, 2] = later
        found = own_draw(objective, tensors, noisy)
        expected = coordinates.decode(ddim_step(x, x0, alpha_bar[now], alpha_bar[later]), lengths)
        assert torch.equal(found, expected[:, 0]), later
        if later == now:  # no step at all
            assert torch.equal(found, coordinates.decode(x, lengths)[:, 0])
        if later == 0:
            assert torch.equal(found, predicted[:, 0])
        distinct.add(tuple(found.flatten().tolist()))
    assert len(distinct) > 2


def test_start_and_timestep_of_the_own_draw_are_those_of_the_sentence(make):
    objective, batch = make()
    tensors = batch_to_device(batch, CPU)
    noisy = objective.noise(batch, batch.keys)
    later, from_noise = [1, 5, 10, 15, 20], [True, False, True, True, False]
    noisy.t[:, 2], noisy.from_noise[:] = later, from_noise
    together = own_draw(objective, tensors, noisy)
    for row in range(5):
        noisy.t[:, 2], noisy.from_noise[:] = later[row], from_noise[row]
        assert torch.equal(together[row], own_draw(objective, tensors, noisy)[row])


def test_a_step_of_training(make):
    """Noised gold, candidates and the own draw, each at its timestep."""
    objective, batch = make()
    noisy = objective.noise(batch, batch.keys)
    noisy.from_noise[:] = [True, False, True, False, False]
    tensors = batch_to_device(batch, CPU)
    inputs = tensors_of(noisy)
    with torch.no_grad():
        step = objective.predict(tensors, *inputs)
        sentence = objective.network.prepare(tensors)
        assert torch.allclose(step.initial.spans, sentence.initial.spans, atol=1e-5)
        spans, t = step.prediction.spans, inputs[1]
        assert spans.shape == (5, 3, 12, 2) and step.prediction.left.shape[:3] == (5, 3, 12)
        assert torch.equal(spans[:, :1], inputs[0])
        assert torch.equal(spans[:, 1], best_spans(sentence.initial.spans, 12)[0])
        for draw in range(3):
            part = slice(draw, draw + 1)
            alone = objective.network.decoder(sentence, spans[:, part], t[:, part])
            assert torch.allclose(step.prediction.types[:, part], alone.types, atol=1e-5)
        assert objective.costs(step, tensors).shape == (5, 3, 12, tensors.gold.shape[1])


def test_the_loss_of_the_initializer_is_weighted_by_the_number_of_spans(make):
    objective, batch = make()
    noisy = objective.noise(batch, batch.keys)
    tensors = batch_to_device(batch, CPU)
    with torch.no_grad():
        step = objective.predict(tensors, *tensors_of(noisy))
        costs = objective.costs(step, tensors).numpy()
        assigned = torch.from_numpy(objective.assign(costs, batch.gold_counts))
        whole = objective.loss(step, tensors, assigned)
        own = span_loss(step.initial.spans, tensors.gold, tensors.gold_types >= 0)
        step.initial = None
        rest = objective.loss(step, tensors, assigned)
        total = objective(tensors, noisy, 4.0)
    assert (whole - rest).item() == pytest.approx(12 * own.sum().item(), rel=1e-4)
    assert total.item() == pytest.approx(whole.item() / 4, rel=1e-5)


def test_a_typed_initializer_learns_the_type_of_every_span(make):
    objective, batch = make("decoder.initializer=types")
    tensors = batch_to_device(batch, CPU)
    noisy = objective.noise(batch, batch.keys)
    with torch.no_grad():
        step = objective.predict(tensors, *tensors_of(noisy))
        costs = objective.costs(step, tensors).numpy()
        assigned = torch.from_numpy(objective.assign(costs, batch.gold_counts))
        whole = objective.loss(step, tensors, assigned)
        initial, step.initial = step.initial, None
        rest = objective.loss(step, tensors, assigned)
    expected = 0.0
    for row, words in enumerate(batch.lengths.tolist()):
        known = zip(batch.gold[row].tolist(), batch.gold_types[row].tolist(), strict=True)
        gold = {tuple(span): type_id for span, type_id in known if type_id >= 0}
        for left, right in combinations_with_replacement(range(words), 2):
            scores = [*initial.types[row, left, right].tolist(), 0.0]
            type_id = gold.get((left, right), len(scores) - 1)
            expected += math.log(sum(map(math.exp, scores))) - scores[type_id]
    assert (whole - rest).item() == pytest.approx(12 * expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["spans", "types"])
def test_gradients_reach_all_parameters(make, kind):
    objective, batch = make(
        "training.soft_match_iou=0.5",
        "training.overlap_cost=1",
        "decoder.offset_window=2",
        f"decoder.initializer={kind}",
    )
    noisy = objective.noise(batch, batch.keys)
    objective(batch_to_device(batch, CPU), noisy, 1.0).backward()
    for name, parameter in objective.network.named_parameters():
        if not name.endswith("key.bias"):  # has no effect: it is added to all keys alike
            assert parameter.grad is not None and (parameter.grad != 0).any(), name
    assert "decoder.initializer.project.weight" in dict(objective.network.named_parameters())


def test_the_reverse_step_of_the_own_draw_has_no_gradient(make):
    objective, batch = make()
    learned = []
    objective.network.decoder.register_forward_hook(
        lambda _module, _inputs, prediction: learned.append(prediction.left.requires_grad)
    )
    objective(batch_to_device(batch, CPU), objective.inputs(batch, batch.keys), 1.0).backward()
    assert learned == [False, True]


@pytest.mark.parametrize("kind", ["spans", "types"])
def test_memorises_nested_sentences(still_encoder, nested_sentences, tmp_path, kind):
    settings = by_heart(nested_sentences, still_encoder, tmp_path).override(
        [
            f"decoder.initializer={kind}",
            "inference.start=candidates",
            "training.learning_rate=2e-3",  # 3e-3 may diverge, depending on how a CPU rounds
            "training.epochs=90",
            "diffusion.spans=40",
            "training.evaluate_every=30",
            "training.seed=1",  # seeds reach 0.944 to 0.971 in 90 epochs
        ]
    )
    assert Trainer(settings).run().best_f1 >= 0.95
    ner = DiffusionNER.from_pretrained(settings.training.output, device="cpu")
    whole = replace(ner.subwords, word_limits=None)
    corpus = EncodedCorpus(nested_sentences, whole, settings.encoder)
    with torch.no_grad():
        batch = batch_to_device(corpus.batch(np.arange(32)), CPU)
        scores = ner.network.prepare(batch).initial.spans
    right = 0
    for own, sentence in zip(scores, nested_sentences, strict=True):
        found = {(left, last + 1) for left, last in (own > 0).nonzero().tolist()}
        right += found == {(start, end) for start, end, _ in sentence.entities}
    assert right >= 30, "the initializer alone finds the entities"
    gold = [s.entities for s in nested_sentences]
    # The same model runs with all of these options; trained with 40 spans, it misses a few
    # entities with fewer.
    for options in ({"steps": 3}, {"start": "noise"}, {"spans": "auto"}):
        assert score(gold, ner.predict_sentences(nested_sentences, **options)).micro.f1 >= 0.85
