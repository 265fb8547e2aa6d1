"""Measures points of one model, in a process of its own.

`python -m reproduce.worker JOB.json` appends a line for each point to the job's output file, so
that results survive a kill.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, sample
from benchmarks.subjects import Subject
from benchmarks.throughput import Loaded, warm_up
from benchmarks.timing import Summary, interleave
from diffusionner import DiffusionNER, __version__, formats
from diffusionner.corpus import Sentence
from diffusionner.errors import DataError, DiffusionNERError
from diffusionner.evaluation import evaluate
from diffusionner.inference.stream import batch_size
from diffusionner.inference.torch_engine import load_engine
from diffusionner.model.beliefs import BeliefNetwork
from diffusionner.model.network import DenoisingNetwork
from diffusionner.settings import Settings
from diffusionner.storage import checkpoint
from diffusionner.storage.beliefs import fitted_beliefs
from reproduce.records import encode_counts
from reproduce.store import commit
from reproduce.tables import ALONE, BELIEFS, CUDA_GRAPHS, SENTENCE

TURNS = 5
TURNS_ALONE = 9  # of a point that is the model's only speed
SECONDS = 0.5  # minimum duration of a turn
# Minimum batches of a turn on a GPU: few sentences would be cut into many small batches, which take
# longer to launch than to compute.
BATCHES = 16


def main(path: Path) -> int:
    """Measure all points of the job; return 1 if any could not be measured."""
    job = json.loads(path.read_text(encoding="utf-8"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sentences = {split: formats.read(*place) for split, place in job["files"].items()}
    loaded = _load(job, sentences, device)
    ner = loaded.ner
    described = machine.describe(device)
    about = {
        "machine": {name: described[name] for name in ("gpu", "processor", "cores", "versions")},
        "parameters": sum(p.numel() for p in ner.network.parameters()),
    }
    failed = 0
    with open(job["out"], "a", encoding="utf-8") as out:
        print(json.dumps({"about": about}), file=out, flush=True)
        for points in groups(job["points"]):
            try:
                results = measure(loaded, points, sentences)
            except DiffusionNERError as error:
                names = ", ".join(point["name"] for point in points)
                print(f"error: {names}: {error}", file=sys.stderr)
                failed += 1
                continue
            for point, result in zip(points, results, strict=True):
                print(json.dumps({"point": point["name"], "result": result}), file=out, flush=True)
    return 1 if failed else 0


def groups(points: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group speeds that differ only in their steps, to be measured in turns; the rest is single.

    Each number of spans needs CUDA graphs of its own, too many to keep for all numbers at once.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        others = {key: value for key, value in point["options"].items() if key != "steps"}
        speed = point["kind"] == "speed"
        key = json.dumps([point["split"], others]) if speed else point["name"]
        found.setdefault(key, []).append(point)
    return list(found.values())


def _load(job: dict[str, Any], sentences: dict[str, list[Sentence]], device: str) -> Loaded:
    """Load the trained model, or make one of the shape with random weights."""
    with tempfile.TemporaryDirectory() as name:
        shape = job["shape"]
        subject = Subject("trained", Path(job["model"]), device)
        if shape:
            from benchmarks import shapes  # imports transformers

            settings = Settings.load(Path(job["preset"]), job["overrides"])
            folder = shapes.write(shape, sentences["dev"], settings, Path(name))
            subject = Subject(shape, folder, device, random=True)
        return Loaded(subject, subject.own_precision, subject.load())


def measure(
    loaded: Loaded, points: Sequence[dict[str, Any]], splits: Mapping[str, Sequence[Sentence]]
) -> list[dict[str, Any]]:
    """Return the results of a group of points."""
    ner, options, sentences = loaded.ner, points[0]["options"], splits[points[0]["split"]]
    if points[0]["kind"] == "speed":
        if not options.get(CUDA_GRAPHS, True):
            subject = replace(loaded.subject, cuda_graphs=False)
            loaded = Loaded(subject, loaded.precision, subject.load())
        options_of_points = [
            {key: value for key, value in point["options"].items() if key != CUDA_GRAPHS}
            for point in points
        ]
        return speeds(loaded, sentences, options_of_points)
    if points[0]["kind"] == "trajectory":
        return [trajectory(ner, options)]
    # The scores of the initializer and of beliefs have another scale than those of denoising.
    adds_beliefs = options.get(BELIEFS, False)
    dev = splits["dev"] if options.get("steps") == ALONE or adds_beliefs else None
    if adds_beliefs:
        ner = with_beliefs(loaded.subject)
        options = {key: value for key, value in options.items() if key != BELIEFS}
    try:
        report = evaluate(ner, sentences, calibrate_on=dev, **options)
    except DataError:
        if dev is None:
            raise
        report = evaluate(ner, sentences, **options)  # it finds too few entities to fit scores on
    scores = report.to_dict()
    # Scores by type only for the model's own settings, not for every point of a curve.
    names = ("sentences", "micro") if options else ("sentences", "micro", "per_type")
    result = {name: scores[name] for name in names}
    if "discontinuous" in scores:
        result["discontinuous"] = scores["discontinuous"]
    if points[0]["split"] == "test":
        result["counts"] = encode_counts(report.measure_counts["micro"])
    return [result]


def with_beliefs(subject: Subject) -> DiffusionNER:
    """Return a trained model with the belief network of the library."""
    network, subwords, settings = checkpoint.load(subject.folder)
    assert isinstance(network, DenoisingNetwork)
    network.beliefs = BeliefNetwork()
    network.load_beliefs(fitted_beliefs())
    settings = replace(settings, decoder=replace(settings.decoder, beliefs=True))
    engine = load_engine(network, subject.device, precision=None, cuda_graphs=True)
    return DiffusionNER(engine, subwords, settings)


def speeds(
    loaded: Loaded, sentences: Sequence[Sentence], options: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Measure sentences per second from words to entities in several turns."""
    busy, version = machine.load(), commit() or __version__
    turns = TURNS if len(options) > 1 else TURNS_ALONE
    chosen = _enough(loaded, sentences, options[0])
    tasks = {number: loaded.words_task(chosen, one) for number, one in enumerate(options)}
    device = loaded.subject.device  # all graphs are recorded by now
    seconds = interleave(tasks, turns, device, lambda *_: None, "speed", uncounted=1)
    summaries = [Summary.of([len(chosen) / taken for taken in one]) for one in seconds.values()]
    return [
        {
            "sentences": len(chosen),
            "turns": turns,
            "sentences_per_second": {k: getattr(summary, k) for k in ("median", "low", "high")},
            "load": busy,
            "version": version,
        }
        for summary in summaries
    ]


def _enough(
    loaded: Loaded, sentences: Sequence[Sentence], options: dict[str, Any]
) -> list[Sentence]:
    """Return an even sample, or the corpus several times, so that a turn is long enough."""
    device = loaded.subject.device
    batch = batch_size(loaded.ner.engine, loaded.ner.settings.inference)
    count = BATCHES * batch if device.startswith("cuda") else min(len(sentences), batch)
    while True:
        chosen = sample.draw(sentences, count)
        task = loaded.words_task(chosen, options)
        taken = warm_up(loaded, task)
        if taken >= SECONDS:
            return chosen
        count = round(len(chosen) * min(8.0, 1.3 * SECONDS / taken)) + 1


def trajectory(ner: DiffusionNER, options: dict[str, Any]) -> dict[str, Any]:
    """Return every denoising step of the example sentence."""
    parts, found = ner.steps(SENTENCE, **options)
    return {
        "words": parts[0].words,
        "steps": [
            {
                "timestep": step.timestep,
                "spans": [
                    {
                        "noisy": span.noisy,
                        "restored": span.denoised,
                        "label": None if span.type_id is None else ner.labels[span.type_id],
                        "score": round(span.score, 4),
                    }
                    for span in step.spans
                ],
            }
            for step in found[0].steps
        ],
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
