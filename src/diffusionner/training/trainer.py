"""The training loop: two phases, selection on dev, exact resumption, one or many processes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.data.fingerprint import fingerprint
from diffusionner.diffusion import mix_keys
from diffusionner.errors import CheckpointError, TrainingDiverged, WriteError
from diffusionner.evaluation import Report, score_sentences
from diffusionner.files import write_bytes
from diffusionner.inference.calibration import fit_calibration
from diffusionner.inference.decoding import DecodedEntity, ScoreRule, resolve_overlaps, to_spans
from diffusionner.inference.stream import PredictionTask, predict
from diffusionner.inference.torch_engine import engine_in_training
from diffusionner.methods import network_class, objective_class
from diffusionner.model.base import Network
from diffusionner.model.tensors import batch_to_device
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage import checkpoint
from diffusionner.storage.calibration import load_calibration
from diffusionner.storage.config import STATE_FILE, TEST_SCORES, is_model, read_config
from diffusionner.storage.encoders import (
    encoder_location,
    load_encoder,
    load_tokenizer,
    model_weights,
    position_limit,
)
from diffusionner.training.data import RunData, load_data
from diffusionner.training.masking import SubwordMasking
from diffusionner.training.objective import NotFinite
from diffusionner.training.optimisation import (
    Phases,
    average_towards,
    build_optimizer,
    set_rate,
    share_of_new,
)
from diffusionner.training.reporter import Reporter
from diffusionner.training.selection import best_phi, f1_of
from diffusionner.training.state import Progress, load_state, save_state

if TYPE_CHECKING:
    from diffusionner.training.graphs import GraphedStep

LOG_EVERY = 20  # updates


@dataclass
class Outcome:
    """What a run ends with; the model lies in the output folder."""

    best_f1: float
    best_epoch: int
    sentences_per_second: float
    test: Report | None


def train(settings: Settings, resume: bool = False) -> Outcome:
    """Train one model as the settings say; the best epoch on dev is kept in training.output."""
    trainer = Trainer(settings, resume)
    with trainer.reporter:
        return trainer.run()


@dataclass
class MicroBatch:
    """What a process does at a time, ready on the host."""

    batch: Batch[np.ndarray]
    inputs: list[np.ndarray]  # of the objective
    weight: float  # 0 for a process that is left without a sentence
    denominator: int  # of the whole update


class Trainer:
    def __init__(self, settings: Settings, resume: bool, data: RunData | None = None) -> None:
        self.output = Path(settings.training.output)
        self.state_path = self.output / STATE_FILE
        if not resume and self.state_path.exists():
            raise CheckpointError(
                f"{self.output} holds a run already; continue it with --resume, remove it, or set "
                "training.output to another folder"
            )
        if resume and not self.state_path.exists():
            raise CheckpointError(f"nothing to resume: {self.state_path} does not exist")
        self.data = data or load_data(settings.data)
        method = network_class(settings.method)
        self.settings = settings = method.resolve_settings(settings, self.data.train)
        self.accelerator = _accelerator(settings.training.precision)
        self.device = self.accelerator.device
        # cuDNN's attention is planned anew for every shape, which costs more than it saves here.
        torch.backends.cuda.enable_cudnn_sdp(False)

        torch.manual_seed(settings.training.seed)  # initial weights
        transformer = load_encoder(settings.encoder.name)
        self.tokenizer = load_tokenizer(
            encoder_location(settings.encoder.name), position_limit(transformer.config)
        )
        self.network = method(transformer, self.data.labels, settings)
        self._warm_start(Path(encoder_location(settings.encoder.name)))
        self.network.to(self.device)
        self.corpus = EncodedCorpus(
            self.data.train, self.tokenizer, settings.encoder, self.data.labels
        )
        rate = settings.training.subword_masking
        self.masking = SubwordMasking.for_tokenizer(self.tokenizer, rate) if rate else None
        self.dev = EncodedCorpus(self.data.dev, self.tokenizer, settings.encoder)
        per_epoch = -(-len(self.corpus) // settings.training.batch_size)
        self.phases = Phases(
            settings.training.frozen_epochs * per_epoch,
            settings.training.epochs * per_epoch,
            settings.training.warmup,
        )
        alone = self.accelerator.num_processes == 1 and self.device.type == "cuda"
        whole = settings.training.accumulation == 1
        self.uses_graphs = settings.training.cuda_graphs and alone and whole
        self.optimizer = build_optimizer(self.network, settings.training, self.uses_graphs)
        self.average: AveragedModel | None = None
        if settings.training.ema:
            self.average = AveragedModel(self.network)
        # On the device, as the learning rates are: an update may be a recorded graph.
        self.share_of_new = torch.zeros((), device=self.device)
        self.progress = Progress(fingerprint=self._fingerprint())
        if resume:
            self.progress = load_state(
                self.state_path,
                self.progress.fingerprint,
                self.network,
                self.optimizer,
                self.average,
            )
        main = self.accelerator.is_main_process
        if main:
            try:
                self.output.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WriteError(
                    f"training.output={self.output} cannot be a folder ({error.strerror}); "
                    "choose another"
                ) from error
        epochs = settings.training.frozen_epochs + settings.training.epochs
        self.reporter = Reporter(
            self.output,
            epochs * len(self.corpus),
            self._sentences_done(),
            self.progress.step,
            self.progress.epoch,
            main,
        )
        if unlearned := self.data.irregular():
            self.reporter.say(
                f"{unlearned} training annotations are discontinuous or do not align with words "
                "and are ignored; `diffusionner data check` lists them"
            )
        self.objective = objective_class(settings.method)(self.network, settings).to(self.device)
        self.graphed: GraphedStep | None = None
        self.update_weights: Callable[[], None] = self._update_weights
        self.parameters = list(self.network.parameters())  # walking the modules takes 3 ms
        self.last_loss = torch.zeros((), device=self.device)
        self.trained = 0  # sentences, for the speed
        self.training_seconds = 0.0

    def _warm_start(self, place: Path) -> None:
        """Where the encoder is a trained model's, the rest of that model serves too."""
        if is_model(place):
            same = read_config(place)["labels"] == self.data.labels
            self.network.start_from(model_weights(place), same)

    def run(self) -> Outcome:
        training = self.settings.training
        started = time.monotonic() - self.progress.seconds
        model: torch.nn.Module | None = None
        for epoch in range(self.progress.epoch, training.frozen_epochs + training.epochs):
            if model is None or epoch == training.frozen_epochs:
                model = self._enter_phase(self.progress.step)
            batches = self.corpus.shuffled_batches(training.batch_size, training.seed, epoch)
            last_saved = tick = time.monotonic()
            losses: list[torch.Tensor] = []
            recent = 0  # sentences since the last line of the log
            prepared: list[MicroBatch] = []
            for number in range(self.progress.batch, len(batches)):
                prepared = prepared or self._prepare(batches[number], epoch)
                self.last_loss = self._update(model, prepared, epoch, number)
                # While a GPU is still busy with the update:
                following = batches[number + 1 : number + 2]
                prepared = self._prepare(following[0], epoch) if following else []
                self.progress.step += 1
                self.progress.batch = number + 1
                losses.append(self.last_loss)
                self.trained += len(batches[number])
                recent += len(batches[number])
                if self.progress.step % LOG_EVERY == 0 or number + 1 == len(batches):
                    # Each process has its share of the sum that the loss is.
                    share = torch.stack(losses).mean()
                    mean = float(self.accelerator.reduce(share, reduction="sum"))
                    losses.clear()
                    now = time.monotonic()
                    self.training_seconds += now - tick
                    self._log(epoch, mean, recent / (now - tick))
                    tick, recent = now, 0
                before = time.monotonic()
                if before - last_saved > 60 * training.checkpoint_minutes:
                    self._check_weights(epoch, number)
                    self._save(started)
                    last_saved = time.monotonic()
                    tick += last_saved - before  # saving is not training
            self._check_weights(epoch, len(batches))
            self.progress.epoch, self.progress.batch = epoch + 1, 0
            self._select(epoch + 1)
            self._save(started)
        return self._finish()

    def _enter_phase(self, step: int) -> torch.nn.Module:
        """Freeze or thaw the encoder and wrap anew: DDP fixes its gradients when it is built."""
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
        """Recordings share memory: what the largest takes is enough for all that follow."""
        size = self.settings.training.batch_size
        from diffusionner.training.graphs import GraphedStep, GraphedUpdate  # CUDA only

        self.graphed = GraphedStep(self.objective, size)
        self.update_weights = GraphedUpdate(self._update_weights)
        (micro,) = self._prepare(self.corpus.widest(size), 0)
        with self.accelerator.autocast():
            self.graphed(micro.batch, micro.inputs, 1.0)
        self.optimizer.zero_grad(set_to_none=False)

    def _prepare(self, chosen: np.ndarray, epoch: int) -> list[MicroBatch]:
        """This process's share of a global batch, one entry per micro-batch, on the host."""
        training = self.settings.training
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        counts = self.corpus.gold_offset[chosen + 1] - self.corpus.gold_offset[chosen]
        denominator = self.objective.denominator(counts)
        prepared = []
        for part in np.array_split(chosen, training.accumulation):
            mine = np.array_split(part, processes)[rank]
            # A process left without a sentence (small last batch) takes part at no weight.
            weight = 1.0 if len(mine) else 0.0
            mine = mine if len(mine) else chosen[:1]
            batch = self.corpus.batch(mine, self.graphed.multiples if self.graphed else (1,) * 5)
            keys = mix_keys(mine, training.seed, epoch)
            if self.masking is not None:
                batch.subwords = self.masking.apply(batch.subwords, keys)
            inputs = self.objective.inputs(batch, keys)
            prepared.append(MicroBatch(batch, inputs, weight, denominator))
        return prepared

    def _update(
        self,
        model: torch.nn.Module,
        prepared: list[MicroBatch],
        epoch: int,
        number: int,
    ) -> torch.Tensor:
        """One optimiser step over a global batch; returns the loss, still on the device."""
        training = self.settings.training
        rank = self.accelerator.process_index
        # Dropout: a function of the step, so that a resumed run repeats it.
        torch.manual_seed(_seed(training.seed, epoch, number, rank))
        set_rate(self.optimizer, self.phases.factor(self.progress.step))
        self.share_of_new.fill_(share_of_new(training.ema, self.progress.step))
        try:
            losses = [
                self._gradients(model, micro, last=i + 1 == len(prepared))
                for i, micro in enumerate(prepared)
            ]
        except NotFinite:
            self._diverged(epoch, number)
        self.update_weights()
        return torch.stack(losses).sum()

    def _gradients(self, model: torch.nn.Module, micro: MicroBatch, last: bool) -> torch.Tensor:
        """Add to the gradients; returns the loss, still on the device."""
        with _no_sync(model, last), self.accelerator.autocast():
            if self.graphed is not None and self.graphed.can_replay(micro.batch):
                return self.graphed(micro.batch, micro.inputs, micro.denominator)
            loss = model(batch_to_device(micro.batch, self.device), micro.inputs, micro.denominator)
            # The host has just waited for the matching, so the previous loss is at hand.
            if not torch.isfinite(self.last_loss):
                raise NotFinite
        with _no_sync(model, last):
            # DDP averages over processes; the loss is a sum over the global batch.
            self.accelerator.backward(loss * (micro.weight * self.accelerator.num_processes))
        result: torch.Tensor = loss.detach() * micro.weight
        return result

    def _update_weights(self) -> None:
        """What follows the backward pass; as a CUDA graph where the step is one."""
        if self.settings.training.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.training.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.graphed is None)
        if self.average is not None:
            average_towards(self.parameters, self.average.module, self.share_of_new)

    def _check_finite(self, epoch: int, number: int) -> None:
        if not torch.isfinite(self.last_loss):
            self._diverged(epoch, number)

    def _check_weights(self, epoch: int, number: int) -> None:
        """Before anything is saved: a finite loss can have gradients that are not."""
        self._check_finite(epoch, number)
        if not torch.stack([torch.isfinite(p).all() for p in self.parameters]).all():
            self._diverged(epoch, number)

    def _diverged(self, epoch: int, number: int) -> NoReturn:
        groups = self.optimizer.param_groups
        rates = ", ".join(f"{rate:.2e}" for rate in sorted({float(g["lr"]) for g in groups}))
        kept = (
            f"the state of the last checkpoint is in {self.output}"
            if self.state_path.exists()
            else "no checkpoint had been written yet"
        )
        raise TrainingDiverged(
            f"the loss is not a finite number at update {self.progress.step} (epoch {epoch + 1}, "
            f"batch {number}, learning rates {rates}); {kept}. Lower training.learning_rate or "
            "training.clip, or raise training.warmup, and start again"
        )

    def _select(self, epoch: int) -> None:
        """Evaluate on dev; keep the model if it is the best so far. Without dev: the latest."""
        training = self.settings.training
        last = epoch == training.frozen_epochs + training.epochs
        if epoch % training.evaluate_every and not last:
            return
        network = self.network
        if self.average is not None:
            network = cast(Network, self.average.module)
        record: dict[str, float | int | str] = {}
        better = True
        inference, calibration = self.settings.inference, None
        if self.data.dev:
            clock = time.monotonic()
            labels = self.data.labels
            if training.tune_threshold:
                inference = replace(inference, threshold=None, phi=0.0)
            rule, overlap = ScoreRule(inference, labels, None), inference.overlap
            everything = replace(inference, overlap="all")
            found = self._predict(network, self.dev, self.data.dev, everything, rule)
            resolved = [resolve_overlaps(one, overlap) for one in found]
            if training.tune_threshold:
                phi, f1 = best_phi(self.data.dev, resolved, labels)
                calibration = fit_calibration(self.data.dev, resolved, labels)
                inference = replace(inference, phi=None if calibration else phi)
                if calibration:
                    least = ScoreRule(inference, labels, calibration).min_sums
                    f1 = f1_of(self.data.dev, found, labels, least, overlap)
                record = {"f1": f1, "phi": phi}
            else:
                f1 = _score(self.data.dev, resolved, labels).micro.f1
                record = {"f1": f1}
            better = f1 > self.progress.best_f1
            record["evaluation_seconds"] = time.monotonic() - clock
            if better:
                self.progress.best_f1 = f1
        if better:
            self.progress.best_epoch = epoch
            if self.accelerator.is_main_process:
                settings = replace(self.settings, inference=inference)
                checkpoint.save(self.output, network, self.tokenizer, settings, calibration)
        self.reporter.epoch(self.progress.step, epoch, {**record, "best": self.progress.best_epoch})

    def _predict(
        self,
        network: Network,
        corpus: EncodedCorpus,
        sentences: list[Sentence],
        inference: InferenceSettings,
        rule: ScoreRule,
    ) -> list[list[DecodedEntity]]:
        """Predictions for all sentences, the work shared among the processes."""
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        mine = range(rank, len(sentences), processes)
        task = PredictionTask(corpus, mine)
        found = predict(engine_in_training(network), task, inference, rule)
        if processes == 1:
            return found
        merged = dict(gather_object(list(zip(mine, found, strict=True))))
        return [merged[number] for number in range(len(sentences))]

    def _log(self, epoch: int, loss: float, speed: float) -> None:
        training = self.settings.training
        label = f"epoch {epoch + 1}/{training.frozen_epochs + training.epochs}"
        factor = self.phases.factor(self.progress.step - 1)
        self.reporter.update(
            self.progress.step,
            label,
            self._sentences_done(),
            {
                "loss": loss,
                "learning_rate": factor * training.learning_rate,
                "sentences_per_second": speed,
            },
        )

    def _sentences_done(self) -> int:
        size, batches = len(self.corpus), self.progress.batch
        return self.progress.epoch * size + min(size, batches * self.settings.training.batch_size)

    def _save(self, started: float) -> None:
        self.progress.seconds = time.monotonic() - started
        if self.accelerator.is_main_process:
            save_state(self.state_path, self.progress, self.network, self.optimizer, self.average)

    def _finish(self) -> Outcome:
        """Score the best model on test, once."""
        report = None
        if self.data.test:
            self.accelerator.wait_for_everyone()  # until the best model is on disk
            checkpoint.load_weights(self.network, self.output / "model.safetensors")
            corpus = EncodedCorpus(self.data.test, self.tokenizer, self.settings.encoder)
            kept = Settings.from_dict(read_config(self.output)["settings"]).inference
            rule = ScoreRule(kept, self.data.labels, load_calibration(self.output))
            found = self._predict(self.network, corpus, self.data.test, kept, rule)
            report = _score(self.data.test, found, self.data.labels)
            if self.accelerator.is_main_process:
                data = fingerprint(self.data.test).to_dict()
                text = json.dumps({"data": data, **report.to_dict()}, indent=1) + "\n"
                write_bytes(self.output / TEST_SCORES, text.encode())
        return Outcome(
            best_f1=self.progress.best_f1,
            best_epoch=self.progress.best_epoch,
            sentences_per_second=self.trained / max(1e-9, self.training_seconds),
            test=report,
        )

    def _fingerprint(self) -> str:
        values = self.settings.to_dict()
        values["training"].pop("output")
        values.pop("data")
        text = json.dumps([values, self.data.labels, self.data.digest()], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _accelerator(precision: str) -> Accelerator:
    if precision == "auto":
        has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        precision = "bf16" if has_bf16 else "float32"
    # Without a GPU, several processes are only recognised when told so.
    on_cpu = not torch.accelerator.is_available()
    return Accelerator(cpu=on_cpu, mixed_precision="bf16" if precision == "bf16" else "no")


def _no_sync(model: torch.nn.Module, synchronised: bool) -> AbstractContextManager[None]:
    """Between micro-batches the processes need not exchange gradients."""
    if synchronised or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _score(
    sentences: list[Sentence], found: list[list[DecodedEntity]], labels: list[str]
) -> Report:
    return score_sentences(sentences, [to_spans(one, labels) for one in found])
