"""The self-test of a model: a sentence and what the model found in it when it was saved.

Digests notice files that changed since. The self-test notices everything else: weights that were
broken before they were written, another release or processor that computes something else, or a
config.json that fits the weights and does not belong to them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Sentence
from diffusionner.diffusion import AUTO
from diffusionner.errors import CheckpointError, first_line
from diffusionner.inference.engine import Engine
from diffusionner.inference.stream import PredictionTask
from diffusionner.label_set import LabelSet
from diffusionner.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from diffusionner.model.base import Network

# Fixed, so that no training data gets into a model. People, places and dates, other scripts, and
# biology: even a model that finds nothing here gives its candidates probabilities.
SENTENCE = (
    "Ada Lovelace met Charles Babbage of the Royal Society in London on 5 June 1833 ; "
    "Москва , 東京 : IL-2 gene expression in human T cells ."
)
MAX_WORDS, MAX_SPANS = 100, 64
# Mean difference of summed probabilities, which reach 3. Other processors change them by 1e-5,
# bf16 by 0.001, a zeroed weight matrix by 0.002 to 1.
TOLERANCE, LOW_PRECISION_TOLERANCE = 0.02, 0.1
# A word is left out if rounding the weights to so many bits changes its sum by more than UNSTABLE,
# or if its label is decided by less than MARGIN: a GPU in bf16 might decide otherwise.
ROUNDINGS, UNSTABLE, MARGIN = (8, 6, 5), 0.05, 0.1


@dataclass
class Answer:
    """What a model finds at each word."""

    labels: list[str | None]
    sums: np.ndarray  # summed probability of the best candidate that covers the word
    margins: np.ndarray  # by which its label is decided

    def differences(self, labels: Sequence[str | None], sums: np.ndarray) -> np.ndarray:
        """Return how far another answer is from this one; other labels count as all of it."""
        same = np.array([a == b for a, b in zip(self.labels, labels, strict=True)])
        return np.where(same, np.abs(self.sums - sums), np.maximum(self.sums, sums))


def record(
    engine: Engine, others: Iterable[Engine], subwords: SubwordTokenizer, settings: Settings
) -> dict[str, Any]:
    """Return the self-test of a model, as config.json stores it.

    others: the same model with other rounding errors. Words on which they differ are left out:
    a processor with other rounding errors might differ there as well.
    """
    words = SENTENCE.split()
    answer = _answer(engine, subwords, settings, words)
    stable = answer.margins >= MARGIN
    for other in others:
        found = _answer(other, subwords, settings, words)
        stable &= answer.differences(found.labels, found.sums) <= UNSTABLE
    kept = [round(float(x), 3) if s else None for x, s in zip(answer.sums, stable, strict=True)]
    return {"words": words, "labels": answer.labels, "sums": kept}


def record_torch(
    network: Network, subwords: SubwordTokenizer, settings: Settings, precision: str = "float32"
) -> dict[str, Any]:
    """Return the self-test of a network whose weights are stored in a precision."""
    import torch

    from diffusionner.inference.torch_engine import TorchEngine
    from diffusionner.storage.packing import pack, unpack

    network = copy.deepcopy(network).to("cpu", torch.float32).eval()
    if network.encoder.lstm is not None:
        network.encoder.lstm.run_in_parallel = None  # needs a GPU
    stored = unpack(pack(network.state_dict(), precision), "the network")
    network.load_state_dict(stored)
    engines = []
    for bits in (None, *ROUNDINGS):
        engine = TorchEngine(copy.deepcopy(network))
        if bits is not None:
            engine.network.load_state_dict({name: _round(x, bits) for name, x in stored.items()})
        if settings.reads_labels:
            engine = engine.bind(LabelSet.of(network.labels), subwords)
        engines.append(engine)
    return record(engines[0], engines[1:], subwords, settings)


def _round(tensor: Tensor, bits: int) -> Tensor:
    """Round numbers to a mantissa of so many bits."""
    if not tensor.is_floating_point():
        return tensor
    mantissa, exponent = tensor.frexp()
    return (mantissa * 2**bits).round().ldexp(exponent - bits)


def check(
    engine: Engine,
    subwords: SubwordTokenizer,
    settings: Settings,
    expected: Any,
    tolerance: float,
    folder: Path,
) -> None:
    """Raise CheckpointError unless a model gives the answer of its self-test.

    A model that was saved without one (None) must only be able to read the sentence.
    """
    stored: Any = {"words": SENTENCE.split()} if expected is None else expected
    if not _is_valid(stored, engine.labels):
        raise CheckpointError(
            f"{folder}: 'self_test' in config.json is damaged; copy the whole folder again"
        )
    try:
        answer = _answer(engine, subwords, settings, stored["words"])
    except CheckpointError:  # of a graph, which is opened when it runs
        raise
    except Exception as error:  # a damaged model can raise anything
        raise CheckpointError(
            f"{folder}: the model cannot read a sentence ({type(error).__name__}: "
            f"{first_line(error)}); copy the whole folder again, or save or export the model again"
        ) from error
    if not np.isfinite(answer.sums).all():
        raise CheckpointError(
            f"{folder}: the model computes probabilities that are not numbers; its weights "
            "are damaged. Copy the whole folder again, or train again"
        )
    if expected is None:
        return
    then = np.array([np.nan if x is None else x for x in stored["sums"]], dtype=float)
    compared = np.isfinite(then)
    differences = answer.differences(stored["labels"], then)
    if compared.any() and differences[compared].mean() > tolerance:
        worst = int(np.where(compared, differences, -1).argmax())
        raise CheckpointError(
            f"{folder} fails its self-test: for '{stored['words'][worst]}' it found "
            f"{stored['labels'][worst]} with {then[worst]:.3f} when it was saved, and "
            f"{answer.labels[worst]} with {answer.sums[worst]:.3f} now (mean difference of all "
            f"words {differences[compared].mean():.3f}, allowed {tolerance}). A file is damaged or "
            "from another model, or this release or device computes something else. Copy the whole "
            "folder again, or train or export again"
        )


def _is_valid(stored: Any, known: list[str]) -> bool:
    if not isinstance(stored, Mapping):
        return False
    words = stored.get("words")
    if not isinstance(words, list) or not 0 < len(words) <= MAX_WORDS:
        return False
    none = [None] * len(words)
    labels, sums = stored.get("labels", none), stored.get("sums", none)
    return (
        isinstance(labels, list)
        and isinstance(sums, list)
        and len(words) == len(labels) == len(sums)
        and all(isinstance(word, str) and 0 < len(word) <= MAX_WORDS for word in words)
        and all(label is None or label in known for label in labels)
        and all(x is None or type(x) in (int, float) for x in sums)
    )


def _answer(
    engine: Engine, subwords: SubwordTokenizer, settings: Settings, words: list[str]
) -> Answer:
    """Return what a model finds at each word: the best candidate that covers it.

    Candidates are taken as they are, even where no-entity (None) is likelier: thresholds and
    calibration may change, and what a model does not find tells as much about its weights.
    """
    inference = settings.inference
    spans = inference.spans if inference.spans == AUTO else min(int(inference.spans), MAX_SPANS)
    whole = replace(subwords, word_limits=None)  # other windows are not damage
    corpus = EncodedCorpus([Sentence(words)], whole, settings.encoder)
    windows = np.arange(len(corpus))
    inference = replace(inference, steps=min(inference.steps, 1), spans=spans)
    found = PredictionTask(corpus, [0]).launch(engine, windows, inference)()
    offset = corpus.windows.offset[:, None, None]  # found: [B, 1, K]
    place = np.arange(len(words))[:, None, None, None]
    covers = (found.left + offset <= place) & (place <= found.right + offset) & found.slots
    sums = np.where(covers, found.summed_probability, 0.0).reshape(len(words), -1)  # [M, B·K]
    if not sums.size:  # a rival without candidates
        return Answer([None] * len(words), np.zeros(len(words)), np.zeros(len(words)))
    types, probability = found.type_id.ravel(), found.type_probability.ravel()
    if settings.decoder.joins_labels:  # which have no probability of no-entity
        types = np.where(probability < 0.5, len(engine.labels), types)
    best = sums.argmax(1)
    best_sums = sums[np.arange(len(words)), best]
    # The label may change with the probability of the type, or with another candidate.
    other_sums = np.where(types != types[best][:, None], sums, 0.0).max(1)
    margins = np.minimum(np.abs(2 * probability[best] - 1), best_sums - other_sums)
    margins[best_sums == 0] = np.inf  # no candidate covers the word
    names = [*engine.labels, None]
    labels = [names[i] if x else None for i, x in zip(types[best].tolist(), best_sums, strict=True)]
    return Answer(labels, best_sums, margins)
