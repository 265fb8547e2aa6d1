"""The record of a speed measurement as tables, each with an explanation."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import stages, training
from benchmarks.throughput import ENCODER

BUSY = 0.3  # load per core above which figures are unreliable


def show(record: dict[str, Any], console: Console) -> None:
    _about(record, console)
    _throughput(record, console)
    _latency(record, console)
    _stages(record, console)
    if record["training"]:
        _training(record, console)
    _memory(record, console)
    if record["agreement"]:
        _agreement(record, console)
    for one in record["scaling"]:
        _scaling(one, console)


def _note(console: Console, text: str) -> None:
    console.print(text + "\n", style="dim", highlight=False, markup=False)


def _about(record: dict[str, Any], console: Console) -> None:
    machine, data = record["machine"], record["data"]
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"{machine['processor']}, {machine['cores']} cores{gpu}; {versions}",
        f"{data['file']}: {data['fingerprint']['sentences']} sentences of "
        f"{data['words_per_sentence']:.1f} words; measured on {record['measured_sentences']}",
    ]
    for one in record["subjects"]:
        size = one.get("parameters")
        counted = f"{size['all'] / 1e6:.0f}M parameters, " if size else ""
        weights = (
            "random weights, so its entities are meaningless; " if one["random_weights"] else ""
        )
        context = one["settings"]["encoder"]["context"]
        lines.append(
            f"{one['name']} in {one['precision']}: {weights}{counted}"
            f"{one['subwords_per_word']:.2f} subwords per word, context {context}"
        )
    if machine["load"] > BUSY * machine["cores"]:
        lines.append(
            f"The machine was busy (load {machine['load']:.1f}) before anything was measured: "
            "times are too long and ratios unreliable"
        )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print()


def _throughput(record: dict[str, Any], console: Console) -> None:
    models = dict.fromkeys((one["subject"], one["precision"]) for one in record["throughput"])
    for number, model in enumerate(models):
        rows = [one for one in record["throughput"] if (one["subject"], one["precision"]) == model]
        title = "Throughput: {} in {}".format(*model)
        table = Table("", title=title, title_justify="left")
        for name in ("γ", "K", "batch", "sentences/s", "spread", "words/s", "of encoder"):
            table.add_column(name, justify="right")
        if number:
            table.add_column("× first", justify="right")
        for one in rows:
            speed, share, times = (
                one[name] for name in ("sentences_per_second", "share_of_encoder", "times_first")
            )
            cells = [
                _text(one["steps"]), _text(one["spans"]), str(one["batch_size"]),
                _speed(speed["median"]), f"{_speed(speed['low'])}-{_speed(speed['high'])}",
                f"{one['words_per_second']:,.0f}",
                "" if share is None else f"{100 * share:.0f}%",
            ]  # fmt: skip
            if number:
                cells.append("" if times is None else f"{times:.2f}")
            style = "bold" if one["what"] == ENCODER else None
            table.add_row(one["what"].partition(" ")[0], *cells, style=style)
        console.print(table)
    _note(
        console,
        f"From words or text to entities; medians and extremes of {record['repeats']} turns, each "
        "with an empty word cache. The encoder alone: the pretrained transformer on the same "
        "batches as words to entities, run in the same way. 100% of it would mean that denoising, "
        "tokenising and everything else cost nothing.",
    )


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _latency(record: dict[str, Any], console: Console) -> None:
    table = Table("model", title="One sentence at a time", title_justify="left")
    for name in ("words", "loading s", "first call ms", "K", "p50 ms", "p95 ms", "calls"):
        table.add_column(name, justify="right")
    for one in record["latency"]:
        for number, (spans, found) in enumerate(_by_spans(one).items()):
            once = [str(one["words"]), f"{one['load_s']:.2f}", f"{one['first_call_ms']:.0f}"]
            table.add_row(
                *([""] * 4 if number else [one["subject"], *once]),
                spans, f"{found['p50_ms']:.2f}", f"{found['p95_ms']:.2f}", str(found["calls"]),
            )  # fmt: skip
    console.print(table)
    _note(console, "From text to entities at γ = 1. The first call includes the warm-up.")


def _by_spans(one: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the latency by K; rivals have no K."""
    found = {spans: one.get(f"spans_{spans}") for spans in ("auto", "60")}
    return {k: v for k, v in found.items() if v} or {"": one["spans_none"]}


def _stages(record: dict[str, Any], console: Console) -> None:
    for one in record["stages"]:
        values = {name: value["median"] for name, value in one["ms_per_sentence"].items()}
        total = sum(values.values())
        title = f"Stages of inference: {one['subject']} in {one['precision']}"
        table = Table("stage", "what", title=title, title_justify="left")
        table.add_column("ms per sentence", justify="right")
        table.add_column("share", justify="right")
        for name, value in values.items():
            share = f"{100 * value / total:.1f}%"
            table.add_row(name, stages.STAGES[name], f"{value:.4f}", share)
        console.print(table)
        _note(
            console,
            f"Each stage is waited for, at γ = 1, K = {one['spans']}, batches of "
            f"{one['batch_size']}: {1000 / total:,.0f} sentences/s. Each further step costs one "
            "more 'denoise'. The throughput above is higher because stages overlap.",
        )


def _training(record: dict[str, Any], console: Console) -> None:
    runs = record["training"]
    table = Table("", title="Training", title_justify="left")
    for _ in runs:
        table.add_column("", justify="right")
    speeds = [one["sentences_per_second"] for one in runs]
    table.add_row("sentences/s", *(f"{s['median']:,.1f}" for s in speeds), style="bold")
    table.add_row("  spread", *(f"{s['low']:,.1f}-{s['high']:,.1f}" for s in speeds))
    for name, what in training.STAGES.items():
        cells = (f"{one['ms_per_update'][name]:.2f} ms" for one in runs)
        table.add_row(f"{name}: {what}", *cells)
    console.print(table)
    recorded = " as CUDA graphs" if runs[0]["cuda_graphs"] else ""
    _note(
        console,
        f"Updates of {runs[0]['batch_size']} sentences in {runs[0]['precision']} on "
        f"{runs[0]['device']}{recorded}, by the trainer itself after a warm-up, without the time "
        "between epochs. The stages are those of updates in which each stage is waited for.",
    )


def _memory(record: dict[str, Any], console: Console) -> None:
    table = Table("", title="Peak memory", title_justify="left")
    table.add_column("process", justify="right")
    table.add_column("tensors on the GPU", justify="right")
    rows = {"inference": record["memory"]}
    for one in record["training"]:
        rows["training"] = one["peak_memory"]
    for name, peak in rows.items():
        gpu = peak["gpu_mb"]
        table.add_row(
            name, f"{peak['resident_mb']:,.0f} MB", "" if gpu is None else f"{gpu:,.0f} MB"
        )
    console.print(table)
    _note(console, "Inference: with all models and precisions above loaded at once.")


def _agreement(record: dict[str, Any], console: Console) -> None:
    table = Table(
        "model",
        "precision",
        title="Agreement of the fast path with the plain network",
        title_justify="left",
    )
    for name in ("γ", "sentences", "equal", "entities", "F1", "score difference", ""):
        table.add_column(name, justify="right")
    for one in record["agreement"]:
        verdict = ("ok" if one["holds"] else "DIFFERENT") if one["required"] else ""
        table.add_row(
            one["subject"], one["precision"], str(one["steps"]), str(one["sentences"]),
            f"{100 * one['same_sentences']:.1f}%", str(one["entities"]), f"{100 * one['f1']:.2f}",
            f"{one['score_difference']:.1e}", verdict,
        )  # fmt: skip
    console.print(table)
    _note(
        console,
        "Entities found in sorted batches with all optimisations, compared with those of one "
        "sentence at a time on the CPU in float32. In float32 (on a GPU without TF32) entities and "
        "scores must be equal. With random weights, where rounding breaks near-ties, almost all "
        "entities must be. Rounding to bf16 or int8 may change a few.",
    )


def _scaling(one: dict[str, Any], console: Console) -> None:
    title = f"Scaling: {one['subject']} in {one['precision']}"
    table = Table(title=title, title_justify="left")
    for name in ("sentences", "ms per sentence", "× first", "process", "GPU"):
        table.add_column(name, justify="right")
    first = one["sizes"][0]["ms_per_sentence"]["median"]
    for size in one["sizes"]:
        each, gpu = size["ms_per_sentence"]["median"], size["gpu_mb"]
        table.add_row(
            f"{size['sentences']:,}", f"{each:.3f}", f"{each / first:.2f}",
            f"{size['resident_mb']:,.0f} MB", "" if gpu is None else f"{gpu:,.0f} MB",
        )  # fmt: skip
    console.print(table)
    place, calls = one["position"], one["encoder_calls"]
    begin, end = place["first_ms_per_sentence"], place["last_ms_per_sentence"]
    counted = ", ".join(f"{count} at γ = {steps}" for steps, count in calls.items())
    _note(
        console,
        f"The same sentences repeated, streamed in batches of {one['batch_size']}. If the time per "
        "sentence is equal in all rows, time is linear; if memory is, only a buffer is held. At "
        f"the start of the longest stream a sentence took {begin:.3f} ms, at its end {end:.3f} ms. "
        f"Encoder calls: {counted}.",
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)
