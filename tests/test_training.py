"""Training on the CPU with a tiny encoder: learning, model selection, reproducibility."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diffusionner import DiffusionNER, formats
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.data.fingerprint import fingerprint
from diffusionner.errors import CheckpointError, SettingsError
from diffusionner.evaluation.scorer import score, score_sentences
from diffusionner.inference.decoding import DecodedEntity, ScoreRule, to_spans
from diffusionner.inference.stream import PredictionTask
from diffusionner.inference.stream import predict as predict_all
from diffusionner.methods import METHODS
from diffusionner.model.tensors import batch_to_device
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage.encoders import load_encoder
from diffusionner.training import trainer
from diffusionner.training.data import load_data
from diffusionner.training.optimisation import EMA_RAMP
from diffusionner.training.selection import DevResult, compare_on_dev, evaluate_on_dev
from diffusionner.training.trainer import Outcome, Trainer
from models import by_heart


@pytest.fixture(scope="module")
def learned(
    still_encoder: Path,
    nested_sentences: list[Sentence],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Settings, Outcome]:
    """A run that memorises 32 nested sentences."""
    folder = tmp_path_factory.mktemp("learned")
    settings = by_heart(nested_sentences, still_encoder, folder)
    return settings, Trainer(settings).run()


PREFIX = "encoder.transformer."


def log_of(settings: Settings) -> list[dict]:
    path = Path(settings.training.output) / "log.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def weights_of(settings: Settings) -> dict[str, torch.Tensor]:
    return load_file(Path(settings.training.output) / "model.safetensors")


def state_of(settings: Settings) -> dict[str, torch.Tensor]:
    return load_file(Path(settings.training.output) / "state.safetensors")


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def into(settings: Settings, name: str) -> Settings:
    """Return the same settings with another output folder."""
    return settings.override([f"training.output={Path(settings.training.output).parent / name}"])


# --- Learning ---------------------------------------------------------------------------------


def test_memorises_nested_sentences(learned):
    settings, outcome = learned
    assert outcome.best_f1 >= 0.98  # 0.989 to 1 over five seeds; CPUs round differently
    sentences = formats.read(settings.data.train)
    ner = DiffusionNER.from_pretrained(settings.training.output)
    report = score([s.entities for s in sentences], ner.predict_sentences(sentences))
    assert report.micro.f1 >= 0.98
    assert report.nested.gold > 20
    assert report.nested.f1 >= 0.95


def test_the_saved_model_has_the_reported_f1(learned):
    settings, outcome = learned
    sentences = formats.read(settings.data.dev)
    ner = DiffusionNER.from_pretrained(settings.training.output)
    assert ner.calibration is not None
    found = ner.predict_sentences(sentences, batch_size=7)
    f1 = score([s.entities for s in sentences], found).micro.f1
    assert f1 == pytest.approx(outcome.best_f1, abs=1e-12)


def test_log_and_tensorboard(learned):
    settings, outcome = learned
    log = log_of(settings)
    updates = [record for record in log if "loss" in record]
    epochs = [record for record in log if "epoch" in record]
    assert [record["step"] for record in updates][-1] == 800
    assert updates[-1]["loss"] < 0.2 * updates[0]["loss"]
    assert all(record["sentences_per_second"] > 0 for record in updates)
    assert [record["epoch"] for record in epochs] == list(range(2, 101, 2))
    assert max(record["f1"] for record in epochs) == outcome.best_f1
    best = next(record for record in epochs if record["f1"] == outcome.best_f1)
    assert best["epoch"] == best["best"] == outcome.best_epoch
    assert 1 <= best["phi"] <= 3
    board = list((Path(settings.training.output) / "tensorboard").glob("events.out.*"))
    assert board
    assert board[0].stat().st_size > 1000


def test_learning_rate_warms_up_and_decays(learned):
    rates = [record["learning_rate"] for record in log_of(learned[0]) if "loss" in record]
    assert max(rates) <= 4e-3
    assert rates[0] < 0.5 * max(rates)
    assert rates[-1] < 0.01 * max(rates)


# --- Model selection --------------------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Dev F1 follows a script; returns the weights as they were after each epoch."""
    script = iter([(0.2, 0.2), (0.4, 0.9), (0.6, 0.5)])  # (φ, F1)
    snapshots: list[dict[str, torch.Tensor]] = []

    def evaluate(predict, sentences, labels, inference, tune, one_threshold) -> DevResult:
        network = predict.args[0]
        snapshots.append({k: v.clone() for k, v in network.state_dict().items()})
        phi, f1 = next(script)
        return DevResult(f1, replace(inference, phi=phi), [], None, phi)

    monkeypatch.setattr(trainer, "evaluate_on_dev", evaluate)
    return snapshots


def test_best_epoch_is_kept_with_its_phi(tiny_settings, scripted):
    outcome = Trainer(tiny_settings).run()
    assert (outcome.best_epoch, outcome.best_f1) == (2, 0.9)
    assert equal(weights_of(tiny_settings), scripted[1])
    assert not equal(scripted[1], scripted[2])
    ner = DiffusionNER.from_pretrained(tiny_settings.training.output)
    assert (ner.settings.inference.phi, ner.calibration) == (0.4, None)
    assert ner.settings.training == tiny_settings.training


def test_test_set_is_scored_with_the_best_model(tiny_settings, scripted):
    settings = tiny_settings.override(
        [f"data.test={tiny_settings.data.train}", "training.matches_per_entity=0"]
    )
    outcome = Trainer(settings).run()
    sentences = formats.read(settings.data.test)
    ner = DiffusionNER.from_pretrained(settings.training.output)
    report = score_sentences(sentences, ner.predict_sentences(sentences))
    assert outcome.test == report
    written = json.loads((Path(settings.training.output) / "test.json").read_text())
    assert written == {"data": fingerprint(sentences).to_dict(), **report.to_dict()}
    ner.network.load_state_dict(scripted[2])
    last = score_sentences(sentences, ner.predict_sentences(sentences))
    assert report != last, "the last model scores differently"


@pytest.mark.parametrize("frozen", [0, 2])
def test_frozen_epochs_do_not_change_the_encoder(tiny_settings, scripted, frozen):
    settings = tiny_settings.override(
        [f"training.frozen_epochs={frozen}", f"training.epochs={3 - frozen}"]
    )
    Trainer(settings).run()
    pretrained = load_encoder(settings.encoder.name).state_dict()
    for epoch, own in enumerate(scripted):
        moved = [n for n, t in pretrained.items() if not torch.equal(own[PREFIX + n], t)]
        assert not moved if epoch < frozen else len(moved) > 0.9 * len(pretrained)
    rest = [n for n in scripted[0] if not n.startswith(PREFIX)]
    assert all(not torch.equal(scripted[0][n], scripted[1][n]) for n in rest)


def test_evaluates_every_n_epochs_and_at_the_end(tiny_settings):
    Trainer(tiny_settings.override(["training.evaluate_every=2"])).run()
    assert [r["epoch"] for r in log_of(tiny_settings) if "epoch" in r] == [2, 3]


def test_fixed_phi(tiny_settings):
    settings = tiny_settings.override(
        ["training.tune_threshold=false", "inference.phi=1.33", "training.epochs=1"]
    )
    Trainer(settings).run()
    config = json.loads((Path(settings.training.output) / "config.json").read_text())
    assert config["settings"]["inference"]["phi"] == 1.33


def test_without_dev_the_last_epoch_is_kept(tiny_settings):
    settings = tiny_settings.override(["data.dev_from_train=0"])
    outcome = Trainer(settings).run()
    assert outcome.best_epoch == 3
    assert outcome.best_f1 == -1.0
    state = state_of(settings)
    for name, tensor in weights_of(settings).items():
        assert torch.equal(tensor, state[f"network.{name}"]), name


def test_averaged_weights_are_saved(tiny_settings):
    """Against the recurrence of one parameter."""
    decay, seen = 0.8, []
    settings = tiny_settings.override([f"training.ema={decay}", "data.dev_from_train=0"])
    run = Trainer(settings, resume=False)
    run.weights.optimizer.register_step_post_hook(
        lambda *_: seen.append(run.network.decoder.left.output.weight.detach().clone())
    )
    with closing(run.reporter):
        run.run()
    expected = seen[0]
    for step, weight in enumerate(seen[1:], 1):
        kept = min(decay, step / (step + EMA_RAMP))
        expected = kept * expected + (1 - kept) * weight
    saved = weights_of(settings)
    torch.testing.assert_close(saved["decoder.left.output.weight"], expected)
    assert (saved["decoder.left.output.weight"] - seen[-1]).abs().max() > 1e-4
    state = state_of(settings)
    for name, tensor in saved.items():
        assert torch.equal(tensor, state[f"average.module.{name}"]), name


# --- Reproducibility --------------------------------------------------------------------------


def test_the_seed_determines_the_weights(tiny_settings):
    """With dropout."""
    runs = [tiny_settings, into(tiny_settings, "again"), into(tiny_settings, "other")]
    runs[2] = runs[2].override(["training.seed=1"])
    for settings in runs:
        Trainer(settings.override(["training.epochs=1"])).run()
    first, again, other = map(state_of, runs)
    assert equal(first, again)
    assert not equal(first, other)


def test_accumulation_gives_the_same_weights(tiny_settings, still_encoder):
    """23 sentences in batches of 4: one batch has 3, in micro-batches of 2 and 1."""
    settings = tiny_settings.override(
        [
            f"encoder.name={still_encoder}",
            "encoder.dropout=0",
            "decoder.dropout=0",
            "data.dev_from_train=1",
            "training.clip=0",
            "training.epochs=1",
        ]
    )
    parts = into(settings, "parts").override(["training.accumulation=2"])
    Trainer(settings).run()
    Trainer(parts).run()
    whole, summed = state_of(settings), state_of(parts)
    for name, tensor in whole.items():
        if name.endswith((".key.bias", ".key_value.bias")):
            continue  # no effect: its gradient is rounding error, which Adam amplifies
        if name.startswith("network."):
            assert (tensor - summed[name]).abs().max() < 1e-5, name
        else:  # Adam's moments, since its updates hide the size of gradients
            torch.testing.assert_close(summed[name], tensor, rtol=1e-3, atol=1e-6, msg=name)


def test_a_run_is_not_overwritten(tiny_settings):
    settings = tiny_settings.override(["training.epochs=1"])
    Trainer(settings).run()
    before = (Path(settings.training.output) / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="--resume"):
        Trainer(settings).run()
    assert (Path(settings.training.output) / "model.safetensors").read_bytes() == before


def test_two_processes_cannot_train_in_one_folder(tiny_settings):
    first = Trainer(tiny_settings, resume=False)
    log = Path(tiny_settings.training.output) / "log.jsonl"
    with pytest.raises(CheckpointError, match="another process is training in"):
        Trainer(tiny_settings, resume=False)
    assert log.read_text() == ""
    first.reporter.close()
    Trainer(tiny_settings, resume=False).reporter.close()


def test_resuming_a_finished_run_changes_nothing(tiny_settings):
    outcome = Trainer(tiny_settings).run()
    before, log = weights_of(tiny_settings), log_of(tiny_settings)
    again = Trainer(tiny_settings, resume=True).run()
    assert replace(again, sentences_per_second=0) == replace(outcome, sentences_per_second=0)
    assert equal(weights_of(tiny_settings), before)
    assert log_of(tiny_settings) == log


# --- Variants ---------------------------------------------------------------------------------

VARIANTS = [
    ["training.matches_per_entity=2", "diffusion.expansion=repetition"],
    ["diffusion.coordinates=left-width", "diffusion.schedule=linear", "decoder.layers=0"],
    ["decoder.self_attention=false", "decoder.span_pooling=endpoints", "encoder.pooling=first"],
    ["decoder.cross_attention=false", "decoder.layers=2", "encoder.pooling=mean"],
    ["encoder.lstm_layers=0", "encoder.character_filters=0", "encoder.hidden_size=16"],
    ["encoder.context=2", "encoder.max_subwords=40"],
    ["diffusion.spans=2", "inference.spans=1", "training.clip=0", "training.warmup=0"],
    ["training.batch_size=100", "inference.batch_size=1", "diffusion.timesteps=2"],
    ["decoder.initializer=spans", "inference.start=candidates", "inference.spans=auto"],
    ["training.soft_match_iou=0.6", "training.overlap_cost=2", "decoder.initializer=spans"],
]


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: changes[0])
def test_every_variant_trains_and_loads(tiny_settings, changes):
    settings = tiny_settings.override([*changes, "training.epochs=1"])
    outcome = Trainer(settings).run()
    assert all(0 < record["loss"] < 100 for record in log_of(settings) if "loss" in record)
    sentences = formats.read(settings.data.train)[-8:]  # held out as dev
    ner = DiffusionNER.from_pretrained(settings.training.output)
    if settings.encoder.context == 0:  # otherwise the first would lack its left context
        found = ner.predict_sentences(sentences)
        f1 = score([s.entities for s in sentences], found).micro.f1
        assert f1 == pytest.approx(outcome.best_f1, abs=1e-12)
    assert ner.settings.override(["inference.phi=null"]) == settings


def test_dev_and_test_must_differ(tiny_settings, tmp_path):
    sentences = formats.read(tiny_settings.data.train)
    for name in ("dev.jsonl", "test.conll"):  # the same sentences in another format
        formats.write(tmp_path / name, sentences[:5])
    given = [f"data.dev={tmp_path}/dev.jsonl", f"data.test={tmp_path}/test.conll"]
    settings = tiny_settings.override(given)
    with pytest.raises(SettingsError, match=r"chosen on the test corpus"):
        load_data(settings)
    formats.write(tmp_path / "test.conll", sentences[1:6])
    assert len(load_data(settings).test) == 5


def test_ignored_annotations_are_counted(tiny_settings, tmp_path):
    path = tmp_path / "train.jsonl"
    whole, part = ({"start": s, "end": e, "label": "PER"} for s, e in ((0, 3), (8, 15)))
    records = [{"text": "Ada met Babbages", "entities": e} for e in ([whole], [whole, part])]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = load_data(tiny_settings.override([f"data.train={path}", "data.dev_from_train=0"]))
    assert data.irregular() == 1
    assert [len(s.entities) for s in data.train] == [1, 1]


def test_the_format_of_the_corpora_can_be_set(tiny_settings, tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("x B-PER Ada\nx O met\n")
    given = [f"data.train={path}", "data.dev_from_train=0", "data.format=conll:word=2,labels=1"]
    data = load_data(tiny_settings.override(given))
    assert (data.train[0].words, data.labels) == (["Ada", "met"], ["PER"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize(
    "changes",
    [
        *([f"method={name}"] for name in METHODS),  # `models` registers the rivals
        ["decoder.offset_window=3", "decoder.initializer=types"],
    ],
    ids=lambda changes: changes[0],
)
def test_cuda_graphs_give_the_same_gradients(tiny_settings, changes):
    settings = tiny_settings.override(
        [
            *changes,
            "training.cuda_graphs=true",
            "training.precision=float32",
            "encoder.dropout=0",
            "training.frozen_epochs=0",
        ]
    )
    from diffusionner.training.graphs import GraphedStep  # CUDA only

    trainer = Trainer(settings, resume=False)
    trainer._enter_phase(0)
    for module in trainer.network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    size = settings.training.batch_size
    graphed = trainer.graphed = GraphedStep(trainer.objective, size)  # without dropout
    full = [b for b in trainer.corpus.shuffled_batches(size, 0, 0) if len(b) == size]

    def gradients(recorded: bool) -> list[torch.Tensor]:
        found = []
        for chosen in (full[0], full[1], full[0]):
            trainer.weights.optimizer.zero_grad(set_to_none=False)
            (micro,) = trainer._prepare(chosen, 0)
            if recorded:
                assert graphed.can_replay(micro.batch)
                loss = graphed(micro.batch, micro.inputs, micro.denominator)
            else:
                batch = batch_to_device(micro.batch, trainer.device)
                loss = trainer.objective(batch, micro.inputs, micro.denominator)
                loss.backward()
            parts = [p.grad.flatten() for p in trainer.weights.parameters if p.grad is not None]
            found.append(torch.cat([*parts, loss.detach()[None]]).clone())
        return found

    for plain, recorded in zip(gradients(False), gradients(True), strict=True):
        assert (plain - recorded).norm() < 1e-5 * plain.norm()


def test_results_on_dev_are_compared_sentence_by_sentence(learned):
    """The entities of a result are those its F1 was computed from, with and without tuning."""
    settings, _ = learned
    sentences = formats.read(settings.data.dev)
    ner = DiffusionNER.from_pretrained(settings.training.output)
    corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)

    def predict(inference: InferenceSettings, rule: ScoreRule) -> list[list[DecodedEntity]]:
        task = PredictionTask(corpus, range(len(sentences)))
        return predict_all(ner.engine, task, inference, rule)

    tuned = evaluate_on_dev(predict, sentences, ner.labels, ner.settings.inference, tune=True)
    high = replace(ner.settings.inference, phi=2.999, threshold=None)
    strict = evaluate_on_dev(predict, sentences, ner.labels, high, tune=False)
    assert tuned.f1 > strict.f1
    for result in (tuned, strict):
        spans = [to_spans(found, ner.labels) for found in result.entities]
        assert score([s.entities for s in sentences], spans).micro.f1 == pytest.approx(result.f1)
    change = compare_on_dev(tuned, strict, sentences, ner.labels)
    assert change.f1 == pytest.approx(tuned.f1 - strict.f1)
    assert change.interval[0] <= change.f1 <= change.interval[1]
    assert compare_on_dev(tuned, tuned, sentences, ner.labels).p == 1.0
