"""Losses, gradients and decoding of the rivals, each compared with another computation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import make_batch
from plain import plain_inference
from safetensors.torch import load_file

from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.corpus import Sentence, collect_labels
from diffusionner.diffusion import Candidates, ReverseStart
from diffusionner.errors import SettingsError
from diffusionner.inference.decoding import merge_candidates
from diffusionner.methods import network_class, objective_class
from diffusionner.model.base import Network
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.initializer import BIAFFINE_SIZE, MAX_WIDTH, Biaffine
from diffusionner.model.tensors import batch_to_device, pack, to_device, unpack
from diffusionner.settings import Settings
from diffusionner.storage.encoders import load_encoder, load_tokenizer
from diffusionner.training.graphs import GraphedStep
from diffusionner.training.objective import Objective
from diffusionner.training.trainer import Trainer
from models import everything, lively_generator
from reproduce.rivals import autoregressive
from reproduce.rivals.autoregressive import in_order
from reproduce.rivals.biaffine import BiaffineObjective

METHODS = ["crf", "biaffine", "queries", "autoregressive"]
CPU = torch.device("cpu")


# --- Training ---------------------------------------------------------------------------------


Make = Callable[..., tuple[Objective, EncodedCorpus]]


@pytest.fixture
def make(tiny_settings: Settings, still_encoder: Path, nested_sentences: list[Sentence]) -> Make:
    """An objective without dropout, and sentences."""

    def build(method: str, *changes: str) -> tuple[Objective, EncodedCorpus]:
        still = ["encoder.dropout=0", "decoder.dropout=0", f"method={method}"]
        settings = tiny_settings.override([*still, *changes])
        labels = collect_labels(nested_sentences)
        torch.manual_seed(0)
        settings = network_class(method).resolve_settings(settings, nested_sentences)
        network = network_class(method)(load_encoder(str(still_encoder)), labels, settings)
        tokenizer = load_tokenizer(still_encoder, limit=128)
        corpus = EncodedCorpus(nested_sentences[:6], tokenizer, settings.encoder, labels)
        return objective_class(method)(network, settings), corpus

    return build


def loss_of(objective: Objective, batch: Batch[np.ndarray]) -> torch.Tensor:
    return objective(batch_to_device(batch, CPU), objective.inputs(batch, batch.keys), 1.0)


@pytest.mark.parametrize("method", METHODS)
def test_padding_to_few_shapes_changes_nothing(make, method):
    """Pad to one of the few shapes that CUDA graphs record."""
    objective, corpus = make(method)
    plain, padded = corpus.batch(np.arange(6)), corpus.batch(np.arange(6), GraphedStep.multiples)
    assert padded.first.shape[1] > plain.first.shape[1]
    assert padded.gold.shape[1] > plain.gold.shape[1]
    with torch.no_grad():
        assert loss_of(objective, padded).item() == pytest.approx(
            loss_of(objective, plain).item(), rel=1e-5
        )


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_of_a_batch_is_the_sum_over_its_sentences(make, method):
    objective, corpus = make(method)
    with torch.no_grad():
        alone = sum(loss_of(objective, corpus.batch(np.array([i]))).item() for i in range(6))
        assert loss_of(objective, corpus.batch(np.arange(6))).item() == pytest.approx(alone, 1e-4)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_all_that_is_trained(make, method, frozen):
    objective, corpus = make(method)
    objective.freeze_encoder = frozen
    loss_of(objective, corpus.batch(np.arange(6))).backward()
    pretrained = set(objective.network.encoder.transformer.parameters())
    for name, parameter in objective.network.named_parameters():
        if parameter in pretrained and frozen:
            assert parameter.grad is None, name
        elif not name.endswith("key.bias"):  # added to all keys alike it changes no softmax
            assert parameter.grad is not None and (parameter.grad != 0).any(), name


@pytest.mark.parametrize("method", METHODS)
def test_mixed_precision(make, method):
    objective, corpus = make(method)
    batch = corpus.batch(np.arange(6))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = loss_of(objective, batch)
    mixed.backward()
    objective.network.eval()
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        found = objective.network.propose(encoding_of(objective.network, batch))
    assert found.summed_probability.dtype == torch.float32
    assert found.summed_probability.isfinite().all()
    assert mixed.item() == pytest.approx(loss_of(objective, batch).item(), rel=0.02)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_stopped_and_resumed(tiny_settings, monkeypatch, tmp_path, method):
    """With dropout, a frozen phase and averaged weights, bit for bit."""
    settings = tiny_settings.override(
        [
            f"method={method}",
            "training.ema=0.5",
            "training.epochs=1",
            "training.checkpoint_minutes=0",
        ]
    )
    other = settings.override([f"training.output={tmp_path / 'other'}"])
    Trainer(settings).run()
    update, calls = Trainer._update, iter(range(100))

    def stopped(self, *arguments):
        if next(calls) == 7:
            raise KeyboardInterrupt
        return update(self, *arguments)

    monkeypatch.setattr(Trainer, "_update", stopped)
    with pytest.raises(KeyboardInterrupt):
        Trainer(other).run()
    monkeypatch.undo()
    Trainer(other, resume=True).run()
    weights = [load_file(Path(s.training.output) / "model.safetensors") for s in (settings, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("method", METHODS)
def test_types_are_learned_anew_where_labels_differ(make, method):
    """Every weight that belongs to the types, and no other, has their number in its shape."""
    objective, _ = make(method)
    network = objective.network
    one = {k: v.clone() for k, v in network.state_dict().items()}
    for parameter in network.parameters():
        torch.nn.init.constant_(parameter, 7.0)
    network.start_from(one, same_labels=False)
    kept = {name for name, tensor in network.state_dict().items() if (tensor == 7.0).all()}
    assert kept == {name for name in one if name.startswith(network.type_weights)}
    types = len(network.labels)
    tags = 4 * types + 1
    levels = getattr(network, "levels", 1)
    sizes = {types, types + 1, tags, levels * tags, (types + 1) * BIAFFINE_SIZE}
    for name in one:
        assert (name in kept) == bool(sizes & set(one[name].shape)), name


def test_nothing_travels_to_a_device_too():
    """A method without inputs and matching needs no answer from the host."""
    nothing = np.zeros((3, 0), dtype=np.int64)
    assert [part.shape for part in unpack(pack([nothing], CPU), [nothing])] == [(3, 0)]
    assert to_device([], torch.device("meta")) == []


# --- What each computes -----------------------------------------------------------------------


@torch.no_grad()
def test_biaffine_scores_are_those_of_a_loop():
    torch.manual_seed(0)
    biaffine = Biaffine(6, 3, 0.0).eval()
    torch.nn.init.normal_(biaffine.width)
    products = biaffine.product.weight.view(3, BIAFFINE_SIZE, BIAFFINE_SIZE)
    states = torch.randn(2, MAX_WIDTH + 3, 6)
    found = biaffine(states)
    for b, i, j in np.ndindex(2, states.shape[1], states.shape[1]):
        if j < i:
            continue
        first, last = (
            torch.nn.functional.gelu(layer(states[b, word]))
            for layer, word in ((biaffine.first, i), (biaffine.last, j))
        )
        for c in range(3):
            expected = last @ products[c] @ first
            expected += biaffine.first_weight.weight[c] @ first + biaffine.first_weight.bias[c]
            expected += biaffine.last_weight.weight[c] @ last
            expected += biaffine.width[min(j - i, MAX_WIDTH - 1), c]
            assert found[b, i, j, c].item() == pytest.approx(expected.item(), abs=1e-4)


@torch.no_grad()
def test_biaffine_loss_is_that_of_a_loop():
    """In the last sentence nobody marked the second type."""
    lengths, gold = [4, 2, 3], [[(0, 3, 0), (1, 1, 1)], [], [(1, 2, 0)]]
    batch = make_batch(lengths, gold)
    batch.annotated_types[2] = [True, False]
    scores = torch.randn(3, 4, 4, 3, generator=torch.Generator().manual_seed(0))
    objective = BiaffineObjective(torch.nn.Module(), Settings())
    found = objective.loss(scores, batch_to_device(batch, CPU), torch.zeros(3, 0))
    expected = 0.0
    for b, words in enumerate(lengths):
        kinds = {(left, right): kind for left, right, kind in gold[b]}
        for left in range(words):
            for right in range(left, words):
                probabilities = scores[b, left, right].softmax(-1)
                kind = kinds.get((left, right), 2)
                right_ones = [1, 2] if kind == 2 and b == 2 else [kind]
                expected -= float(probabilities[right_ones].sum().log())
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert objective.denominator(batch.gold_counts) == 3
    assert objective.denominator(np.array([0])) == 1


def encoding_of(network: Network, batch: Batch[np.ndarray]) -> SentenceEncoding:
    return network.encoder(batch_to_device(batch, CPU))


def count(found: Candidates[torch.Tensor]) -> int:
    return found.left.shape[2]


@torch.no_grad()
def test_generation_follows_its_own_sequence(make):
    """Generation with cached keys equals the likeliest result of the whole sequence at once."""
    objective, corpus = make("autoregressive")
    network = objective.network.eval()
    generator = network.generator
    lively_generator(generator, seed=3)
    encoding = encoding_of(network, corpus.batch(np.arange(6)))
    sentence = generator.read(encoding)
    generator.stop.bias.fill_(-1e4)
    never = count(generator.generate(encoding))
    for bias in np.arange(-30, 30, 0.25):  # until it stops by itself before that
        generator.stop.bias.fill_(bias)
        found = generator.generate(encoding)
        if count(found) < never:
            break
    assert 3 < count(found) < never
    left, right, kind = found.left[:, 0], found.right[:, 0], found.type_id[:, 0]
    alive = found.is_entity[:, 0]
    assert len(set(alive.sum(1).tolist())) > 1, "sentences that end at different places"
    hidden = generator(sentence, torch.stack([left, right], -1), kind)
    longest = right == encoding.lengths[:, None] - 1  # there is no other span with this first word
    before = torch.nn.functional.pad(left + longest, (1, 0))
    starts = generator.left_scores(hidden[:, 0::3], before, sentence).softmax(-1)
    types = generator.classifier(hidden[:, 2::3]).softmax(-1)
    for b, n in np.ndindex(*alive.shape):
        if not alive[b, n]:
            assert not alive[b, n:].any()
            continue
        assert starts[b, n].argmax() == left[b, n]
        assert types[b, n].argmax() == kind[b, n]
        assert left[b, n] <= right[b, n] < encoding.lengths[b]
        if n:
            pair, previous = (left[b, n], right[b, n]), (left[b, n - 1], right[b, n - 1])
            assert pair > previous, "in order"
        rest = found.summed_probability[b, 0, n] - starts[b, n].max() - types[b, n].max()
        least = int(left[b, n])
        if n and left[b, n] == left[b, n - 1]:
            least = max(least, int(right[b, n - 1]) + 1)
        scores = generator.right_scores(
            hidden[b : b + 1, 1::3][:, n : n + 1],
            torch.tensor([[least]]),
            generator.read(encoding_of(network, corpus.batch(np.array([b])))),
        ).softmax(-1)
        assert scores.argmax() == right[b, n]
        assert rest.item() == pytest.approx(scores.max().item(), abs=1e-4)


@torch.no_grad()
def test_a_generator_that_never_stops_is_stopped(make, monkeypatch):
    """Each span is generated once, in order, and there are not too many."""
    objective, corpus = make("autoregressive")
    network = objective.network.eval()
    network.generator.stop.bias.fill_(-1e3)  # behind all words, but before what is masked
    encoding = encoding_of(network, corpus.batch(np.arange(6)))
    counts = set()
    for seed in range(8):
        lively_generator(network.generator, seed)
        found = network.propose(encoding)
        alive = found.is_entity[:, 0]
        for row, words in enumerate(encoding.lengths.tolist()):
            number = int(alive[row].sum())
            spans = [tuple(one) for one in found.noisy[row, 0, :number].tolist()]
            assert alive[row, :number].all() and spans == sorted(set(spans))
            assert all(left <= right < words for left, right in spans)
            assert spans[-1] == (words - 1, words - 1)
            counts.add(number)
    assert len(counts) > 2
    monkeypatch.setattr(autoregressive, "MAX_ENTITIES", 2)
    assert count(network.propose(encoding)) == 2 < max(counts)


@torch.no_grad()
def test_a_sentence_has_at_most_two_entities_for_each_word(make):
    objective, corpus = make("autoregressive")
    network = objective.network.eval()
    generator = network.generator
    generator.stop.bias.fill_(-1e3)
    for pointer in (generator.left, generator.right):  # the first word of those that can be
        pointer.output.weight.zero_()
    encoding = encoding_of(network, corpus.batch(np.arange(6)))
    found = network.propose(encoding)
    assert found.is_entity[:, 0].sum(1).tolist() == (2 * encoding.lengths).tolist()


def test_a_generator_that_stops_at_once_finds_nothing(make):
    objective, corpus = make("autoregressive")
    network = objective.network.eval()
    with torch.no_grad():
        network.generator.stop.bias.fill_(1e4)
        found = network.propose(encoding_of(network, corpus.batch(np.arange(6))))
    assert found.left.shape == (6, 1, 0)
    arrays = found.map(lambda tensor: tensor.numpy())
    rule = everything(network.labels)
    assert not len(merge_candidates(arrays, corpus.windows, np.arange(6), rule).sentence)


def test_a_generator_can_be_told_how_many(make):
    """So that random weights, which stop at once or never, can be timed."""
    objective, corpus = make("autoregressive")
    network = objective.network.eval()
    batch = batch_to_device(corpus.batch(np.arange(3)), CPU)
    given = torch.zeros(3, 4, 2, dtype=torch.long)
    counts = torch.tensor([2, 0, 4])
    slots = torch.arange(4) < counts[:, None]
    for bias in (1e4, -1e4):
        with torch.no_grad():
            network.generator.stop.bias.fill_(bias)
            encoding = network.encoder(batch)
        start = ReverseStart(slots[:, :0], True, given, slots)
        found = network.candidates(encoding, batch.keys, start, plain_inference())
        assert found.left.shape == (3, 1, 4)
        assert found.is_entity[:, 0].sum(1).tolist() == counts.tolist()


def test_entities_are_generated_in_order():
    gold = np.array([[(4, 5), (0, 3), (0, 0), (0, 3)], [(2, 2), (0, 0), (0, 0), (0, 0)]])
    kinds = np.array([[0, 1, 2, 0], [1, -1, -1, -1]])
    ordered, types = in_order(gold, kinds)
    assert ordered[0].tolist() == [[0, 0], [0, 3], [0, 3], [4, 5]]
    assert types.tolist() == [[2, 0, 1, 0], [1, -1, -1, -1]]
    assert ordered[1, 0].tolist() == [2, 2]


@torch.no_grad()
def test_queries_depend_on_the_sentence_alone(make):
    objective, corpus = make("queries")
    network = objective.network.eval()
    found = network.propose(encoding_of(network, corpus.batch(np.arange(6))))
    assert found.left.shape == (6, 1, 12), "as many as there are noisy spans in training"
    alone = network.propose(encoding_of(network, corpus.batch(np.array([3]))))
    assert torch.equal(found.left[3], alone.left[0])
    expected = alone.summed_probability[0]
    assert torch.allclose(found.summed_probability[3], expected, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_default_thresholds(method):
    """A probability above one half, or the sum of the paper."""
    settings = Settings.from_dict({"method": method})
    resolve = network_class(method).resolve_settings
    expected = 1.5 if method in ("crf", "biaffine") else None
    assert resolve(settings, []).inference.phi == expected
    given = settings.override(["inference.threshold=0.7"])
    assert resolve(given, []).inference == given.inference


def test_levels_are_taken_from_the_data(make):
    objective, corpus = make("crf")
    assert objective.network.levels == 3
    assert make("crf", "options.levels=1")[0].network.levels == 1
    assert objective.inputs(corpus.batch(np.arange(6)), None)[0].shape[1] == 3


@pytest.mark.parametrize("method", ["queries", "autoregressive"])
@pytest.mark.parametrize(
    "change", ["decoder.layers=0", "decoder.self_attention=false", "decoder.cross_attention=false"]
)
def test_a_decoder_without_attention_is_refused(make, method, change):
    with pytest.raises(SettingsError, match=f"method={method} needs .*{change.partition('=')[0]}"):
        make(method, change)
    make("crf", change)  # has no decoder


@pytest.mark.parametrize("levels", ["0", "many"])
def test_invalid_levels_are_refused(make, levels):
    with pytest.raises(SettingsError, match=r"options\.levels="):
        make("crf", f"options.levels={levels}")
