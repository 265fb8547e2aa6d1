"""The runs that tables need: shared runs appear once, identified by content, not location."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from reproduction import jobs, sources, write_corpora, write_records

from diffusionner.errors import SettingsError
from diffusionner.settings import Settings
from reproduce.cli import main
from reproduce.corpora import CORPORA, METHODS
from reproduce.plan import check_encoders, plan
from reproduce.records import Records
from reproduce.sources import Sources
from reproduce.tables import BELIEF_POINTS, DEV, NOISY, TEST, find

CONFIGS = Path(__file__).parents[1] / "configs"


def by_name(found) -> dict[str, object]:
    return {job.name: job for job in found}


def test_runs_of_several_tables_are_shared(tmp_path):
    where = sources(tmp_path)
    together = jobs("all", where, seeds=2)
    apart = {job.key for name in ("nested", "flat", "steps") for job in jobs(name, where, 2)}
    assert apart <= {job.key for job in together}
    assert len({job.key for job in together}) == len(together)
    genia = by_name(together)["genia/diffusion/default/0"]
    wanted = set(jobs("steps", where)[0].points) | {DEV.name, TEST.name}
    assert wanted <= set(genia.points)


def test_only_results_tables_score_test(tmp_path):
    where = sources(tmp_path)
    for name in ("efficiency", "steps", "spans", "ablations", "convergence", "limitations"):
        assert all(TEST.name not in job.points for job in jobs(name, where))
    for job in jobs("all", where):
        assert "data.test=null" in job.overrides


@pytest.mark.parametrize(("method", "measured"), [("diffusion", 9), ("biaffine", 2)])
def test_runs_of_the_denoising_table_are_separate(tmp_path, method, measured):
    where = sources(tmp_path)
    found = [job for job in jobs("benefit", where) if job.method == method]
    plain = by_name(jobs("nested", where))[f"genia/{method}/default/0"]
    (job,) = (job for job in found if job.corpus == "genia")
    assert job.settings["encoder"]["passage_words"] == 160
    assert job.settings["training"]["consistency"] == 1 and job.key != plain.key
    assert {DEV.name, TEST.name} <= set(job.points) and len(job.points) == measured
    beliefs = {one.name for one in BELIEF_POINTS}
    assert (NOISY.name in job.points) == (beliefs <= set(job.points)) == (method == "diffusion")


def test_every_ablation_is_a_separate_run(tmp_path):
    found = jobs("ablations", sources(tmp_path), only=["genia"])
    # The preset, one encoder, six parts, five of six schedules, five of six expansions.
    assert len(found) == 1 + 1 + 6 + 5 + 5
    changes = by_name(found)["genia/diffusion/epochs=3+schedule=linear+timesteps=1000/0"].changes
    assert changes == {"diffusion.schedule": "linear", "training.epochs": 3}


def test_speed_is_measured_on_short_runs_with_one_seed(tmp_path):
    for table in find(["efficiency", "steps"]):
        found = jobs(table, sources(tmp_path), 3)
        kinds = {job.name: {one.kind for one in job.points.values()} for job in found}
        timed = {name for name, measured in kinds.items() if "speed" in measured}
        assert timed and all(kinds[name] == {"speed"} for name in timed)
        assert all(name.endswith(("/epochs=3/0", "/bert-large/0")) for name in timed)
        assert any(name.endswith("/default/2") for name in kinds)


def test_a_rival_may_have_its_own_learning_rates(tmp_path):
    def rate(job):
        return job.settings["training"]["encoder_learning_rate"]

    where = sources(tmp_path)
    by = {(job.corpus, job.method): job for job in jobs("nested", where)}
    preset = rate(by["genia", "diffusion"])
    assert rate(by["genia", "queries"]) == METHODS["queries"].rates["genia"] != preset
    assert by["genia", "queries"].settings["training"]["learning_rate"] == 5e-4
    assert by["genia", "queries"].changes == {}  # part of the method, not a change of the row
    assert rate(by["genia", "crf"]) == preset  # no rate given for this corpus
    shapes = {job.method: job for job in jobs("efficiency", where) if job.shape}
    assert rate(shapes["queries"]) == rate(shapes["diffusion"])


def test_tuning_with_the_presets_rates_shares_the_timed_run(tmp_path):
    found = jobs("tuning", sources(tmp_path), only=["genia"])
    same = [job for job in found if job.changes == {"training.epochs": 3}]
    timed = [
        job for job in jobs("efficiency", sources(tmp_path)) if job.name.endswith("/epochs=3/0")
    ]
    assert {job.key for job in same} == {job.key for job in timed if job.corpus == "genia"}
    assert len(same) == len(METHODS) and len(found) == 3 * len(METHODS)


def test_the_first_seed_of_all_runs_comes_first(tmp_path):
    seeds = [job.seed for job in jobs("nested", sources(tmp_path), seeds=3)]
    assert seeds == sorted(seeds) and set(seeds) == {0, 1, 2}


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["genia/crf"], {"genia/crf/default/0", "genia/crf/default/1"}),
        (["*/crf/*/1", "genia/queries/*/0"], {"genia/crf/default/1", "genia/queries/default/0"}),
        (["*/*/*/0"], {f"genia/{method}/default/0" for method in METHODS}),
        (["gen"], set()),
    ],
)  # fmt: skip
def test_only(tmp_path, patterns, expected):
    assert set(by_name(jobs("nested", sources(tmp_path), 2, patterns))) == expected


def test_matches_of_the_first_pattern_run_first(tmp_path):
    patterns = ["*/queries/*/1", "*/crf", "*/queries"]
    found = [job.name for job in jobs("nested", sources(tmp_path), 2, patterns)]
    ends = ["queries/default/1", "crf/default/0", "crf/default/1", "queries/default/0"]
    assert found == [f"genia/{end}" for end in ends]


def test_the_key_depends_on_content_only(tmp_path):
    def key(*changes: str, where: Sources | None = None) -> str:
        found = jobs("flat", where or sources(tmp_path, None, *changes), only=["conll03/diffusion"])
        return found[0].key

    before = key()
    assert key("training.epochs=3") != before
    assert key("training.checkpoint_minutes=9") == before
    shutil.copytree(tmp_path / "data", tmp_path / "moved" / "data")
    shutil.copytree(tmp_path / "encoders", tmp_path / "moved" / "encoders")
    assert key(where=sources(tmp_path / "moved")) == before
    file = tmp_path / "data" / "conll03" / "train.jsonl"
    file.write_text(file.read_text() + '{"tokens": ["Ada"], "entities": []}\n')
    assert key() != before


def test_a_missing_corpus_is_reported_and_skipped(tmp_path):
    where = sources(tmp_path)
    found = plan(find(["nested"]), 1, where)
    assert {job.corpus for job in found.jobs} == {"genia"}
    assert any(line.startswith("LitBank: no ") and "train.jsonl" in line for line in found.missing)
    assert any("ACE04" in line and "LDC" in line for line in found.missing)
    (tmp_path / "data" / "conll03" / "dev.jsonl").write_text("not JSON\n")
    found = plan(find(["convergence"]), 1, where)
    assert {job.corpus for job in found.jobs} == {"genia"}
    assert any(line.startswith("CoNLL03: ") and "dev.jsonl" in line for line in found.missing)


def test_a_corpus_smaller_than_its_dev_is_reported(tmp_path):
    found = plan(find(["nested"]), 1, sources(tmp_path, None, "data.dev_from_train=5000"))
    assert not found.jobs
    assert any("GENIA" in line and "--set data.dev_from_train" in line for line in found.missing)


def test_a_label_missing_in_training_is_reported(tmp_path):
    where = sources(tmp_path)
    test = where.data / "conll03" / "test.jsonl"
    test.write_text(test.read_text("utf-8").replace('"LOC"', '"LAKE"'), encoding="utf-8")
    found = plan(find(["steps"]), 1, where)
    assert {job.corpus for job in found.jobs} == {"genia"}
    (missing,) = found.missing
    assert missing.startswith(f"CoNLL03: {test}:") and "unknown label 'LAKE'" in missing


def test_encoders_by_folder(tmp_path, encoder_folder):
    for name in ("minilm-l6", "m3e-small-zh", "bert"):
        shutil.copytree(encoder_folder, tmp_path / "many" / name)
    data = write_corpora(tmp_path / "data")

    def places(*given: object) -> dict[str, tuple[str, str]]:
        found = Sources(data, CONFIGS, tuple(map(str, given)), tmp_path / "work").places
        return {name: (place.name, place.place) for name, place in found.items()}

    many = places(tmp_path / "many")
    assert many["m3e-small"] == ("m3e-small", str(tmp_path / "many" / "m3e-small-zh"))
    assert many["e5-small"] == ("e5-small", "intfloat/e5-small")
    bert = places(tmp_path / "many" / "bert", tmp_path / "many" / "minilm-l6")
    assert bert["e5-small"] == ("bert", str(tmp_path / "many" / "bert"))
    assert bert["minilm-l6"][1] == str(tmp_path / "many" / "minilm-l6")
    with pytest.raises(SettingsError, match="only the first"):
        places("hub/one", "hub/two")
    with pytest.raises(SettingsError, match="neither an encoder"):
        places(data)


def test_a_missing_encoder_is_reported_once(tmp_path, encoder_folder):
    where = sources(tmp_path, encoder_folder)
    (tmp_path / "minilm-l6").mkdir()
    there = Sources(where.data, CONFIGS, (str(encoder_folder),), where.work, where.overrides)
    assert check_encoders(jobs("convergence", there), there) == {}
    lost = Sources(where.data, CONFIGS, (str(tmp_path / "no-such"),), where.work, where.overrides)
    assert list(check_encoders(jobs("convergence", lost), lost)) == ["e5-small"]


def test_held_out_dev_is_written_for_evaluation(tmp_path):
    where = sources(tmp_path)
    path, format = where.file("genia", "dev")
    assert format is None
    whole = (where.data / "genia" / "train_dev.jsonl").read_text().splitlines()
    assert len(path.read_text().splitlines()) == 10
    assert where.fingerprints("genia")["train"]["sentences"] == len(whole) - 10
    assert where.sentences("genia", "dev") == where.sentences("genia", "dev")[:10]


def test_records_are_selected_without_configs(tmp_path):
    output = tmp_path / "out"
    made = jobs("ablations", sources(tmp_path), seeds=2)
    write_records(output, made)
    records = Records.load(output)
    needs = find(["ablations"])[0].needs
    for need in needs:
        for corpus in need.corpora:
            for variant in need.variants:
                runs = records.select(corpus, "diffusion", variant)
                assert [run.seed for run in runs] == [0, 1], variant


@pytest.mark.parametrize("corpus", CORPORA.values(), ids=lambda corpus: corpus.name)
def test_presets(corpus):
    """All presets use data/, the encoder of the tables, an initializer and candidates."""
    settings = Settings.load(CONFIGS / f"{corpus.preset}.yaml")
    assert settings.data.train.startswith("data/") and settings.data.test.startswith("data/")
    assert settings.data.dev or settings.data.dev_from_train
    assert Path(settings.encoder.name).name == corpus.encoder
    assert settings.decoder.initializer and settings.inference.start == "candidates"


def test_an_unknown_table(refused):
    assert "did you mean 'nested'?" in refused("nestd", main=main)
    assert "did you mean 'nested'?" in refused("render", "nestd", main=main)
