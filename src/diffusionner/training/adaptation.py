"""Adapting a pretrained encoder to the language of a domain: masked words guessed from the rest."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from diffusionner.checkpoint import tokenizer_files
from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, EncoderError, SettingsError, TrainingDiverged
from diffusionner.files import write_folders
from diffusionner.model.pretrained import load_encoder, load_tokenizer, position_limit, resolve
from diffusionner.subwords import SubwordTokenizer
from diffusionner.training.optimisation import Phases, set_rate

BLOCK = 128  # subwords read together, those around them included
HELD_OUT = 0.02  # share of the blocks that is not learned from
WARMUP = 0.1  # share of the updates
WEIGHT_DECAY = 0.01
CLIP = 1.0
REPORT_EVERY = 50  # updates: reading a loss back makes a GPU wait
IGNORED = -100  # target of a position that is not guessed

OnStep = Callable[[int, int, float], None]  # updates done, updates in all, mean loss of late


@dataclass(frozen=True)
class AdaptationSettings:
    epochs: int = 10
    batch_size: int = 64  # blocks
    learning_rate: float = 5e-4
    masked: float = 0.15  # share of the subwords
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: give at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise SettingsError(f"learning_rate={self.learning_rate}: give a number above 0")
        if not 0 < self.masked < 1:
            raise SettingsError(f"masked={self.masked}: give a share between 0 and 1")
        if not 0 <= self.seed < 2**63:
            raise SettingsError(f"seed={self.seed}: give a whole number from 0 on")


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch."""

    epoch: int
    step: int  # updates so far
    loss: float  # mean of the epoch
    perplexity: float  # on held-out text
    seconds: float  # so far


OnEpoch = Callable[[Epoch], None]


def adapt(
    output: Path,
    encoder: str,
    sentences: Sequence[Sentence],
    settings: AdaptationSettings,
    device: str | None = None,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
) -> list[Epoch]:
    """Write the adapted encoder, a plain Hugging Face folder with its tokenizer, to `output`.

    Labels are not looked at. device: None is a GPU if there is one.
    """
    epochs: list[Epoch] = []

    def fill(folder: Path) -> None:
        transformer = load_encoder(encoder)
        subwords = load_tokenizer(resolve(encoder), position_limit(transformer.config))
        blocks = pack_blocks(sentences, subwords)
        torch.manual_seed(settings.seed)  # the head's first weights, and dropout
        guesser = Guesser(with_head(transformer, encoder))
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        masking = Masking.of(subwords, settings.masked, encoder)
        with open(folder / "log.jsonl", "w", encoding="utf-8") as log:
            run = Run(move(guesser, chosen), blocks.to(chosen), masking, settings)
            for epoch in run.epochs(on_step):
                epochs.append(epoch)
                log.write(json.dumps(asdict(epoch)) + "\n")
                log.flush()
                if on_epoch is not None:
                    on_epoch(epoch)
        save_encoder(folder, guesser.model.base_model, subwords)

    write_folders({output: fill})  # at its start, so that a name that is taken costs no training
    return epochs


@dataclass(frozen=True)
class Blocks:
    """Text in pieces of equal width: [CLS] some sentences [SEP], then padding."""

    ids: Tensor  # [N, L] int32
    text: Tensor  # [N, L] which positions can be guessed: no padding, no special token
    lengths: Tensor  # [N] without the padding

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: str) -> Blocks:
        return Blocks(self.ids.to(device), self.text.to(device), self.lengths.to(device))

    def __getitem__(self, chosen: Tensor) -> Blocks:
        return Blocks(self.ids[chosen], self.text[chosen], self.lengths[chosen])

    def attention(self) -> Tensor:
        """[N, L] which positions are no padding."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]


def pack_blocks(sentences: Iterable[Sentence], subwords: SubwordTokenizer) -> Blocks:
    """Sentences that follow each other share a block while they fit; longer ones are cut."""
    width = min(BLOCK, subwords.limit)
    room = width - subwords.special_count
    texts = [" ".join(sentence.words) for sentence in sentences]
    encoded = subwords.backend.encode_batch_fast(texts, add_special_tokens=False)
    bodies: list[list[int]] = [[]]
    for pieces in (encoding.ids for encoding in encoded):
        for first in range(0, len(pieces), room):
            part = pieces[first : first + room]
            if len(bodies[-1]) + len(part) > room:
                bodies.append([])
            bodies[-1] += part
    if len(bodies) < 2:
        raise DataError(
            f"too little text to adapt to: {len(texts)} sentences, {len(bodies[0])} subwords; "
            f"some of it is held out, so give more than {room}"
        )
    ids = np.full((len(bodies), width), subwords.pad, dtype=np.int32)
    lengths = np.zeros(len(bodies), dtype=np.int64)
    for number, body in enumerate(bodies):
        row = [*subwords.prefix, *body, *subwords.suffix]
        ids[number, : len(row)] = row
        lengths[number] = len(row)
    text = ~np.isin(ids, [subwords.pad, *subwords.hf.all_special_ids])
    return Blocks(torch.from_numpy(ids), torch.from_numpy(text), torch.from_numpy(lengths))


@dataclass(frozen=True)
class Masked:
    """Blocks of which some positions are to be guessed."""

    ids: Tensor  # [B, L] with masks in
    attention: Tensor  # [B, L]
    positions: Tensor  # [B, K] those to guess
    targets: Tensor  # [B, K] what stood there, or IGNORED in blocks that have fewer


@dataclass(frozen=True)
class Masking:
    """Of the subwords to guess, 8 of 10 are masked, 1 is replaced by any other, 1 is left.

    A block's share is exact and not drawn, so all tensors have the same shape in every batch, and
    a GPU need not be asked how many there are.
    """

    share: float
    mask: int
    vocabulary: int
    around: int  # subwords of a block that are not its text

    @classmethod
    def of(cls, subwords: SubwordTokenizer, share: float, encoder: str) -> Masking:
        if subwords.hf.mask_token_id is None:
            raise EncoderError(
                f"the tokenizer of '{encoder}' has no mask token, so the encoder cannot be adapted "
                "by masking words; choose one that was trained so, such as a BERT"
            )
        return cls(share, subwords.hf.mask_token_id, len(subwords.hf), subwords.special_count)

    def apply(self, blocks: Blocks, generator: torch.Generator) -> Masked:
        """generator: of the device of the blocks."""
        ids, device = blocks.ids.long(), blocks.ids.device
        most = max(1, round(self.share * (ids.shape[1] - self.around)))
        ranks = torch.rand(ids.shape, generator=generator, device=device).masked_fill(
            ~blocks.text, -1.0
        )
        scores, positions = ranks.topk(most, dim=1)  # [B, K]
        wanted = (self.share * blocks.text.sum(1)).round().clamp(1, most)  # [B]
        guessed = torch.arange(most, device=device) < wanted[:, None]
        guessed &= scores >= 0  # not in a block of nothing but unknown words
        before = ids.gather(1, positions)
        other = torch.randint(self.vocabulary, before.shape, generator=generator, device=device)
        fate = torch.rand(before.shape, generator=generator, device=device)
        after = torch.where(fate < 0.8, self.mask, torch.where(fate < 0.9, other, before))
        ids = ids.scatter(1, positions, torch.where(guessed, after, before))
        return Masked(ids, blocks.attention(), positions, before.where(guessed, IGNORED))


def with_head(encoder: PreTrainedModel, name: str) -> PreTrainedModel:
    """A model around the encoder itself, whose new head guesses words by their embeddings."""
    encoder.config.tie_word_embeddings = True
    try:
        model = AutoModelForMaskedLM.from_config(encoder.config, dtype=torch.float32)
    except ValueError as error:  # there is none for this architecture
        raise _cannot_guess(name) from error
    if type(model.base_model) is not type(encoder):
        raise _cannot_guess(name)
    setattr(model, model.base_model_prefix, encoder)
    model.tie_weights()
    return model


class Guesser(nn.Module):
    """Lets the head see only the positions that are guessed: the vocabulary is large."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.positions: Tensor | None = None
        model.base_model.register_forward_hook(self._choose)

    def _choose(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        assert self.positions is not None
        states = output["last_hidden_state"]  # [B, L, h]
        index = self.positions[..., None].expand(-1, -1, states.shape[-1])
        output["last_hidden_state"] = states.gather(1, index)  # [B, K, h]
        return output

    def forward(self, masked: Masked) -> Tensor:
        """Sum of the losses over all that is guessed."""
        self.positions = masked.positions
        logits = self.model(input_ids=masked.ids, attention_mask=masked.attention).logits
        if logits.shape[:2] != masked.positions.shape:  # this head needs the whole text
            raise _cannot_guess(self.model.config.model_type)
        return functional.cross_entropy(
            logits.flatten(0, 1).float(),
            masked.targets.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )


def _cannot_guess(name: str) -> EncoderError:
    return EncoderError(
        f"encoder '{name}' cannot be adapted: the installed transformers has no masked language "
        "model for its architecture; choose another, such as a BERT"
    )


def move(guesser: Guesser, device: str) -> Guesser:
    if device.startswith("cuda"):
        # cuDNN's attention is planned anew for every shape, which costs more than it saves.
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return guesser.to(device)
    except (RuntimeError, AssertionError) as error:  # which of them depends on the device
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(
            f"device '{device}' cannot be used ({reason}); try cpu, or leave it out"
        ) from error


class Run:
    """The training loop; everything lies on one device."""

    def __init__(
        self, guesser: Guesser, blocks: Blocks, masking: Masking, settings: AdaptationSettings
    ) -> None:
        self.guesser = guesser
        self.masking = masking
        self.settings = settings
        self.device = blocks.ids.device
        self.order = torch.Generator().manual_seed(settings.seed)
        self.masks = torch.Generator(self.device).manual_seed(settings.seed)
        mixed = torch.randperm(len(blocks), generator=self.order).to(self.device)
        held = max(1, round(HELD_OUT * len(blocks)))
        self.held_out, self.blocks = blocks[mixed[:held]], blocks[mixed[held:]]
        per_epoch = -(-len(self.blocks) // settings.batch_size)
        self.phases = Phases(0, settings.epochs * per_epoch, WARMUP)
        self.parameters = list(guesser.parameters())
        self.optimizer = self._optimizer()

    def _optimizer(self) -> torch.optim.AdamW:
        """No decay on vectors."""
        groups = []
        for decays in (True, False):
            members = [p for p in self.parameters if (p.dim() > 1) == decays]
            decay = WEIGHT_DECAY if decays else 0.0
            rate = self.settings.learning_rate
            groups.append({"params": members, "weight_decay": decay, "lr": rate, "peak": rate})
        return torch.optim.AdamW(groups, fused=True)

    def epochs(self, on_step: OnStep | None) -> Iterable[Epoch]:
        started = time.monotonic()
        step = 0
        for number in range(1, self.settings.epochs + 1):
            losses: list[Tensor] = []
            for chosen in self._shuffled():
                losses.append(self._update(self.blocks[chosen], step))
                step += 1
                if on_step is not None and step % REPORT_EVERY == 0:
                    on_step(
                        step, self.phases.total, float(torch.stack(losses[-REPORT_EVERY:]).mean())
                    )
            loss, perplexity = float(torch.stack(losses).mean()), self.perplexity()
            if not math.isfinite(loss + perplexity):
                raise TrainingDiverged(
                    f"the loss is no finite number in epoch {number}; lower --learning-rate "
                    f"({self.settings.learning_rate:g} now)"
                )
            yield Epoch(number, step, loss, perplexity, round(time.monotonic() - started, 3))

    def _shuffled(self) -> Sequence[Tensor]:
        order = torch.randperm(len(self.blocks), generator=self.order)
        return torch.split(order.to(self.device), self.settings.batch_size)

    def _update(self, blocks: Blocks, step: int) -> Tensor:
        self.guesser.train()
        masked = self.masking.apply(blocks, self.masks)
        with self._autocast():
            total = self.guesser(masked)
        loss = total / (masked.targets != IGNORED).sum().clamp(min=1)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        set_rate(self.optimizer, self.phases.factor(step))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @torch.no_grad()
    def perplexity(self) -> float:
        """On the held-out blocks, each time with the same masks."""
        self.guesser.eval()
        same = torch.Generator(self.device).manual_seed(self.settings.seed)
        total = torch.zeros((), device=self.device)
        count = torch.zeros((), device=self.device)
        rows = torch.arange(len(self.held_out), device=self.device)
        for chosen in torch.split(rows, self.settings.batch_size):
            masked = self.masking.apply(self.held_out[chosen], same)
            with self._autocast():
                total += self.guesser(masked)
            count += (masked.targets != IGNORED).sum()
        return float((total / count.clamp(min=1)).exp())

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda")


def save_encoder(folder: Path, encoder: PreTrainedModel, subwords: SubwordTokenizer) -> None:
    transformers_logging.disable_progress_bar()  # for 0.1 s of writing
    try:
        encoder.save_pretrained(folder)
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(str(error)) from error
    finally:
        transformers_logging.enable_progress_bar()
    for name, content in tokenizer_files(subwords).items():
        (folder / name).write_bytes(content)
