"""The entity decoder against loops, and its independence of padding, draws and empty slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain import plain_decoder
from torch import nn

from diffusionner.model.decoder import Attention, EntityDecoder, Prediction, sinusoidal_table
from diffusionner.model.encoder import SentenceEncoding

SIZE, TYPES, TIMESTEPS = 16, 3, 100
LENGTHS = torch.tensor([7, 4])


def make_decoder(**settings: object) -> EntityDecoder:
    torch.manual_seed(0)
    chosen = plain_decoder(**{"heads": 4, "feedforward": 24, **settings})
    return EntityDecoder(SIZE, TYPES, TIMESTEPS, chosen).eval()


def sentence_states(padding: int = 0, garbage: float = 0.0) -> SentenceEncoding:
    """Two sentences of seven and four words; padded rows hold garbage instead of zeros."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(2, 7, SIZE, generator=generator)
    states = nn.functional.pad(states, (0, 0, 0, padding))
    mask = torch.arange(7 + padding) < LENGTHS[:, None]
    return SentenceEncoding(states.masked_fill(~mask[..., None], garbage), mask, LENGTHS)


def noisy_spans(draws: int = 1, count: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    positions = torch.rand(2, draws, count, 2, generator=generator) * LENGTHS[:, None, None, None]
    return positions.long().sort(-1).values


def run(decoder: EntityDecoder, encoding: SentenceEncoding, spans, t=None, slots=None):
    t = torch.full(spans.shape[:2], 30) if t is None else t
    with torch.no_grad():
        return decoder(decoder.prepare(encoding), spans, t, slots)


def assert_close(a: Prediction, b: Prediction, words: int = 7) -> None:
    for one, other in ((a.types, b.types), (a.left, b.left), (a.right, b.right)):
        assert torch.allclose(one[..., :words], other[..., :words], atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "endpoints"])
def test_decoder_without_attention_equals_a_loop(pooling):
    decoder = make_decoder(layers=0, span_pooling=pooling)
    encoding, spans = sentence_states(), noisy_spans(draws=2)
    t = torch.tensor([[1, 50], [99, 100]])
    prediction = run(decoder, encoding, spans, t)
    with torch.no_grad():
        for b, d, k in np.ndindex(2, 2, 5):
            states = encoding.states[b]
            left, right = spans[b, d, k].tolist()
            if pooling == "mean":
                hidden = states[left : right + 1].mean(0)
            else:
                ends = [decoder.first(states[left]), decoder.last(states[right])]
                hidden = decoder.join(nn.functional.gelu(torch.cat(ends)))
            hidden = hidden + sinusoidal_table(TIMESTEPS + 1, SIZE)[t[b, d]]
            assert torch.allclose(prediction.types[b, d, k], decoder.classifier(hidden), atol=1e-5)
            for pointer, scores in (
                (decoder.left, prediction.left),
                (decoder.right, prediction.right),
            ):
                for word in range(int(LENGTHS[b])):
                    fused = pointer.words(states[word]) + pointer.spans(hidden)
                    score = pointer.output(fused.relu()).squeeze()
                    assert torch.allclose(scores[b, d, k, word], score, atol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 10])
def test_offset_scores_are_added_to_the_pointers(window):
    decoder = make_decoder(offset_window=window)
    nn.init.normal_(decoder.offsets.output.weight)
    encoding, spans = sentence_states(padding=2), noisy_spans(draws=2)
    found = run(decoder, encoding, spans)
    hidden = []
    decoder.offsets.register_forward_pre_hook(lambda _, given: hidden.append(given[0]))
    run(decoder, encoding, spans)
    scores = decoder.offsets.output(hidden[0]).detach()
    decoder.offsets = None
    plain = run(decoder, encoding, spans)
    assert torch.equal(found.types, plain.types)
    moved = 0
    for b, d, k, side in np.ndindex(2, 2, 5, 2):
        with_it, without = ((one.left, one.right)[side][b, d, k] for one in (found, plain))
        own = int(spans[b, d, k, side])
        for word in range(int(LENGTHS[b])):
            distance = word - own
            expected = without[word].item()
            if abs(distance) <= window:
                place = side * (2 * window + 1) + window + distance
                expected += scores[b, d, k, place].item()
                moved += 1
            assert with_it[word].item() == pytest.approx(expected, abs=1e-4)
        assert (with_it[int(LENGTHS[b]) :] < -9000).all()
    assert moved > 40


def test_timestep_embeddings():
    table = sinusoidal_table(50, 8)
    for t in (0, 1, 49):
        for i in range(4):
            angle = torch.tensor(t / 10_000 ** (i / 4))
            assert table[t, i].item() == pytest.approx(angle.sin().item(), abs=1e-5)
            assert table[t, 4 + i].item() == pytest.approx(angle.cos().item(), abs=1e-5)
    assert sinusoidal_table(3, 7).shape == (3, 7)


@pytest.mark.parametrize("pooling", ["mean", "endpoints"])
def test_padding_does_not_matter(pooling):
    decoder = make_decoder(span_pooling=pooling, layers=2)
    spans = noisy_spans()
    plain = run(decoder, sentence_states(), spans)
    padded = run(decoder, sentence_states(padding=6, garbage=50.0), spans)
    assert_close(plain, padded)
    for scores in (padded.left, padded.right):
        assert (scores[0, ..., 7:].sigmoid() < 1e-6).all()
        assert (scores[1, ..., 4:].sigmoid() < 1e-6).all()
        assert (scores[1, ..., :4].sigmoid() > 1e-6).all()


def test_attention_equals_multi_head_attention():
    torch.manual_seed(0)
    ours, reference = Attention(SIZE, 4, 0.0), nn.MultiheadAttention(SIZE, 4, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
        reference.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
        reference.out_proj.weight.copy_(ours.output.weight)
        reference.out_proj.bias.copy_(ours.output.bias)
        target, source = torch.randn(2, 3, SIZE), torch.randn(2, 5, SIZE)
        mask = torch.arange(5) < torch.tensor([[5], [2]])
        expected, _ = reference(target, source, source, key_padding_mask=~mask)
        assert torch.allclose(ours(target, ours.keys_values(source), mask), expected, atol=1e-6)


@pytest.mark.parametrize("attention", ["self_attention", "cross_attention"])
def test_attention_switches_remove_parameters(attention):
    def names(**settings: object) -> set[str]:
        return {name for name, _ in make_decoder(**settings).named_parameters()}

    without, both = names(**{attention: False}), names()
    assert {n for n in both - without if attention in n}
    assert without < both and not any(attention in n for n in without)
    neither = names(self_attention=False, cross_attention=False)
    assert neither == names(layers=0) < without
    twice = names(layers=2)
    assert len(twice - neither) == 2 * len(both - neither)


def test_self_attention_lets_spans_see_each_other():
    spans = noisy_spans()
    changed = spans.clone()
    changed[:, :, 0] = torch.tensor([2, 3])
    for switch in (True, False):
        decoder = make_decoder(self_attention=switch)
        before, after = (run(decoder, sentence_states(), s).types for s in (spans, changed))
        assert not torch.allclose(before[:, :, 0], after[:, :, 0], atol=1e-4)
        assert torch.allclose(before[:, :, 1:], after[:, :, 1:], atol=1e-4) != switch


def test_cross_attention_lets_spans_see_the_sentence():
    spans = noisy_spans().clamp(max=2)
    encoding, changed = sentence_states(), sentence_states()
    changed.states[:, 3] += 1.0  # a word outside all spans
    for switch in (True, False):
        decoder = make_decoder(cross_attention=switch)
        before, after = (run(decoder, e, spans).types for e in (encoding, changed))
        assert torch.allclose(before, after, atol=1e-4) != switch


@pytest.mark.parametrize("pooling", ["mean", "endpoints"])
def test_draws_do_not_see_each_other(pooling):
    decoder = make_decoder(span_pooling=pooling, layers=2)
    spans, t = noisy_spans(draws=2), torch.tensor([[3, 70], [100, 1]])
    both = run(decoder, sentence_states(), spans, t)
    for d in range(2):
        alone = run(decoder, sentence_states(), spans[:, d : d + 1], t[:, d : d + 1])
        fields = (both.left, both.right, both.types, both.spans)
        assert_close(Prediction(*(field[:, d : d + 1] for field in fields)), alone)


def test_spans_do_not_see_empty_slots():
    decoder = make_decoder(layers=2)
    spans = noisy_spans()
    slots = torch.tensor([[True, True, False, False, True], [False] * 5])
    changed = spans.clone()
    changed[:, :, 2:4] = torch.tensor([1, 3])
    before, after = (run(decoder, sentence_states(), s, slots=slots) for s in (spans, changed))
    assert torch.allclose(before.types[0, :, slots[0]], after.types[0, :, slots[0]], atol=1e-5)
    fewer = run(decoder, sentence_states(), spans[:, :, slots[0]])
    assert torch.allclose(before.types[0, :, slots[0]], fewer.types[0], atol=1e-5)
    assert before.types.isfinite().all() and before.left.isfinite().all()
