"""A card as Markdown with YAML front matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import yaml

from benchmarks.card.about import About, Corpus
from benchmarks.card.measuring import BINS, SEEDS, SPANS, STEPS, Figures, reliability, spread
from diffusionner.evaluation.counts import METRICS, Counts
from diffusionner.evaluation.result import Evaluation
from diffusionner.evaluation.significance import Interval
from diffusionner.settings import InferenceSettings


def render(
    title: str,
    model: str,
    about: About,
    figures: Figures,
    settings: InferenceSettings,
    command: str,
) -> str:
    """Return the card. model: the name to load it by; command: the command that wrote the card."""
    f1 = {name: evaluation.report.micro.f1 for name, evaluation in figures.corpora.items()}
    parts = [
        front_matter(about, f1),
        f"# {title}\n{about.texts['description']}",
        f'```python\nner = DiffusionNER.from_pretrained("{model}")\n```',
        f"## Intended use\n{about.texts['use']}",
        f"## Limits\n{about.texts['limits']}",
        f"## Training data and licences\n{about.texts['training']}",
        "## Scores\nStrict: boundaries and type must both be correct. In percent, with the 95% "
        "bootstrap interval over sentences in brackets. The settings are the model's own: "
        f"{_own(settings)}.",
        *(_scores(one, figures.corpora[one.name]) for one in about.corpora),
        _curves(about.corpora[0].name, figures),
        _calibration(figures),
        _cost(figures),
        f"Written by\n```bash\n{command}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(about: About, f1: Mapping[str, float]) -> str:
    """Return the YAML front matter. f1: by corpus, a share of 1."""
    values = {
        "language": about.texts["language"],
        "license": about.texts["license"],
        "library_name": "diffusionner",
        "pipeline_tag": "token-classification",
        **about.lists,
        "description": about.texts["description"],
        "f1": {name: round(100 * value, 2) for name, value in f1.items()},
    }
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    return f"---\n{text}---"


def _own(settings: InferenceSettings) -> str:
    return f"start={settings.start}, steps={settings.steps}, spans={settings.spans}"


def _scores(corpus: Corpus, evaluation: Evaluation) -> str:
    report, intervals = evaluation.report, evaluation.intervals
    rows = [_row("all", report.micro, intervals.measures["micro"])]
    rows += [
        _row(label, counts, intervals.per_type[label]) for label, counts in report.per_type.items()
    ]
    what = f"`{corpus.given}`" + (f", its last {corpus.last} sentences" if corpus.last else "")
    if corpus.labels is not None:
        renamed = [f"{old} → {new}" for old, new in corpus.labels.items() if old != new]
        kept = [old for old, new in corpus.labels.items() if old == new]
        what += f"; only {', '.join(kept + renamed)}"
    scores = table(["", "precision", "recall", "F1", "entities"], rows)
    return f"### {corpus.name}\n{what} ({evaluation.data})\n\n{scores}"


def _row(name: str, counts: Counts, interval: Interval) -> list[str]:
    precision, recall, f1 = (f"{100 * getattr(counts, metric):.2f}" for metric in METRICS)
    low, high = (f"{100 * end:.1f}" for end in interval.f1)
    return [name, precision, recall, f"{f1} ({low} to {high})", str(counts.gold)]


def _curves(corpus: str, figures: Figures) -> str:
    mean, deviation = spread(figures.seeds)
    return "\n\n".join(
        [
            f"## Steps, spans and noise\nF1 on {figures.curve_sentences} sentences of "
            f"{corpus}, one setting changed at a time.",
            _curve("steps γ", STEPS, figures.steps),
            _curve("spans K", SPANS, figures.spans),
            f"From noise, over the seeds {SEEDS[0]} to {SEEDS[-1]}: {mean:.2f} ± {deviation:.2f} "
            "(mean and standard deviation). Starting from candidates is deterministic.",
        ]
    )


def _curve(what: str, values: Sequence[object], curves: dict[str, list[float]]) -> str:
    rows = [[start, *(f"{f1:.2f}" for f1 in line)] for start, line in curves.items()]
    return table([what, *map(str, values)], rows)


def _calibration(figures: Figures) -> str:
    """Return a table with a row per score interval and a column per corpus."""
    predictions = {
        name: evaluation.report.prediction_scores for name, evaluation in figures.corpora.items()
    }
    bins = {name: reliability(each) for name, each in predictions.items() if each}
    rows = []
    for number in range(BINS):
        here = [found[number] for found in bins.values()]
        cells = [f"{b.right:.2f} of {b.count} ({b.score:.2f})" if b else "" for b in here]
        rows.append([f"{number / BINS:.1f} to {(number + 1) / BINS:.1f}", *cells])
    errors = [f"{each.calibration_error:.3f}" for each in predictions.values() if each]
    shares = table(["score", *bins], [*rows, ["expected error", *errors]])
    return (
        "## Calibration\nOf the entities found with a score in each interval: the share that is "
        f"correct, their number and, in brackets, their mean score.\n\n{shares}"
    )


def _cost(figures: Figures) -> str:
    about, speed, start = figures.machine, figures.speed, figures.startup
    where = about["gpu"] or f"{about['processor']}, {about['cores']} cores"
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    rows = [
        ["sentences per second", f"{speed.sentences:.0f}"],
        ["words per second", f"{speed.words:.0f}"],
        ["cores used", f"{speed.cores:.1f}"],
        ["seconds to load the model", f"{start.load:.2f}"],
        ["seconds in a new process, with imports and a first sentence", f"{start.ready:.2f}"],
        ["MB of resident memory after that", f"{start.resident_mb:.0f}"],
    ]
    return f"## Speed and memory\n{where}; batches of {speed.batch_size}; {versions}.\n\n" + table(
        ["", ""], rows
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with text in the first column and numbers in the others."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    # A bar in a label would end its cell.
    return "\n".join(f"| {' | '.join(c.replace('|', '&#124;') for c in line)} |" for line in lines)
