"""Layouts of the results, the ablations, the learning rates and what denoising adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from diffusionner.evaluation.significance import difference
from reproduce import published
from reproduce.corpora import CORPORA, MAIN_METHOD, METHOD_TITLES, METHODS
from reproduce.grids import Cell, Grid, Row, Unit
from reproduce.pages import (
    DEFAULT,
    Page,
    Plot,
    TableRecords,
    about_alone,
    mean_and_sd,
    non_empty,
    percent,
)
from reproduce.tables import (
    ABLATIONS,
    ALONE,
    ALONE_DEV,
    ALONE_TITLE,
    BELIEFS,
    BENEFIT_CORPORA,
    CLASSIFIER,
    CURVE_GAMMA,
    DEV,
    ENCODER_VARIANTS,
    NOISY,
    OTHER_STEPS,
    PAPER_START,
    RATE_VARIANTS,
    RECIPE,
    SHORT_EPOCHS,
    STUDIED,
    TEST,
    TUNED,
    WHOLE_RATE_VARIANTS,
    WHOLE_TUNED,
    Point,
    Table,
    Variant,
    point,
)

Measured = tuple[str, Variant, Point]  # a method, its variant, and what is measured
RESAMPLES = 10_000  # of paired differences
LEVEL = 0.2  # F1 points that do not count as a difference
BELIEFS_TITLE = "beliefs over the document"
ABOUT_PAIRS = (
    "Paired differences are in points of F1 on test. The counts of each sentence are summed over "
    f"the seeds that both have; the interval resamples sentences {RESAMPLES:,} times, all seeds "
    "together, and p, two-sided, is the share of random swaps of the two predictions, sentence by "
    "sentence, with a difference at least as large. They need runs recorded with counts by "
    "sentence."
)
FRACTIONS: tuple[tuple[str, Unit], ...] = (
    ("precision", "percent"),
    ("recall", "percent"),
    ("F1", "percent"),
    ("dev F1", "percent"),
)


def results(table: Table, records: TableRecords) -> Page:
    corpora = [name for name in records.corpora(table) if _tested(records, name)]
    grids = [
        _summary(records, corpora),
        _paired_grid(records, corpora),
        *(_one_corpus(records, corpus) for corpus in corpora),
    ]
    panels = [
        {
            "title": table.title,
            "ylabel": "test F1",
            "groups": [CORPORA[corpus].title for corpus in corpora],
            "series": [
                {"name": title, **mean_and_sd(records.f1(c, TEST, method) for c in corpora)}
                for method, title in METHOD_TITLES
            ],
        }
    ]
    text = [
        "Strict precision, recall and F1 on test, mean ± standard deviation over the seeds. The "
        "best of our methods is in bold. All methods have the same encoder, data, reader, trainer "
        "and scorer. The epoch and the thresholds are chosen on dev, and test is scored once per "
        "run. Published rows are as printed in the paper, with BERT-large and similar encoders. "
        "DiffusionNER runs with the preset's inference, γ = 1 from candidates.",
        about_alone(grids),
        ABOUT_PAIRS,
        *verdicts(records, corpora),
    ]
    return Page(text, grids, [Plot(table.name, "dots", {"panels": panels})])


def verdicts(records: TableRecords, corpora: list[str]) -> list[str]:
    """Return a sentence for each corpus that compares DiffusionNER with the best rival."""
    found = []
    for corpus in corpora:
        ours = records.f1(corpus, TEST).mean
        rivals = {title: records.f1(corpus, TEST, name).mean for name, title in METHOD_TITLES[1:]}
        known = {title: mean for title, mean in rivals.items() if mean is not None}
        if ours is None or not known:
            continue
        best = max(known, key=lambda title: known[title])
        ahead = ours - known[best]
        word = "ahead of" if ahead > LEVEL else "behind" if ahead < -LEVEL else "level with"
        found.append(
            f"{CORPORA[corpus].title}: DiffusionNER is {word} the best rival, {best} "
            f"({ours:.2f} against {known[best]:.2f}, {ahead:+.2f})."
        )
    return found


def ablations(table: Table, records: TableRecords) -> Page:
    titles = {
        "encoder": "Encoder",
        "module": "Parts of the decoder",
        "schedule": "Variance schedule and T",
        "expansion": "Expansion and K",
    }
    corpora = list(STUDIED)
    grids, panels = [], []
    for part, variants in ABLATIONS.items():
        rows = non_empty(_ablation_row(records, corpora, variant) for variant in variants)
        if not rows:
            continue
        columns: list[tuple[str, Unit]] = [
            (f"{CORPORA[name].title}{start}", "percent")
            for name in corpora
            for start in ("", ", from noise", f", {ALONE_TITLE}")
        ]
        printed: list[tuple[str, Unit]] = [("ACE04", "percent"), ("CoNLL03 (paper)", "percent")]
        empty = (Cell(), Cell())
        theirs = tuple(
            Row(title, (*[Cell()] * len(columns), *map(Cell.printed, values)))
            for title, values in published.ABLATIONS[part].items()
        )
        mine = tuple(Row(row.title, (*row.cells, *empty)) for row in rows)
        mine, theirs = _side_by_side(mine, theirs)
        grids.append(Grid(titles[part], "setting", (*columns, *printed), (*mine, *theirs)))
        panels += [
            {
                "title": f"{titles[part]}: {CORPORA[name].title}",
                "ylabel": "dev F1",
                "groups": [row.title for row in rows],
                "series": [
                    {"name": start, **mean_and_sd(row.cells[3 * number + place] for row in rows)}
                    for place, start in enumerate(("as in the preset", "from noise"))
                ],
            }
            for number, name in enumerate(corpora)
        ]
    text = [
        "F1 on dev of DiffusionNER with one change to the preset, mean ± standard deviation over "
        f"the seeds, after {SHORT_EPOCHS} epochs. Inference is from candidates with one step, as "
        f"in the preset (from noise if there is no initializer), and from {PAPER_START['spans']} "
        f"noisy spans with {CURVE_GAMMA} steps, as in the paper. The paper's columns are its own "
        "numbers, on its test sets and with its encoders.",
        f"{about_alone(grids)} It needs an initializer with types.",
    ]
    plots = [Plot(table.name, "dots", {"panels": panels})] if panels else []
    return Page(text, grids, plots)


def tuning(table: Table, records: TableRecords) -> Page:
    columns: tuple[tuple[str, Unit], ...] = tuple((title, "percent") for _, title in METHOD_TITLES)
    grids = []
    asked = [(corpus, RATE_VARIANTS, f"{SHORT_EPOCHS} epochs") for corpus in TUNED]
    asked += [(corpus, WHOLE_RATE_VARIANTS, "all epochs") for corpus in WHOLE_TUNED]
    for corpus, variants, length in asked:
        rows = non_empty(
            Row(one.title, tuple(records.f1(corpus, DEV, name, one) for name, _ in METHOD_TITLES))
            for one in variants
        )
        if rows:
            grids.append(Grid(f"{CORPORA[corpus].title}, {length}", "rates", columns, rows))
    text = [
        "F1 on dev by the learning rates of the encoder and of the rest, after "
        f"{SHORT_EPOCHS} epochs, with the same choice for every method, DiffusionNER included. "
        "Where a rival prefers a pair other than the preset's, both are also compared over all "
        "epochs, which decides. The best pair of each method is in bold."
    ]
    return Page(text, grids)


def benefit(table: Table, records: TableRecords) -> Page:
    names = (*(CORPORA[name].title for name in BENEFIT_CORPORA), "average")
    columns: tuple[tuple[str, Unit], ...] = tuple((name, "percent") for name in names)
    ours, rival = METHODS[MAIN_METHOD].title, METHODS[CLASSIFIER].title
    grids = []
    for split in ("test", "dev"):
        full = point("score", split)
        points = {
            f"{ours}, γ = 1": full,
            f"{ours}, γ = {CURVE_GAMMA}": point("score", split, steps=CURVE_GAMMA),
            **({f"{ours}, γ = {CURVE_GAMMA} from noise": NOISY} if split == "dev" else {}),
            ALONE_TITLE: point("score", split, steps=ALONE),
            BELIEFS_TITLE: point("score", split, **{BELIEFS: True}),
        }
        measured = {title: (one, MAIN_METHOD, RECIPE) for title, one in points.items()}
        measured[rival] = full, CLASSIFIER, RECIPE
        rows = (
            Row(title, _with_average([records.f1(corpus, *one) for corpus in BENEFIT_CORPORA]))
            for title, one in measured.items()
        )
        grids.append(Grid(f"F1 on {split}", "method", columns, tuple(rows)))
    recorded = all(cell.values for grid in grids for row in grid.rows for cell in row.cells)
    changes = ", ".join(f"`{name}={value}`" for name, value in RECIPE.changes)
    text = [
        "F1 with and without denoising, mean ± standard deviation over the seeds. Epoch and "
        "thresholds are chosen on dev. All methods have the same recipe, the preset's with "
        f"{changes}.",
        about_alone(()),
        f"`{BELIEFS_TITLE}` denoises the candidates of the same models with the belief network of "
        "the library, which was fitted on training documents of GENIA and LitBank; thresholds are "
        "fitted on dev.",
        ABOUT_PAIRS,
        *(() if recorded else ("Where it says –, the runs are not yet recorded.",)),
    ]
    beliefs = {BELIEFS_TITLE: point("score", "test", **{BELIEFS: True})}
    pairs = _paired_grid(records, BENEFIT_CORPORA, RECIPE, RECIPE, beliefs)
    return Page(text, [*grids, pairs])


def _tested(records: TableRecords, corpus: str) -> bool:
    return any(records.f1(corpus, TEST, method).values for method in METHODS)


def _our_rows() -> list[tuple[str, str, Point, Point]]:
    """Return title, method, dev and test point of each row that we measure."""
    rows = [(title, method, DEV, TEST) for method, title in METHOD_TITLES]
    ours = METHODS[MAIN_METHOD].title
    for name, steps in OTHER_STEPS.items():
        points = point("score", steps=steps), point("score", "test", steps=steps)
        rows.append((f"{ours}, {name}", MAIN_METHOD, *points))
    return sorted(rows, key=lambda row: row[1] != MAIN_METHOD)  # those of DiffusionNER first


def _paired_grid(
    records: TableRecords,
    corpora: Sequence[str],
    variant: Variant = DEFAULT,
    of_rival: Variant = DEFAULT,
    others: Mapping[str, Point] | None = None,
) -> Grid:
    """Compare DiffusionNER with the initializer alone, more steps with one, and with a rival.

    others: further points to compare with the initializer alone and with the rival, by title.
    """
    ours, rival = METHODS[MAIN_METHOD].title, METHODS[CLASSIFIER].title
    full, more, alone = (
        (MAIN_METHOD, variant, one)
        for one in (TEST, *(point("score", "test", steps=steps) for steps in OTHER_STEPS.values()))
    )
    of_classifier = CLASSIFIER, of_rival, TEST
    pairs = {
        f"{ours} − {ALONE_TITLE}": (full, alone),
        f"γ = {CURVE_GAMMA} − γ = 1": (more, full),
        f"{ours} − {rival}": (full, of_classifier),
    }
    for title, one in (others or {}).items():
        pairs[f"{title} − {ALONE_TITLE}"] = (MAIN_METHOD, variant, one), alone
        pairs[f"{title} − {rival}"] = (MAIN_METHOD, variant, one), of_classifier
    rows = [
        Row(f"{CORPORA[corpus].title}: {title}", _paired_cells(records, corpus, *pair))
        for corpus in corpora
        for title, pair in pairs.items()
    ]
    names = ("difference", "95% interval", "p", "seeds")
    columns: tuple[tuple[str, Unit], ...] = tuple((name, "text") for name in names)
    return Grid("Paired differences on test", "F1", columns, tuple(rows), best=False)


def _paired_cells(
    records: TableRecords, corpus: str, first: Measured, second: Measured
) -> tuple[Cell, ...]:
    """Return the difference over the seeds of both, its interval, p, and the number of seeds."""
    ours, theirs = (
        {run.seed: counts for run in runs if (counts := run.counts(one)) is not None}
        for method, variant, one in (first, second)
        for runs in [records.runs(corpus, method, variant, [one])]
    )
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return (Cell(),) * 4
    a, b = (np.sum([counts[seed] for seed in both], axis=0) for counts in (ours, theirs))
    found = difference(a, b, RESAMPLES, seed=0)
    low, high = found.interval
    texts = f"{100 * found.f1:+.2f}", f"{100 * low:+.2f} to {100 * high:+.2f}", f"{found.p:.4f}"
    return tuple(Cell(text=text) for text in (*texts, str(len(both))))


def _summary(records: TableRecords, corpora: list[str]) -> Grid:
    rows = []
    for title, method, _, test in _our_rows():
        cells = [records.f1(corpus, test, method) for corpus in corpora]
        rows.append(Row(title, _with_average(cells)))
    printed = [published.RESULTS.get(corpus, {}).get(published.OURS) for corpus in corpora]
    theirs = tuple(Cell.printed(scores.f1 if scores else None) for scores in printed)
    rows.append(Row(published.OURS, (*theirs, Cell())))
    columns: list[tuple[str, Unit]] = [(CORPORA[name].title, "percent") for name in corpora]
    return Grid("F1 on test", "method", (*columns, ("average", "percent")), non_empty(rows))


def _with_average(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Add the mean of the cells, if all have one."""
    means = [cell.mean for cell in cells]
    known = [mean for mean in means if mean is not None]
    complete = means and len(known) == len(means)
    return (*cells, Cell.of([sum(known) / len(known)]) if complete else Cell())


def _one_corpus(records: TableRecords, corpus: str) -> Grid:
    rows = []
    for title, method, dev, test in _our_rows():
        names = ("precision", "recall", "f1")
        scores = [records.f1(corpus, test, method, name=name) for name in names]
        rows.append(Row(title, (*scores, records.f1(corpus, dev, method))))
    for title, printed in published.RESULTS.get(corpus, {}).items():
        rows.append(Row(title, (*map(Cell.printed, printed), Cell())))
    return Grid(CORPORA[corpus].title, "method", FRACTIONS, non_empty(rows))


def _ablation_row(records: TableRecords, corpora: list[str], variant: Variant) -> Row:
    points = (DEV, NOISY)
    found = [records.runs(corpus, variant=variant, points=points) for corpus in corpora]
    cells: list[Cell] = []
    for corpus, runs in zip(corpora, found, strict=True):
        cells += [percent(run.score(one) for run in runs) for one in points]
        cells.append(records.f1(corpus, ALONE_DEV, variant=variant))
    title = variant.title
    if variant in ENCODER_VARIANTS:
        names = dict.fromkeys(run.values["encoder"]["name"] for runs in found for run in runs)
        title = ", ".join(names)
    return Row(title, tuple(cells))


def _side_by_side(mine: tuple[Row, ...], theirs: tuple[Row, ...]) -> tuple[tuple[Row, ...], ...]:
    """Merge the paper's rows into our rows of the same name."""
    printed = {row.title: row.cells[-2:] for row in theirs}
    joined = tuple(
        Row(row.title, (*row.cells[:-2], *printed.get(row.title, row.cells[-2:]))) for row in mine
    )
    titles = {row.title for row in mine}
    return joined, tuple(row for row in theirs if row.title not in titles)
