"""The record of a zero-shot measurement as tables, each with an explanation."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.zero_shot.measuring import CANDIDATES

LISTED = 20  # labels of the passages that are shown
Record = dict[str, Any]


def show(record: Record, console: Console) -> None:
    _scores(record, console)
    if record["corpora"]["passages"]["without_denoising"] is not None:
        _denoising(record, console)
    if "seen" in record["crossner"]:
        _seen(record, console)
    _wordings(record, console)
    _labels(record, console)
    _passage_labels(record, console)
    _speed(record, console)
    _order(record["label_order"], console)


def _table(title: str, first: str, *numbers: str) -> Table:
    table = Table(first, title=title, title_justify="left")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _note(console: Console, text: str) -> None:
    console.print(text + "\n", style="dim", highlight=False, markup=False)


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def percent_range(ends: tuple[float, float]) -> str:
    return f"{percent(ends[0])} to {percent(ends[1])}"


def change_cells(difference: Record) -> list[str]:
    return [f"{100 * difference['f1']:+.2f}", percent_range(difference["interval"])]


def _scores(record: Record, console: Console) -> None:
    table = _table(
        f"Zero-shot, strict: {record['model']}", "", "sentences", "entities", "precision", "recall",
        "F1", "95% CI", "ECE", f"ECE from {CANDIDATES}",
    )  # fmt: skip
    for name, one in record["corpora"].items():
        micro, data, calibration = one["micro"], one["fingerprint"], one["calibration"]
        if name == "passages":
            mean = record["crossner"]["mean"]
            cells = [percent(mean["f1"]), percent_range(mean["interval"])]
            table.add_row("mean of CrossNER", *[""] * 4, *cells, style="bold", end_section=True)
        table.add_row(
            name, str(data["sentences"]), str(data["entities"]),
            *(percent(micro[metric]) for metric in ("precision", "recall", "f1")),
            percent_range(micro["interval"]),
            *(f"{calibration[which]['error']:.3f}" for which in ("own_threshold", "candidates")),
        )  # fmt: skip
    console.print(table)
    _note(
        console,
        "CrossNER: every sentence is asked for all labels of its domain but misc. Passages: for "
        "the types listed in the passage, present or absent. CI: bootstrap over sentences. ECE: "
        "expected calibration error of the entities that are found, and of all with a score of at "
        f"least {CANDIDATES}, overlaps resolved.",
    )


def _denoising(record: Record, console: Console) -> None:
    steps = record["settings"]["inference"]["steps"]
    table = _table(
        "Denoising", "", f"F1, steps={steps}", "F1, steps=0", "difference", "95% CI", "p"
    )
    for name, one in record["corpora"].items():
        other, change = one["without_denoising"], one["without_denoising"]["difference"]
        scores = percent(one["micro"]["f1"]), percent(other["micro"]["f1"])
        table.add_row(name, *scores, *change_cells(change), f"{change['p']:.4f}")
    console.print(table)
    _note(
        console,
        "CI: paired bootstrap, p: approximate randomization, both over sentences. Scores and "
        "threshold are the stored ones, which were fitted for the model's own steps.",
    )


def _seen(record: Record, console: Console) -> None:
    table = _table(
        "Labels seen in training or not", "", "seen: entities", "F1", "95% CI", "unseen: entities",
        "F1", "95% CI",
    )  # fmt: skip
    rows = {**record["corpora"], "CrossNER together": record["crossner"]}
    for name in (*(name for name in rows if name != "passages"), "passages"):
        both = [rows[name][which] for which in ("seen", "unseen")]
        cells = [
            cell
            for one in both
            for cell in (
                [str(one["gold"]), percent(one["f1"]), percent_range(one["interval"])]
                if one["gold"] or one["predicted"]
                else ["0", "", ""]
            )
        ]
        table.add_row(name, *cells, style="bold" if name == "CrossNER together" else None)
    console.print(table)
    _note(
        console,
        "Seen: a label of the training data has the same name, whatever its case and description.",
    )


def _wordings(record: Record, console: Console) -> None:
    headings = ("other words", "difference", "95% CI", "described", "difference", "95% CI")
    table = _table("Wording of the labels: F1", "", "name", *headings)
    for name, one in record["corpora"].items():
        if one["wordings"]:
            cells = [
                cell
                for other in one["wordings"].values()
                for cell in (percent(other["micro"]["f1"]), *change_cells(other["difference"]))
            ]
            table.add_row(name, percent(one["micro"]["f1"]), *cells)
    mean = record["crossner"]
    f1, other, described = (mean[key]["f1"] for key in ("mean", "mean_other", "mean_described"))
    changes = [f"{100 * (each - f1):+.2f}" for each in (other, described)]
    cells = [percent(f1), percent(other), changes[0], "", percent(described), changes[1], ""]
    table.add_row("mean of CrossNER", *cells, style="bold")
    console.print(table)
    _note(console, "Other words: those in the next table. CI: paired bootstrap over sentences.")


def _labels(record: Record, console: Console) -> None:
    table = Table("corpus", "label", title="Labels of CrossNER", title_justify="left")
    _label_columns(table, "seen" in record["crossner"])
    table.add_column("other words")
    for name in ("F1", "F1 described"):
        table.add_column(name, justify="right")
    for name, one in record["corpora"].items():
        for number, label in enumerate(one["labels"] if one["wordings"] else ()):
            table.add_row(
                "" if number else name, label["label"], *_label_cells(label),
                label["other"]["text"],
                *(percent(label[wording]["f1"]) for wording in ("other", "described")),
                end_section=label is one["labels"][-1],
            )  # fmt: skip
    console.print(table)


def _passage_labels(record: Record, console: Console) -> None:
    labels = sorted(record["corpora"]["passages"]["labels"], key=lambda one: -one["gold"])
    table = Table("label", title="Most frequent labels of the passages", title_justify="left")
    _label_columns(table, "seen" in record["crossner"])
    for label in labels[:LISTED]:
        table.add_row(label["label"], *_label_cells(label))
    console.print(table)
    if len(labels) > LISTED:
        _note(console, f"{len(labels) - LISTED:,} more labels are in the JSON file.")


def _label_columns(table: Table, with_seen: bool) -> None:
    names = ("seen", "gold", "precision", "recall", "F1")
    for name in names if with_seen else names[1:]:
        table.add_column(name, justify="right")


def _label_cells(label: Record) -> list[str]:
    seen = [("yes" if label["seen"] else "no")] if "seen" in label else []
    scores = (percent(label[metric]) for metric in ("precision", "recall", "f1"))
    return [*seen, str(label["gold"]), *scores]


def _speed(record: Record, console: Console) -> None:
    rows = record["speed"]
    table = _table("Speed", "labels", "words/s", "spread", "of the fastest")
    for one in rows:
        speed = one["words_per_second"]
        table.add_row(
            f"{one['labels']}{', frozen' if one['frozen'] else ''}", f"{speed['median']:,.0f}",
            f"{speed['low']:,.0f}-{speed['high']:,.0f}", f"{one['of_fastest']:.2f}",
        )  # fmt: skip
    console.print(table)
    _note(
        console,
        f"{rows[0]['texts']} texts with {rows[0]['words']:,} words on {record['device']}, in one "
        f"process with {record['machine']['threads']} threads; medians and extremes after a "
        "warm-up, measured in turns. The words of the labels were read before.",
    )


def _order(order: Record, console: Console) -> None:
    verdict = "yes" if order["identical"] else "NO"
    console.print(
        f"{order['labels']} labels in {order['orders']} orders, {order['sentences']} sentences, "
        f"{order['entities']} entities: identical entities and scores: {verdict}",
        highlight=False,
        soft_wrap=True,
    )
