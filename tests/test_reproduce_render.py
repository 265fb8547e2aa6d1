"""Tables and figures from records."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

import pytest
from reproduction import jobs, sources, write_records

from diffusionner.errors import DataError
from reproduce import plots, published, render
from reproduce.corpora import METHODS
from reproduce.plan import run_key
from reproduce.records import Record, Records, path_of, read, write
from reproduce.tables import (
    ALONE_DEV,
    BELIEF_POINTS,
    DEV,
    NOISY,
    OTHER_STEP_POINTS,
    RECIPE,
    SHORT_EPOCHS,
    SPEED,
    TABLES,
    TEST,
    UNRECORDED_POINTS,
    UNRECORDED_SPEED,
    Point,
    Variant,
    find,
    point,
    shape_point,
)

COMMITTED = Path(__file__).parents[1] / "reproduce" / "results"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of all tables with two seeds."""
    folder = tmp_path_factory.mktemp("rendered")
    write_records(folder / "out", jobs("all", sources(folder), seeds=2))
    # The only nested corpus is GENIA, the only flat one CoNLL03, the only one with gaps CADEC.
    assert all(render.write(find(["all"]), folder / "out").values())
    return folder / "out"


@pytest.fixture
def output(rendered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(rendered, tmp_path / "out"))


def cells(path: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(row["section"], row["row"], row["column"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def scores(output: Path, corpus: str, method: str, one=TEST, **values: object) -> list[float]:
    found = [
        record
        for record in Records.load(output).all
        if (record.corpus, record.method) == (corpus, method) and record.values["shape"] is None
    ]
    chosen = [r for r in found if r.values["changes"] == values and r.has(one)]
    return [100 * r.score(one) for r in chosen if r.values["encoder"]["stands_for"] == "e5-small"]


def test_results_are_means_over_the_seeds(output):
    found = cells(output / "nested.csv")
    text = (output / "nested.md").read_text()
    for method, about in METHODS.items():
        expected = scores(output, "genia", method)
        assert len(expected) == 2
        cell = found["GENIA", about.title, "F1"]
        assert float(cell["mean"]) == pytest.approx(fmean(expected), rel=1e-5)
        assert float(cell["sd"]) == pytest.approx(stdev(expected), rel=1e-4)
        assert (cell["runs"], cell["source"]) == ("2", "measured")
        assert f"{fmean(expected):.2f} ± {stdev(expected):.2f}" in text
    measured = [(name, TEST) for name in METHODS]
    measured += [("diffusion", one) for one in OTHER_STEP_POINTS if one.split == "test"]
    best = max(fmean(scores(output, "genia", *one)) for one in measured)
    assert f"**{best:.2f} ± " in text
    assert text.count("is ahead of") + text.count("is behind") + text.count("is level with") == 1


ALONE_TEST = point("score", "test", steps=0)


def test_the_initializer_alone_stands_beside_denoising(output):
    alone = fmean(scores(output, "genia", "diffusion", ALONE_TEST))
    name = "DiffusionNER, initializer alone"
    cell = cells(output / "nested.csv")["GENIA", name, "F1"]
    assert float(cell["mean"]) == pytest.approx(alone, rel=1e-5)
    dev = scores(output, "genia", "diffusion", ALONE_DEV)
    for file, row in (
        ("nested", ("GENIA", name, "dev F1")),
        ("efficiency", ("GENIA", name, "dev F1")),
        ("figures", ("F1 against speed: GENIA", name, "dev F1")),
    ):
        found = cells(output / f"{file}.csv")[row]
        assert float(found["mean"]) == pytest.approx(fmean(dev), rel=1e-5)
    assert cells(output / "efficiency.csv")["GENIA", name, "sentences/s"]["mean"]
    steps = cells(output / "steps.csv")
    assert steps["GENIA, from candidates: dev F1", "K = 30", "initializer alone"]["mean"]
    assert ("GENIA, from noise: dev F1", "K = 30", "initializer alone") not in steps
    ablations = cells(output / "ablations.csv")
    column = "GENIA, initializer alone"
    assert ablations["Parts of the decoder", "full decoder", column]["mean"]
    assert ("Parts of the decoder", "initializer without types", column) not in ablations
    assert "not yet recorded" not in (output / "nested.md").read_text()


def test_paired_differences_sum_the_seeds(output):
    runs = Records.load(output).select("genia", "diffusion", Variant())
    assert [run.seed for run in runs] == [0, 1]
    full, alone = (sum(run.counts(one) for run in runs) for one in (TEST, ALONE_TEST))
    (ours, _, gold), (theirs, *_) = full.sum(axis=0), alone.sum(axis=0)
    expected = 2 * (ours - theirs) / (2 * 10 * 2 + gold)  # two are predicted in each sentence
    found = cells(output / "nested.csv")
    row = "Paired differences on test", "GENIA: DiffusionNER − initializer alone"
    assert found[(*row, "difference")]["text"] == f"{100 * expected:+.2f}"
    assert found[(*row, "seeds")]["text"] == "2"
    low, high = (float(end) for end in found[(*row, "95% interval")]["text"].split(" to "))
    assert low <= 100 * expected <= high and 0 < float(found[(*row, "p")]["text"]) <= 1


def test_denoising_is_compared_with_the_initializer_and_the_rival(output):
    found = cells(output / "benefit.csv")
    for section, row, one in (
        ("F1 on test", "DiffusionNER, γ = 1", TEST),
        ("F1 on test", "DiffusionNER, γ = 5", point("score", "test", steps=5)),
        ("F1 on test", "initializer alone", ALONE_TEST),
        ("F1 on dev", "DiffusionNER, γ = 5 from noise", NOISY),
        ("F1 on test", "beliefs over the document", BELIEF_POINTS[1]),
    ):
        expected = run_scores(output, "diffusion", RECIPE, one)
        assert len(expected) == 2
        assert float(found[section, row, "GENIA"]["mean"]) == pytest.approx(fmean(expected), 1e-5)
    rival = METHODS["biaffine"].title
    expected = fmean(run_scores(output, "biaffine", RECIPE, TEST))
    assert float(found["F1 on test", rival, "GENIA"]["mean"]) == pytest.approx(expected, 1e-5)
    # Its differences are those of its own runs, not of the runs with the presets.
    records, pairs = Records.load(output), "Paired differences on test"
    runs = [
        records.select("genia", *one)
        for one in (("diffusion", RECIPE), ("biaffine", RECIPE), ("diffusion", Variant()))
    ]
    ours, theirs, plain = (sum(run.counts(TEST) for run in two).sum(axis=0) for two in runs)
    difference = 200 * (ours[0] - theirs[0]) / (ours[1] + ours[2])
    row = f"GENIA: DiffusionNER − {rival}"
    assert ours[0] != plain[0]
    assert found[pairs, row, "difference"]["text"] == f"{difference:+.2f}"
    assert cells(output / "nested.csv")[pairs, row, "difference"]["text"] != f"{difference:+.2f}"


def run_scores(output: Path, method: str, variant: Variant, one: Point) -> list[float]:
    runs = Records.load(output).select("genia", method, variant)
    return [100 * run.score(one) for run in runs]


def test_runs_of_denoising_that_are_not_recorded(output):
    for record in Records.load(output).select("genia", "diffusion", RECIPE):
        path_of(output, record.id).unlink()
    text = render.render(TABLES["benefit"], Records.load(output), output).texts["benefit.md"]
    assert "not yet recorded" in text
    assert "| GENIA: DiffusionNER − initializer alone | – | – | – | – |" in text
    expected = fmean(run_scores(output, "biaffine", RECIPE, TEST))
    assert f"| {METHODS['biaffine'].title} | {expected:.2f}" in text


def test_records_without_the_initializer_alone(output):
    """Those that were written before it existed: pages show a dash and say so."""
    for record in Records.load(output).all:
        points = {k: dict(v) for k, v in record.values["points"].items() if "steps=0" not in k}
        for result in points.values():
            result.pop("counts", None)
        write(output, Record(record.id, {**record.values, "points": points}))
    records, texts = Records.load(output), {}
    for table in find(["nested", "efficiency", "steps", "figures", "ablations"]):
        texts |= render.render(table, records, output).texts
        text = texts[f"{table.name}.md"]
        assert "it is not yet recorded" in text and "initializer alone" in text
    text = texts["nested.md"]
    assert "| DiffusionNER, initializer alone | – | – | – | – |" in text
    assert "| GENIA: DiffusionNER − initializer alone | – | – | – | – |" in text


def test_the_papers_numbers_are_included(output):
    cell = cells(output / "nested.csv")["GENIA", published.OURS, "F1"]
    assert (cell["mean"], cell["source"]) == ("81.53", "paper")
    ablations = cells(output / "ablations.csv")
    row = "linear, T = 1500"
    assert ablations["Variance schedule and T", row, "CoNLL03 (paper)"]["mean"] == "92.87"
    assert ablations["Variance schedule and T", row, "CoNLL03"]["source"] == "measured"
    assert (
        cells(output / "efficiency.csv")[
            "In the paper: ACE04, BERT-large, GeForce RTX 3090", "DiffusionNER, γ = 10", "speed-up"
        ]["mean"]
        == "18.74"
    )


def test_discontinuous_entities_are_scored_apart(output: Path):
    found = cells(output / "discontinuous.csv")
    runs = Records.load(output).select("cadec", "diffusion", Variant())
    gapped = [run.values["points"][TEST.name]["discontinuous"]["predicted"] for run in runs]
    assert len(runs) == 2

    def mean(row: str, column: str) -> float:
        return float(found["CADEC", row, column]["mean"])

    apart = fmean(100 * 2 * 10 / (predicted + 30) for predicted in gapped)
    rest = fmean(100 * 2 * 60 / (100 - predicted + 60) for predicted in gapped)
    assert mean("DiffusionNER", "F1, discontinuous") == pytest.approx(apart, rel=1e-4)
    assert mean("DiffusionNER", "F1, contiguous") == pytest.approx(rest, rel=1e-4)
    assert mean("without discontinuous entities", "F1") == pytest.approx(
        fmean(scores(output, "cadec", "diffusion", **{"decoder.discontinuous": False})), rel=1e-4
    )
    published_row = found["CADEC", "Dai et al. 2020 (ELMo)", "F1"]
    assert (published_row["source"], published_row["mean"]) == ("paper", "69")


def test_ablations_share_a_run_of_the_preset(output):
    found = cells(output / "ablations.csv")
    short = {"training.epochs": SHORT_EPOCHS}
    default = fmean(scores(output, "genia", "diffusion", DEV, **short))
    for section, row in (
        ("Parts of the decoder", "full decoder"),
        ("Variance schedule and T", "cosine, T = 1000"),
        ("Expansion and K", "repetition, K = 60"),
        ("Encoder", "e5-small"),
    ):
        assert float(found[section, row, "GENIA"]["mean"]) == pytest.approx(default, rel=1e-5)
    noisy = fmean(scores(output, "genia", "diffusion", NOISY, **short))
    cell = found["Encoder", "e5-small", "GENIA, from noise"]
    assert float(cell["mean"]) == pytest.approx(noisy, rel=1e-5)
    changes = {**short, "diffusion.expansion": "random", "diffusion.spans": 120}
    other = fmean(scores(output, "genia", "diffusion", DEV, **changes))
    cell = found["Expansion and K", "random, K = 120", "GENIA"]
    assert float(cell["mean"]) == pytest.approx(other, rel=1e-5)


def test_speed_up_is_against_the_autoregressive_rival(output):
    records = [r for r in Records.load(output).all if r.corpus == "conll03" and r.seed == 0]
    slow = next(r for r in records if r.method == "autoregressive" and r.has(SPEED)).speed(SPEED)
    ours = next(r for r in records if r.method == "diffusion" and r.has(SPEED_AT_5))
    cell = cells(output / "efficiency.csv")[
        "CoNLL03", "DiffusionNER from candidates, γ = 5", "speed-up"
    ]
    assert float(cell["mean"]) == pytest.approx(ours.speed(SPEED_AT_5) / slow, rel=1e-4)
    shapes = {r.method: r for r in Records.load(output).all if r.values["shape"]}
    slow = shapes["autoregressive"].speed(shape_point(None))
    cell = cells(output / "efficiency.csv")[
        "Shape of bert-large, random weights", "DiffusionNER, γ = 10", "speed-up"
    ]
    fast = shapes["diffusion"].speed(shape_point(10))
    assert float(cell["mean"]) == pytest.approx(fast / slow, rel=1e-4)


def test_speed_up_without_cuda_graphs(output):
    records = [r for r in Records.load(output).all if r.corpus == "genia" and r.seed == 0]
    slow, fast = (
        next(r for r in records if r.method == method and r.has(one)).speed(one)
        for method, one in (
            ("autoregressive", UNRECORDED_SPEED),
            ("diffusion", UNRECORDED_POINTS[1]),
        )
    )
    found = cells(output / "efficiency.csv")
    row = "GENIA, without CUDA graphs", "DiffusionNER from candidates, γ = 5"
    assert float(found[(*row, "sentences/s")]["mean"]) == pytest.approx(fast, rel=1e-4)
    assert float(found[(*row, "speed-up")]["mean"]) == pytest.approx(fast / slow, rel=1e-4)


def test_speeds_of_another_version_are_not_compared(output):
    (record,) = Records.load(output).select("genia", "crf", Variant(), shape="bert-large")
    write(output, Record(record.id, {**record.values, "commit": "def5678"}))
    render.write([TABLES["efficiency"]], output)
    found = cells(output / "efficiency.csv")
    section, other = "Shape of bert-large, random weights", "tagging (CRF), timed by def5678"
    assert float(found[section, other, "sentences/s"]["mean"]) > 0
    assert (section, other, "speed-up") not in found
    assert (section, "DiffusionNER, γ = 5", "speed-up") in found


SPEED_AT_5 = point("speed", steps=5)


def test_epochs_to_convergence(output):
    runs = [
        r
        for r in Records.load(output).all
        if r.id.startswith("genia-crf-s") and not r.values["changes"]
    ]
    first = []
    for run in runs:
        best = max(epoch["f1"] for epoch in run.epochs)
        first.append(min(e["epoch"] for e in run.epochs if e["f1"] >= 0.99 * best))
        assert 1 < first[-1] < len(run.epochs)
    key = ("Until 99% of the best dev F1", METHODS["crf"].title)
    found = cells(output / "limitations.csv")
    assert float(found[(*key, "GENIA: epochs")]["mean"]) == pytest.approx(fmean(first))
    minutes = fmean(first) * 0.5  # thirty seconds each
    assert float(found[(*key, "GENIA: GPU-minutes")]["mean"]) == pytest.approx(minutes)


def test_files_agree_until_a_number_is_changed(output):
    assert render.disagreements(output) == []
    path = output / "nested.md"
    text = path.read_text()
    line = next(i for i, one in enumerate(text.splitlines(), 1) if "| DiffusionNER |" in one)
    digit = text.index("±", text.index("| DiffusionNER |")) - 2
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
    assert render.disagreements(output) == [f"{path}, line {line}: does not agree with the records"]


def test_files_disagree_when_a_record_is_changed(output):
    run = next(r for r in Records.load(output).all if r.has(TEST) and r.corpus == "conll03")
    values = json.loads(json.dumps(run.values))
    values["points"][TEST.name]["micro"]["f1"] += 0.01
    path = path_of(output, run.id)
    path.write_text(json.dumps(values))
    wrong = " ".join(render.disagreements(output))
    for name in ("flat.md", "flat.csv", "flat.png", "flat.svg"):
        assert f"{output / name}" in wrong
    assert "nested" not in wrong


def test_files_of_every_table(output):
    for name in TABLES:
        assert (output / f"{name}.md").exists() and (output / f"{name}.csv").exists()
    without = {"figures", "efficiency", "tuning", "benefit", "discontinuous"}
    for name in set(TABLES) - without | {"denoising", "f1-against-speed"}:
        assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (output / f"{name}.svg").read_text()
    for path in (output / "records").glob("conll03-*"):
        path.unlink()
    for path in (output / "records").glob("msra-*"):
        path.unlink()
    assert f"{output / 'flat.md'}: has no runs" in render.disagreements(output)


def test_the_same_records_give_the_same_bytes(output):
    names = [path for path in output.iterdir() if path.is_file()]
    before = {path: path.read_bytes() for path in names}
    render.write(find(["nested", "figures"]), output)
    assert {path: path.read_bytes() for path in names} == before


def looks(*panels: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return marker and colour of each series, given the series of each panel."""
    series = [[{"name": name, "x": [1, 2], "y": [3.0, 4.0]} for name in names] for names in panels]
    about = {"title": "", "xlabel": "", "ylabel": "sentences/s"}
    data = {"columns": 2, "panels": [{**about, "series": one} for one in series]}
    figure = plots.lines(data)
    found: dict[str, tuple[str, str]] = {}
    for chart in figure.axes:
        for line in chart.get_lines():
            look = (line.get_marker(), line.get_color())
            assert found.setdefault(line.get_label(), look) == look, "the same in every panel"
    return found


def test_series_have_distinct_styles():
    titles = tuple(method.title for method in METHODS.values())
    kinds = ("DiffusionNER from noise", "DiffusionNER from candidates")
    everything = looks(titles)
    cases = [looks(("K = 10", "K = 30", "K = 60"), ("K = 60",)), looks(titles[1:4], kinds)]
    for found in (everything, *cases):
        assert len(set(found.values())) == len(found)
    assert all(everything[name] == look for name, look in cases[1].items() if name in everything)
    assert cases[1][kinds[0]] == everything[titles[0]]


def test_notes_are_included(output):
    (output / "notes").mkdir()
    (output / "notes" / "flat.md").write_text("Why it is so.\n")
    assert render.disagreements(output) != []
    render.write(find(["flat"]), output)
    assert "\n\nWhy it is so.\n\n" in (output / "flat.md").read_text()


def test_the_latest_recipe_counts(tmp_path):
    output = tmp_path / "out"
    old = write_records(output, jobs("flat", sources(tmp_path), only=["conll03/diffusion"]))
    other = sources(tmp_path, None, "training.epochs=3")
    new = write_records(output, jobs("flat", other, only=["conll03/diffusion"]))[0]
    assert old[0].id != new.id
    for record, date in ((old[0], "2026-01-01"), (new, "2026-01-02")):
        write(output, type(new)(record.id, {**record.values, "date": date}))
    render.write(find(["flat"]), output)
    cell = cells(output / "flat.csv")["CoNLL03", METHODS["diffusion"].title, "F1"]
    assert float(cell["mean"]) == pytest.approx(100 * new.score(TEST), rel=1e-5)
    assert cell["runs"] == "1"


def test_a_setting_added_later_does_not_change_the_recipe(tmp_path):
    output = tmp_path / "out"
    made = jobs("flat", sources(tmp_path), 2, only=["conll03/diffusion"])
    first, second = write_records(output, made)[:2]
    assert first.recipe == second.recipe
    older = json.loads(json.dumps(first.values))
    del older["settings"]["training"]["layer_decay"]  # at its default
    write(output, type(first)(first.id, older))
    render.write(find(["flat"]), output)
    cell = cells(output / "flat.csv")["CoNLL03", METHODS["diffusion"].title, "F1"]
    assert cell["runs"] == "2"


def test_a_broken_record_is_reported(output):
    path = next((output / "records").iterdir())
    path.write_text("{}")
    with pytest.raises(DataError, match=path.name):
        read(path)


def test_rendering_needs_no_torch(output):
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from reproduce.cli import main\n"
        f"sys.argv = ['reproduce', 'render', '--check', '--output', {str(output)!r}]\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "all files agree" in done.stdout


def test_committed_pages_agree_with_their_records():
    assert (COMMITTED / "README.md").exists()
    assert render.disagreements(COMMITTED) == []


def test_committed_records_are_found_by_their_key():
    """Otherwise `python -m reproduce` would repeat the runs."""
    records = Records.load(COMMITTED).all
    assert records
    for record in records:
        assert record.id.endswith(f"-{run_key(record.values)}"), record.id
