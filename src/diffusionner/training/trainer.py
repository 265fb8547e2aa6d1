"""The training loop: two phases, selection on dev, exact resumption, one or many processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.corpus import MAX_FRAGMENTS
from diffusionner.data.fingerprint import fingerprint
from diffusionner.diffusion import mix_keys
from diffusionner.errors import CheckpointError, SettingsError, TrainingDiverged, WriteError
from diffusionner.evaluation import Report, score_sentences
from diffusionner.files import write_bytes
from diffusionner.inference import self_test
from diffusionner.inference.decoding import DecodedEntity, ScoreRule, to_spans
from diffusionner.inference.open_labels import predict_asked
from diffusionner.inference.torch_engine import engine_in_training
from diffusionner.label_set import DEFAULT_LABELS
from diffusionner.methods import network_class, objective_class
from diffusionner.model.base import Network
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage import checkpoint
from diffusionner.storage.beliefs import fitted_beliefs
from diffusionner.storage.calibration import load_calibration
from diffusionner.storage.config import STATE_FILE, TEST_SCORES, read_config
from diffusionner.training.data import RunData, load_data
from diffusionner.training.label_sampling import LabelSampler
from diffusionner.training.masking import SubwordMasking
from diffusionner.training.objective import NotFinite
from diffusionner.training.optimisation import Phases, WeightUpdate
from diffusionner.training.processes import make_accelerator, no_sync, predict_shared
from diffusionner.training.replay import keep_passages
from diffusionner.training.reporter import Reporter
from diffusionner.training.selection import DevResult, compare_on_dev, evaluate_on_dev
from diffusionner.training.start import build_network
from diffusionner.training.state import Progress, load_state, save_state
from diffusionner.word_limits import WordLimits

if TYPE_CHECKING:
    from diffusionner.training.graphs import GraphedStep

LOG_EVERY = 20  # updates
MAX_PAIRS = 2**20  # pairs of words of a micro-batch of passages, padding included
# p below which denoising is better than the initializer alone. Beliefs, which are fitted elsewhere,
# need not be significantly better on this dev set: they are better on most, by less than one shows.
SIGNIFICANT = 0.05


@dataclass
class Outcome:
    """The result of a run, whose best model is in the output folder."""

    best_f1: float  # on dev; -1 without dev
    best_epoch: int
    sentences_per_second: float
    test: Report | None


@dataclass
class MicroBatch:
    """One forward and backward pass of a process, prepared on the host."""

    batch: Batch[np.ndarray]
    inputs: list[np.ndarray]  # of the objective
    weight: float  # 0 in a process without sentences
    denominator: int  # of the whole update


@dataclass
class Meter:
    """Mean loss and speed since the last line of the log."""

    losses: list[Tensor] = field(default_factory=list)
    sentences: int = 0
    since: float = field(default_factory=time.monotonic)


class Trainer:
    """One training run: its data, network, optimiser and state."""

    def __init__(
        self, settings: Settings, resume: bool = False, data: RunData | None = None
    ) -> None:
        """data: corpora that are already loaded; otherwise those of the settings are read."""
        self.output = Path(settings.training.output)
        self.state_path = self.output / STATE_FILE
        if not resume and self.state_path.exists():
            raise CheckpointError(
                f"{self.output} already contains a run; continue it with --resume, remove it, or "
                "set training.output to another folder"
            )
        if resume and not self.state_path.exists():
            raise CheckpointError(f"nothing to resume: {self.state_path} does not exist")
        self.beliefs = fitted_beliefs() if settings.decoder.beliefs else None
        self.data = data or load_data(settings)
        method = network_class(settings.method)
        settings = method.resolve_settings(settings, self.data.train)
        # Denoising is compared with the initializer alone at the end; till then it is not used.
        self.steps = settings.inference.steps
        tuned = settings.training.tune_steps and bool(self.data.dev)
        self.chooses_steps = bool(
            self.steps and settings.can_skip_denoising and (tuned or settings.decoder.beliefs)
        )
        if self.chooses_steps and self.data.dev:
            settings = replace(settings, inference=replace(settings.inference, steps=0))
        self.settings = settings
        training = settings.training
        self.epochs = training.frozen_epochs + training.epochs
        self.accelerator = make_accelerator(training.precision)
        self.device = self.accelerator.device
        # cuDNN plans its attention for every new shape, which costs more than it saves here.
        torch.backends.cuda.enable_cudnn_sdp(False)

        torch.manual_seed(training.seed)  # initial weights
        self.is_open = settings.reads_labels
        labels = list(DEFAULT_LABELS) if self.is_open else self.data.labels
        self.network, self.tokenizer = build_network(settings, labels)
        if (table := self.network.table) is not None:  # as large as the words of the labels need
            decoder = replace(settings.decoder, type_vectors=table.shape[1])
            self.settings = settings = replace(settings, decoder=decoder)
        self.network.to(self.device)
        self.objective = objective_class(settings.method)(self.network, settings).to(self.device)
        if training.consistency and not self.objective.scores_spans:
            raise SettingsError(
                f"training.consistency={training.consistency:g} needs scores of all spans, which "
                "only decoder.initializer=types has; set one of them"
            )
        self.corpus = self._encode("train", self.data.labels)
        self.tokenizer.word_limits = WordLimits.of(
            self.data.train, passages=settings.encoder.passage_words > 0
        )
        self.dev = self._encode("dev")
        rate = training.subword_masking
        self.masking = SubwordMasking.for_tokenizer(self.tokenizer, rate) if rate else None
        self.sampler = LabelSampler(self.data.labels, self.tokenizer) if self.is_open else None

        batches = -(-len(self.corpus) // training.batch_size)
        self.phases = Phases(
            training.frozen_epochs * batches, training.epochs * batches, training.warmup
        )
        single_gpu = self.accelerator.num_processes == 1 and self.device.type == "cuda"
        self.uses_graphs = (
            training.cuda_graphs
            and single_gpu
            and training.accumulation == 1
            and not settings.encoder.passage_words  # whose batches are of any size
            and not settings.decoder.discontinuous
            and not settings.decoder.joins_labels
            and self.network.encoder.one_mask  # others may wait for the GPU, unlike a recording
        )
        self.graphed: GraphedStep | None = None
        self.weights = WeightUpdate(self.network, training, self.phases, self.uses_graphs)
        self.update_weights: Callable[[], None] = self.weights
        self.last_loss = torch.zeros((), device=self.device)
        self.trained = 0  # sentences, for the speed
        self.training_seconds = 0.0
        self.progress = Progress(fingerprint=self.data.fingerprint(settings))
        if resume:
            self.progress = load_state(
                self.state_path, self.progress.fingerprint, self.network, self.weights
            )
        self.reporter = self._open_output()

    def run(self) -> Outcome:
        """Train to the end; the best epoch on dev is kept in `training.output`."""
        started = time.monotonic() - self.progress.seconds
        model: nn.Module | None = None
        with closing(self.reporter):
            for epoch in range(self.progress.epoch, self.epochs):
                if model is None or epoch == self.settings.training.frozen_epochs:
                    model = self._enter_phase(self.progress.step)
                self._train_epoch(model, epoch, started)
                self.progress.epoch, self.progress.batch = epoch + 1, 0
                self._select(epoch + 1)
                self._save(started)
            if self.chooses_steps:
                self._choose_steps()
            if self.is_open and self.accelerator.is_main_process:
                keep_passages(self.output, self.data.dev)
            return Outcome(
                self.progress.best_f1,
                self.progress.best_epoch,
                self.trained / max(1e-9, self.training_seconds),
                self._score_test() if self.data.test else None,
            )

    def _train_epoch(self, model: nn.Module, epoch: int, started: float) -> None:
        training = self.settings.training
        self.corpus.draw_passages(training.seed, epoch)
        batches = self.corpus.shuffled_batches(training.batch_size, training.seed, epoch)
        meter = Meter()
        last_saved = time.monotonic()
        prepared: list[MicroBatch] = []
        for number in range(self.progress.batch, len(batches)):
            prepared = prepared or self._prepare(batches[number], epoch)
            self.last_loss = self._update(model, prepared, epoch, number)
            # Prepare the next batch while a GPU is still busy with this one.
            following = batches[number + 1 : number + 2]
            prepared = self._prepare(following[0], epoch) if following else []
            self.progress.step += 1
            self.progress.batch = number + 1
            meter.losses.append(self.last_loss)
            meter.sentences += len(batches[number])
            if self.progress.step % LOG_EVERY == 0 or number + 1 == len(batches):
                self._log(epoch, meter)
                meter = Meter()
            before = time.monotonic()
            if before - last_saved > 60 * training.checkpoint_minutes:
                self._check_finite(epoch, number)
                self._save(started)
                last_saved = time.monotonic()
                meter.since += last_saved - before  # saving is not training
        self._check_finite(epoch, len(batches))

    def _enter_phase(self, step: int) -> nn.Module:
        """Freeze or unfreeze the encoder and wrap the objective, since DDP fixes its gradients."""
        frozen = step < self.phases.frozen
        self.objective.freeze_encoder = frozen
        for parameter in self.network.encoder.transformer.parameters():
            parameter.requires_grad_(not frozen)
        self.objective.train()
        if self.uses_graphs and not frozen:
            self._record_largest()
        if self.accelerator.num_processes > 1:
            return DistributedDataParallel(
                self.objective, device_ids=[self.device] if self.device.type == "cuda" else None
            )
        return self.objective

    def _record_largest(self) -> None:
        """Record the largest batch first: the later recordings share its memory."""
        from diffusionner.training.graphs import GraphedStep, GraphedUpdate  # CUDA only

        size = self.settings.training.batch_size
        self.graphed = GraphedStep(
            self.objective, 2 * size if self.settings.training.consistency else size
        )
        self.weights.zero_in_place = True
        self.update_weights = GraphedUpdate(self.weights)
        (micro,) = self._prepare(self.corpus.widest(size), 0)
        with self.accelerator.autocast():
            self.graphed(micro.batch, micro.inputs, 1.0)
        self.weights.optimizer.zero_grad(set_to_none=False)

    def _prepare(self, chosen: np.ndarray, epoch: int) -> list[MicroBatch]:
        """Return this process's share of a global batch, one entry per micro-batch."""
        training = self.settings.training
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        counts = self.corpus.gold_offset[chosen + 1] - self.corpus.gold_offset[chosen]
        denominator = self.objective.denominator(counts)
        if training.consistency:
            denominator = self.objective.denominator(np.tile(counts, 2))
        prepared = []
        for part in np.array_split(chosen, training.accumulation):
            mine = np.array_split(part, processes)[rank]
            # In a small last batch a process may have no sentence: it takes part with weight 0.
            weight = 1.0 if len(mine) else 0.0
            mine = mine if len(mine) else chosen[:1]
            # Passages are not sorted by length: one long sentence would pad all others.
            passages = self.settings.encoder.passage_words > 0
            for few in self.corpus.divide(mine, MAX_PAIRS) if passages else [mine]:
                prepared.append(self._micro_batch(few, epoch, weight, denominator))
        return prepared

    def _micro_batch(
        self, chosen: np.ndarray, epoch: int, weight: float, denominator: int
    ) -> MicroBatch:
        """Gather windows with masked subwords, sampled labels and the objective's inputs."""
        training = self.settings.training
        batch = self.corpus.batch(chosen, self.graphed.multiples if self.graphed else (1,) * 5)
        keys = mix_keys(chosen, training.seed, epoch)
        of_rows = keys[np.unique(batch.row, return_index=True)[1]]  # of a sentence of each
        if self.masking is not None:
            batch.subwords = self.masking.apply(batch.subwords, of_rows)
        if self.sampler is not None:
            batch = self.sampler.apply(batch, of_rows)
        if training.consistency:  # the halves differ in dropout and noise
            batch, keys = batch.doubled(), np.concatenate([keys, mix_keys(keys, 0, 0)])
        return MicroBatch(batch, self.objective.inputs(batch, keys), weight, denominator)

    def _update(
        self, model: nn.Module, prepared: list[MicroBatch], epoch: int, number: int
    ) -> Tensor:
        """Make one optimiser step over a global batch; return the loss, still on the device."""
        # Dropout is a function of the step, so that a resumed run repeats it.
        parts = (self.settings.training.seed, epoch, number, self.accelerator.process_index)
        torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1)[0]))
        self.weights.set_schedule(self.progress.step)
        try:
            losses = [
                self._gradients(model, micro, last=i + 1 == len(prepared))
                for i, micro in enumerate(prepared)
            ]
        except NotFinite:
            self._diverged(epoch, number)
        self.update_weights()
        return torch.stack(losses).sum()

    def _gradients(self, model: nn.Module, micro: MicroBatch, last: bool) -> Tensor:
        """Add to the gradients; return the loss, still on the device."""
        with no_sync(model, last), self.accelerator.autocast():
            if self.graphed is not None and self.graphed.can_replay(micro.batch):
                return self.graphed(micro.batch, micro.inputs, micro.denominator)
            loss = model(batch_to_device(micro.batch, self.device), micro.inputs, micro.denominator)
            # The host has just waited for the matching, so the previous loss is available.
            if not torch.isfinite(self.last_loss):
                raise NotFinite
        with no_sync(model, last):
            # DDP averages over processes; the loss is a sum over the global batch.
            self.accelerator.backward(loss * (micro.weight * self.accelerator.num_processes))
        result: Tensor = loss.detach() * micro.weight
        return result

    def _check_finite(self, epoch: int, number: int) -> None:
        """Check loss and weights before saving: the gradients of a finite loss may be infinite."""
        values = [self.last_loss, *self.weights.parameters]
        if not torch.stack([torch.isfinite(value).all() for value in values]).all():
            self._diverged(epoch, number)

    def _diverged(self, epoch: int, number: int) -> NoReturn:
        groups = self.weights.optimizer.param_groups
        rates = ", ".join(f"{rate:.2e}" for rate in sorted({float(g["lr"]) for g in groups}))
        saved = (
            f"the last saved state is in {self.output}"
            if self.state_path.exists()
            else "no state had been saved yet"
        )
        raise TrainingDiverged(
            f"the loss is not a finite number at update {self.progress.step} (epoch {epoch + 1}, "
            f"batch {number}, learning rates {rates}); {saved}. Lower training.learning_rate or "
            "training.clip, or raise training.warmup, and start again"
        )

    def _select(self, epoch: int) -> None:
        """Evaluate on dev and save the model if it is the best so far; without dev, always."""
        if epoch % self.settings.training.evaluate_every and epoch != self.epochs:
            return
        network = self.network
        if self.weights.average is not None:
            network = cast(Network, self.weights.average.module)
        record = self._save_if_better(network)
        if record.pop("improved"):
            self.progress.best_epoch = epoch
        self.reporter.epoch(self.progress.step, epoch, {**record, "best": self.progress.best_epoch})

    def _save_if_better(self, network: Network) -> dict[str, float]:
        """Evaluate a network on dev and save it if it is the best so far; return what to report."""
        record: dict[str, float] = {"improved": True}
        result = None
        if self.data.dev:
            clock = time.monotonic()
            result = self._evaluate(network, self.settings.inference)
            record = {"f1": result.f1} | ({} if result.phi is None else {"phi": result.phi})
            record["evaluation_seconds"] = time.monotonic() - clock
            record["improved"] = result.f1 > self.progress.best_f1
        if record["improved"]:
            self._save_model(network, result)
        return record

    def _evaluate(self, network: Network, inference: InferenceSettings) -> DevResult:
        dev, labels = self.data.dev, self.data.labels
        tune = self.settings.training.tune_threshold
        predict = partial(self._predict, network, "dev")
        return evaluate_on_dev(predict, dev, labels, inference, tune, one_threshold=self.is_open)

    def _predict(
        self, network: Network, name: str, inference: InferenceSettings, rule: ScoreRule
    ) -> list[list[DecodedEntity]]:
        """Return the entities of dev or test."""
        if self.is_open:
            model = engine_in_training(network), self.tokenizer, self.settings.encoder
            sentences = getattr(self.data, name)
            return predict_asked(*model, sentences, self.data.labels, inference, rule)
        corpus = self.dev if name == "dev" else self._encode(name)
        count = len(corpus.docs)
        return predict_shared(self.accelerator, network, corpus, count, inference, rule)

    def _save_model(self, network: Network, result: DevResult | None) -> None:
        """Save a network with the thresholds of its result on dev."""
        settings, calibration = self.settings, None
        if result is not None:
            settings = replace(settings, inference=result.inference)
            calibration = result.calibration
            self.progress.best_f1 = max(result.f1, self.progress.best_f1)
        if self.accelerator.is_main_process:
            model = network, self.tokenizer, settings
            test = self_test.record_torch(*model)
            checkpoint.save(self.output, *model, calibration, self_test=test)

    def _choose_steps(self) -> None:
        """Let the best model denoise if that is better on dev."""
        self._load_best()
        if self.beliefs is not None:
            cast(DenoisingNetwork, self.network).load_beliefs(self.beliefs)
        if not self.data.dev:
            self._save_model(self.network, None)
            self.reporter.say("denoising: used unchecked, without dev sentences")
            return
        inference = self.settings.inference
        alone = self._evaluate(self.network, inference)
        denoised = self._evaluate(self.network, replace(inference, steps=self.steps))
        change = compare_on_dev(denoised, alone, self.data.dev, self.data.labels)
        better = change.f1 > 0 and (self.beliefs is not None or change.p < SIGNIFICANT)
        self._save_model(self.network, denoised if better else alone)
        self.reporter.say(
            f"denoising: dev F1 {100 * denoised.f1:.2f}, initializer alone {100 * alone.f1:.2f}, "
            f"p = {change.p:.3f}; inference.steps={self.steps if better else 0}"
        )

    def _load_best(self) -> None:
        self.accelerator.wait_for_everyone()  # until the best model is on disk
        checkpoint.load_weights(self.network, self.output / "model.safetensors")

    def _score_test(self) -> Report:
        """Score the best model on test, once."""
        self._load_best()
        inference = Settings.from_dict(read_config(self.output)["settings"]).inference
        rule = ScoreRule(inference, self.data.labels, load_calibration(self.output))
        sentences = self.data.test
        decoded = self._predict(self.network, "test", inference, rule)
        report = score_sentences(
            sentences, [to_spans(entities, self.data.labels) for entities in decoded]
        )
        if self.accelerator.is_main_process:
            scores = {"data": fingerprint(sentences).to_dict(), **report.to_dict()}
            write_bytes(self.output / TEST_SCORES, (json.dumps(scores, indent=1) + "\n").encode())
        return report

    def _open_output(self) -> Reporter:
        """Create the output folder and start reporting."""
        main = self.accelerator.is_main_process
        if main:
            try:
                self.output.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WriteError(
                    f"training.output={self.output} cannot be created as a folder "
                    f"({error.strerror}); choose another"
                ) from error
        total = self.epochs * len(self.corpus)
        reporter = Reporter(self.output, self.progress, total, self._sentences_done(), main)
        if ignored := self.data.irregular():
            reporter.say(
                f"{ignored} training annotations do not align with words and are ignored; "
                "`diffusionner data check` lists them"
            )
        if (gapped := self.data.discontinuous()) and not self.network.finds_discontinuous:
            way = "set decoder.discontinuous=true to find such entities"
            if not self.settings.denoises:
                way = f"method={self.settings.method} cannot find such entities"
            reporter.say(f"{gapped} training entities are discontinuous and are ignored; {way}")
        elif many := self.data.discontinuous(more_than=MAX_FRAGMENTS):
            reporter.say(
                f"{many} training entities have more than {MAX_FRAGMENTS} fragments and are ignored"
            )
        return reporter

    def _log(self, epoch: int, meter: Meter) -> None:
        # The loss of an update is a sum over the processes.
        loss = self.accelerator.reduce(torch.stack(meter.losses).mean(), reduction="sum")
        record = {"loss": float(loss)}  # waits for the device
        seconds = time.monotonic() - meter.since
        self.trained += meter.sentences
        self.training_seconds += seconds
        factor = self.phases.factor(self.progress.step - 1)
        record["learning_rate"] = factor * self.settings.training.learning_rate
        record["sentences_per_second"] = meter.sentences / seconds
        label = f"epoch {epoch + 1}/{self.epochs}"
        self.reporter.update(self.progress.step, label, self._sentences_done(), record)

    def _sentences_done(self) -> int:
        size, batches = len(self.corpus), self.progress.batch
        return self.progress.epoch * size + min(size, batches * self.settings.training.batch_size)

    def _save(self, started: float) -> None:
        self.progress.seconds = time.monotonic() - started
        if self.accelerator.is_main_process:
            save_state(self.state_path, self.progress, self.network, self.weights)

    def _encode(self, name: str, labels: list[str] | None = None) -> EncodedCorpus:
        sentences = getattr(self.data, name)
        return EncodedCorpus(sentences, self.tokenizer, self.settings.encoder, labels)
