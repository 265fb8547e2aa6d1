"""The record of a zero-shot measurement as a model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.card.about import About
from benchmarks.card.markdown import front_matter, table
from benchmarks.zero_shot.crossner import LEFT_OUT
from benchmarks.zero_shot.measuring import CANDIDATES
from benchmarks.zero_shot.tables import change_cells, percent, percent_range
from diffusionner.errors import DataError
from diffusionner.storage.config import read_json

Record = dict[str, Any]
NEEDED = ("settings", "machine", "corpora", "crossner", "label_order", "speed")
MAX_RECORD = 100_000_000  # bytes; real ones have less than half a million


def read_record(path: Path) -> Record:
    """Read the JSON file of a complete measurement."""
    try:
        record = read_json(path, MAX_RECORD)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    missing = [key for key in NEEDED if not isinstance(record, dict) or key not in record]
    if missing:
        raise DataError(
            f"{path} lacks {', '.join(missing)}: it is no record of `zero-shot --out`, or of a run "
            "that was interrupted; measure again"
        )
    return dict(record)


def command_of(record: Record, model: str, about: Path) -> str:
    """Return the command that measures the record and writes the card, without paths of folders."""
    words = ["python -m benchmarks zero-shot", model, "--data $DATA"]
    if "trained_on" in record:
        words.append(f"--trained-on {Path(record['trained_on']['file']).name}")
    if record.get("first") is not None:
        words.append(f"--first {record['first']}")
    return " ".join([*words, f"--card {about.name}"])


def render(title: str, model: str, about: About, record: Record, command: str) -> str:
    """Return the card. model: the name to load it by; command: the command that wrote the card."""
    f1 = {
        "crossner": record["crossner"]["mean"]["f1"],
        "passages": record["corpora"]["passages"]["micro"]["f1"],
    }
    parts = [
        front_matter(about, f1),
        f"# {title}\n{about.texts['description']}",
        "```python\n"
        f'ner = DiffusionNER.from_pretrained("{model}")\n'
        'entities = ner("Biryani needs saffron.", labels=["dish", "spice"])\n```',
        f"## Intended use\n{about.texts['use']}",
        f"## Limits\n{about.texts['limits']}",
        f"## Training data and licences\n{about.texts['training']}",
        _scores(record),
        _seen(record) if "seen" in record["crossner"] else "",
        _calibration(record),
        _wordings(record),
        _denoising(record),
        _labels(record),
        _speed(record),
        _order(record["label_order"]),
        f"Written by\n```bash\n{command}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _f1(score: Record) -> str:
    return f"{percent(score['f1'])} ({percent_range(score['interval'])})"


def _scores(record: Record) -> str:
    inference = record["settings"]["inference"]
    first = "" if record.get("first") is None else f" Only the first {record['first']} sentences."
    rows = []
    for name, one in record["corpora"].items():
        if name == "passages":
            rows.append(["**mean of CrossNER**", "", "", f"**{_f1(record['crossner']['mean'])}**"])
            rows[-1] += ["", "", ""]
        micro, data = one["micro"], one["fingerprint"]
        rows.append(
            [
                name,
                *(percent(micro[metric]) for metric in ("precision", "recall")),
                _f1(micro),
                f"{one['calibration']['own_threshold']['error']:.3f}",
                f"{data['sentences']:,}",
                f"{data['entities']:,}",
            ]
        )
    scores = table(
        ["", "precision", "recall", "F1", "calibration error", "sentences", "entities"], rows
    )
    return (
        "## Zero-shot scores\nOn test sets, from the names of the types alone. Strict: boundaries "
        "and type must both be correct. In percent, with the 95% bootstrap interval over sentences "
        f"in brackets. CrossNER: each sentence is asked for all labels of its domain but "
        f"`{LEFT_OUT}`. Passages (`corpora/open-passages/test`): for the types that were looked "
        "for in the passage, present or absent. The settings are the model's own: "
        f"steps={inference['steps']}, overlap={inference['overlap']}, "
        f"threshold={record['threshold']}.{first}\n\n{scores}"
    )


def _seen(record: Record) -> str:
    crossner, passages = record["crossner"], record["corpora"]["passages"]
    labels = {
        "CrossNER": {
            label["label"]: label["seen"]
            for name, one in record["corpora"].items()
            if name != "passages"
            for label in one["labels"]
        },
        "passages": {label["label"]: label["seen"] for label in passages["labels"]},
    }
    rows = []
    for name, scores in (("CrossNER", crossner), ("passages", passages)):
        for which in ("seen", "unseen"):
            count = sum(seen == (which == "seen") for seen in labels[name].values())
            if count:
                score = scores[which]
                cells = [f"{name}, {which}", f"{count:,}", f"{score['gold']:,}"]
                metrics = (percent(score[metric]) for metric in ("precision", "recall"))
                rows.append([*cells, *metrics, _f1(score)])
    known = record["trained_on"]["labels"]
    text = (
        f"## Labels seen in training or not\nThe training corpora have {known:,} labels, other "
        "wordings included. Seen: one of them has the same name, whatever its case and description."
    )
    if all(labels["CrossNER"].values()):
        text += (
            " All names of CrossNER were seen, in other corpora: for these labels CrossNER tests "
            "new text, the unseen labels of the passages test new types."
        )
    headings = ["", "labels", "entities", "precision", "recall", "F1"]
    return f"{text}\n\n{table(headings, rows)}"


def _calibration(record: Record) -> str:
    rows = []
    for which, what in (
        ("own_threshold", "entities that are found"),
        ("candidates", f"candidates with a score of at least {CANDIDATES}"),
    ):
        errors = [one["calibration"][which] for one in record["corpora"].values()]
        rows.append([what, *(f"{one['error']:.3f} of {one['entities']:,}" for one in errors)])
    return (
        "## Calibration\nThe expected calibration error: how far scores are from the share of "
        "entities that is right, on average over intervals of the score; and the number of "
        f"entities.\n\n{table(['', *record['corpora']], rows)}"
    )


def _wordings(record: Record) -> str:
    rows = [
        [
            name,
            percent(one["micro"]["f1"]),
            *(_changed(other["micro"], other["difference"]) for other in one["wordings"].values()),
        ]
        for name, one in record["corpora"].items()
        if one["wordings"]
    ]
    means = record["crossner"]
    f1, *others = (means[key]["f1"] for key in ("mean", "mean_other", "mean_described"))
    cells = [f"{percent(other)}, {100 * (other - f1):+.2f}" for other in others]
    rows.append([f"**{cell}**" for cell in ("mean", percent(f1), *cells)])
    return (
        "## Wording of the labels\nF1 on CrossNER if its types are asked for in other words, or "
        "with descriptions, and the change with its 95% interval (paired bootstrap). The tables of "
        "labels below have the other words.\n\n"
        + table(["", "name", "other words", "name and description"], rows)
    )


def _changed(score: Record, difference: Record) -> str:
    change, interval = change_cells(difference)
    return f"{percent(score['f1'])}, {change} ({interval})"


def _denoising(record: Record) -> str:
    steps = record["settings"]["inference"]["steps"]
    if steps == 0:
        return (
            "## Denoising\nThe model stores `steps=0`: training found no gain on dev, so the "
            "scores of the spans decide alone, and the scores above are without denoising."
        )
    rows = []
    for name, one in record["corpora"].items():
        if (other := one["without_denoising"]) is not None:
            change = _changed(other["micro"], other["difference"])
            rows.append([name, percent(one["micro"]["f1"]), change])
    if not rows:
        return ""
    return "## Denoising\nF1.\n\n" + table(["", f"steps={steps}", "steps=0, change"], rows)


def _labels(record: Record) -> str:
    parts = ["## Labels of CrossNER\nF1 of each label, also in other words and with a description."]
    headings = ["", "entities", "precision", "recall", "F1", "in other words", "described"]
    for name, one in record["corpora"].items():
        if one["wordings"]:
            rows = [_label_row(label) for label in one["labels"]]
            parts.append(f"### {name}\n\n{table(headings, rows)}")
    return "\n\n".join(parts)


def _label_row(label: Record) -> Sequence[str]:
    scores = (percent(label[metric]) for metric in ("precision", "recall", "f1"))
    other = f"{percent(label['other']['f1'])} ({label['other']['text']})"
    return [label["label"], str(label["gold"]), *scores, other, percent(label["described"]["f1"])]


def _speed(record: Record) -> str:
    machine, rows = record["machine"], record["speed"]
    where = machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    cells = []
    for one in rows:
        speed = one["words_per_second"]
        cells.append(
            [
                f"{one['labels']}{', frozen' if one['frozen'] else ''}",
                f"{speed['median']:,.0f} ({speed['low']:,.0f} to {speed['high']:,.0f})",
                f"{one['of_fastest']:.2f}",
            ]
        )
    return (
        f"## Speed\n{rows[0]['texts']} texts with {rows[0]['words']:,} words. {where}; {versions}. "
        "Medians and extremes, measured in turns.\n\n"
        + table(["labels", "words per second", "of the fastest"], cells)
    )


def _order(order: Record) -> str:
    same = "identical" if order["identical"] else "**not identical**"
    return (
        f"## Order of the labels\n{order['labels']} labels in {order['orders']} random orders, "
        f"{order['sentences']} sentences, {order['entities']} entities: entities and scores are "
        f"{same}."
    )
