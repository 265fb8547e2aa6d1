"""`diffusionner data ...`: what users see, get as files, and as exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from diffusionner import formats
from diffusionner.cli import main
from diffusionner.data.fingerprint import fingerprint

NESTED = '{"doc": "a", "tokens": ["the", "IL-2", "gene"], "entities": [{"start": 0, "end": 3, "label": "DNA"}, {"start": 1, "end": 2, "label": "protein"}]}'  # fmt: skip  # noqa: E501
FLAT = '{"doc": "b", "tokens": ["[bold]", "met", "Ada"], "entities": [{"start": 2, "end": 3, "label": "[PER]"}]}'  # fmt: skip  # noqa: E501
CROSSING = '{"tokens": ["a", "b", "c"], "entities": [{"start": 0, "end": 2, "label": "X"}, {"start": 1, "end": 3, "label": "X"}]}'  # fmt: skip  # noqa: E501


class Result(NamedTuple):
    status: int
    out: str
    err: str

    def row(self, heading: str) -> list[str]:
        """The cells of a table's row."""
        lines = [line for line in self.out.splitlines() if line.startswith("│")]
        rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
        return next(row[1:] for row in rows if row[0] == heading)


@pytest.fixture
def data(monkeypatch, capsys) -> Callable[..., Result]:
    """`diffusionner data ...` in this process."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["diffusionner", "data", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as done:
            status = done.code or 0
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text(f"{NESTED}\n{FLAT}\n")
    return path


def test_help(data):
    result = data("--help")
    assert result.status == 0
    for command in ("stats", "convert", "split", "check", "formats"):
        assert command in result.out
        assert data(command, "--help").status == 0
    assert "Exit status: 0 if there are no errors, 1 if" in data("check", "--help").out


def test_formats_lists_every_format(data, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    result = data("formats")
    assert result.status == 0
    for format in formats.FORMATS.values():
        assert format.summary in result.row(format.name)
    assert result.row("conll")[0] == "file" and result.row("brat")[0] == "folder"
    assert result.row("genia")[0] == "no"
    assert "scheme=iob2" in result.out


# --- stats ------------------------------------------------------------------------------------


def test_stats(data, corpus, tmp_path):
    other = tmp_path / "other.conll"
    other.write_text("Rome B-LOC\nfell O\n")
    report = tmp_path / "report.json"
    result = data("stats", corpus, other, "--json", report)
    assert (result.status, result.err) == (0, "")
    assert result.row("sentences") == ["2", "1"]
    assert result.row("sentences with nested entities") == ["1", "0"]
    assert result.row("nested entities") == ["2", "0"]
    assert result.row("nesting ratio (%)") == ["66.67", "0.00"]
    assert result.row("average sentence length") == ["3.00", "2.00"]
    assert result.row("average entities") == ["1.50", "1.00"]
    assert result.row("[PER]") == ["1 (33.3%)", "0 ( 0.0%)"]
    found = fingerprint(formats.read(corpus))
    assert f"{corpus}: {found}" in result.out
    first, second = json.loads(report.read_text())
    assert (first["file"], first["fingerprint"]) == (str(corpus), found.to_dict())
    assert second["labels"] == {"LOC": 1}


def test_stats_of_irregular_annotations(data, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "abc def", "entities": [{"start": 1, "end": 3, "label": "X"}]}\n')
    assert data("stats", path).row("irregular") == ["1"]


def test_stats_plot(data, refused, corpus, tmp_path):
    pytest.importorskip("matplotlib")
    assert data("stats", corpus, "--plot", tmp_path / "a.svg").status == 0
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert "a plot must be one of" in refused("data", "stats", corpus, "--plot", tmp_path / "a.gif")


def test_stats_of_a_broken_file(refused, corpus):
    corpus.write_text(NESTED + "\n" + FLAT[:-5])
    assert f"{corpus}:2: not valid JSON" in refused("data", "stats", corpus)
    assert "unknown format 'jsnl'; did you mean" in refused(
        "data", "stats", corpus, "--format", "jsnl"
    )


# --- convert ----------------------------------------------------------------------------------


def test_convert_there_and_back(data, corpus, tmp_path):
    middle, back = tmp_path / "a.conll", tmp_path / "back.jsonl"
    result = data("convert", corpus, middle, "--to", "conll:scheme=bioes")
    assert (result.status, result.err) == (0, "")
    assert result.out == f"{corpus} (jsonl) -> {middle} (conll): 2 sentences, 3 entities\n"
    assert "S-protein" in middle.read_text()
    assert data("convert", middle, back, "--from", "conll").status == 0
    assert fingerprint(formats.read(back)) == fingerprint(formats.read(corpus))


def test_convert_says_what_is_left_out(data, refused, tmp_path):
    source, target = tmp_path / "a.jsonl", tmp_path / "b.conll"
    text = '{"text": "abc def", "entities": [{"start": 1, "end": 3, "label": "X"}, {"start": 4, "end": 7, "label": "X"}]}\n'  # fmt: skip  # noqa: E501
    source.write_text(text)
    err = refused("data", "convert", source, target)
    assert f"{source}:1: entity X at characters 1-3" in err and "--lossy" in err
    assert not target.exists()
    result = data("convert", source, target, "--lossy")
    assert result.status == 0
    assert "1 sentences, 1 entities" in result.out
    lost = "dropped 1 of 2 entities (0 that overlap others, 0 discontinuous, 1 misaligned)"
    assert lost in result.out
    assert "conll stores only words, not the white space between them" in result.out


GAPPED = (
    '{"tokens": ["a", "b", "c"], "entities": [{"label": "X", "fragments": [[0, 1], [2, 3]]}]}\n'
)


def test_convert_counts_discontinuous_entities(data, refused, tmp_path):
    source, target = tmp_path / "a.jsonl", tmp_path / "b.conll"
    source.write_text(GAPPED + '{"tokens": ["a"], "entities": []}\n')
    err = refused("data", "convert", source, target)
    assert f"{source}:1: entity X [0, 1), [2, 3) is discontinuous, which format conll" in err
    assert not target.exists()
    assert "2 sentences, 0 entities" in (out := data("convert", source, target, "--lossy").out)
    assert "dropped 1 of 1 entities (0 that overlap others, 1 discontinuous, 0 misaligned)" in out
    out = data("convert", source, tmp_path / "folder", "--to", "brat").out
    assert "2 sentences, 1 entities" in out and "dropped" not in out


def test_stats_and_split_of_discontinuous_entities(data, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(GAPPED * 8)
    shown = data("stats", path)
    assert [shown.row(name) for name in ("discontinuous", "maximum fragments")] == [["8"], ["2"]]
    parts = data("split", path, tmp_path / "parts", "--parts", "one=0.75,two=0.25")
    assert parts.row("discontinuous") == ["6 (75.00%)", "2 (25.00%)"]


def test_check_shows_the_ceiling_with_discontinuous_entities(data, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(GAPPED)
    assert data("check", path).row("F1 ceiling") == ["100.00"]
    without = data("check", path, "decoder.discontinuous=false")
    assert without.row("F1 ceiling") == ["0.00"]
    assert without.row("more fragments than the model predicts") == ["1"]
    assert "decoder.discontinuous=false" in without.out


def test_convert_lossy_overlaps(data, refused, tmp_path):
    """CoNLL-2012 has one bracketed column, in which entities cannot cross."""
    source, target = tmp_path / "a.jsonl", tmp_path / "b.conll"
    source.write_text(CROSSING + "\n")
    assert "overlap" in refused("data", "convert", source, target, "--to", "ontonotes")
    result = data("convert", source, target, "--to", "ontonotes", "--lossy")
    assert "dropped 1 of 2 entities (1 that overlap others, 0 discontinuous" in result.out


def test_convert_onto_itself_is_refused(refused, corpus, tmp_path):
    before = corpus.read_bytes()
    link = tmp_path / "link.jsonl"
    link.symlink_to(corpus)
    for target in (corpus, tmp_path / "." / "corpus.jsonl", link):
        assert "is the same file as the input" in refused("data", "convert", corpus, target)
    assert corpus.read_bytes() == before


def test_reading_and_writing_one_file_loses_nothing(corpus):
    """Only the command refuses it; the library can stream a file onto itself."""
    lines = [NESTED, FLAT] * 3_000  # more than any buffer holds
    corpus.write_text("\n".join(lines) + "\n")
    before = fingerprint(formats.iterate(corpus))
    formats.write(corpus, formats.iterate(corpus))
    assert fingerprint(formats.iterate(corpus)) == before


@pytest.mark.parametrize("bad", ["{", '{"tokens": 5}', '{"tokens": ["\\ud800"]}'])
def test_convert_fails_whole(refused, corpus, tmp_path, bad):
    corpus.write_text(f"{NESTED}\n{bad}\n{FLAT}\n")
    target = tmp_path / "out.conll"
    target.write_text("old")
    assert f"{corpus}:2: " in refused("data", "convert", corpus, target)
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus.jsonl", "out.conll"]


def test_convert_to_nowhere(refused, corpus, tmp_path):
    assert "extension does not determine" in refused("data", "convert", corpus, tmp_path / "a.xyz")
    assert "is read-only" in refused("data", "convert", corpus, tmp_path / "a", "--to", "genia")
    assert "no such file" in refused("data", "convert", tmp_path / "gone", tmp_path / "a.jsonl")


# --- split ------------------------------------------------------------------------------------


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "all.jsonl"
    lines = [
        json.dumps(
            {
                "doc": f"d{doc}",
                "tokens": ["w", str(doc), str(number)],
                "entities": [{"start": 0, "end": 1 + number % 2, "label": "XY"[doc % 2]}],
            }
        )
        for doc in range(20)
        for number in range(5)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_split(data, documents, tmp_path):
    result = data("split", documents, tmp_path / "out", "--parts", "train=0.8,test=0.2")
    assert (result.status, result.err) == (0, "")
    assert result.row("documents") == ["16 (80.00%)", "4 (20.00%)"]
    assert result.row("X") == result.row("Y") == ["40 (80.00%)", "10 (20.00%)"]
    train = formats.read(tmp_path / "out" / "train.jsonl")
    test = formats.read(tmp_path / "out" / "test.jsonl")
    assert not {s.doc for s in train} & {s.doc for s in test}
    assert sorted(tuple(s.words) for s in train + test) == sorted(
        tuple(s.words) for s in formats.read(documents)
    )
    first = (tmp_path / "out" / "test.jsonl").read_bytes()
    data("split", documents, tmp_path / "out", "--parts", "train=0.8,test=0.2")
    assert (tmp_path / "out" / "test.jsonl").read_bytes() == first
    data("split", documents, tmp_path / "out", "--parts", "train=0.8,test=0.2", "--seed", 1)
    assert (tmp_path / "out" / "test.jsonl").read_bytes() != first


def test_split_into_another_format(data, documents, tmp_path):
    assert data("split", documents, tmp_path, "--to", "conll").status == 0
    assert sorted(p.name for p in tmp_path.glob("*.conll")) == [
        "dev.conll",
        "test.conll",
        "train.conll",
    ]
    # Without documents: every sentence for itself, in the format and extension of the input.
    plain = tmp_path / "plain.tsv"
    plain.write_text("Rome B-LOC\n\n" * 10)
    result = data("split", plain, tmp_path / "plain", "--parts", "a=0.7,b=0.3")
    assert result.row("sentences") == ["7 (70.00%)", "3 (30.00%)"]
    assert (tmp_path / "plain" / "b.tsv").read_text().count("Rome") == 3


def test_impossible_splits(refused, documents, corpus, tmp_path):
    assert "2 documents" in refused("data", "split", corpus, tmp_path / "out")
    assert "sum to 0.9" in refused("data", "split", corpus, tmp_path, "--parts", "a=0.5,b=0.4")
    err = refused("data", "split", documents, tmp_path, "--parts", "all=0.5,b=0.5")
    assert "is the same file as the input" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.jsonl", "corpus.jsonl"]


# --- check ------------------------------------------------------------------------------------


def test_check_status(data, corpus, tmp_path):
    result = data("check", corpus, "--rare", 0)
    assert (result.status, result.err) == (0, "")
    assert result.row("F1 ceiling") == ["100.00"]
    assert "0 errors, 0 warnings, 0 notes" in result.out

    corpus.write_text(CROSSING + "\n")
    assert data("check", corpus).status == 0
    result = data("check", corpus, "--strict")
    assert result.status == 1
    assert f"{corpus}:1: warning: X 'a b' [0, 2) and X 'b c' [1, 3) cross" in result.out
    assert result.row("F1 ceiling") == ["66.67"]  # one of two: recall 1/2, precision 1

    corpus.write_text(CROSSING + "\n" + NESTED.replace('"end": 3', '"end": 4') + "\n")
    result = data("check", corpus)
    assert result.status == 2
    assert f"{corpus}:2: error: entity DNA [0, 4) lies outside its sentence" in result.out
    assert "1 error, 1 warning, 2 notes" in result.out


def test_check_settings(data, refused, corpus, tmp_path):
    assert data("check", corpus, "inference.overlap=flat").row("F1 ceiling") == ["80.00"]  # 2 of 3
    result = data("check", "inference.spans=1", corpus, "inference.overlap=all")
    assert result.row("more than inference.spans") == ["1"]
    assert "did you mean 'inference.overlap'" in refused(
        "data", "check", corpus, "inference.overlab=flat"
    )
    odd = tmp_path / "a=b"
    corpus.rename(odd)
    assert data("check", odd).status == 0


def test_check_places(data, tmp_path):
    path, report = tmp_path / "a.jsonl", tmp_path / "report.json"
    path.write_text((CROSSING + "\n") * 5)
    result = data("check", path)
    assert result.out.count(": warning: ") == 3
    assert "... 2 more (crossing); --all shows them" in result.out
    result = data("check", path, "--all")
    assert result.out.count(": warning: ") == 5
    result = data("check", path, "--json", report)
    assert result.out.count(": warning: ") == 3
    written = json.loads(report.read_text())
    assert written["counts"] == {"crossing": 5}
    assert [f["where"] for f in written["findings"]] == [f"{path}:{i}" for i in range(1, 6)]
    assert written["files"][0]["f1_ceiling"] == pytest.approx(2 / 3, abs=1e-6)
    assert written["files"][0]["fingerprint"]["sentences"] == 5


def test_check_leakage(data, corpus, tmp_path):
    test = tmp_path / "test.jsonl"
    test.write_text(FLAT.replace('"b"', '"c"') + "\n")
    for arguments in ((corpus, test), (test, "--train", corpus), (test, "--against", corpus)):
        result = data("check", *arguments, "--strict")
        assert result.status == 1
        assert f"{test}:1: warning: '[bold] met Ada' also occurs at {corpus}:2" in result.out
    corpus.write_text(NESTED + "\n")
    assert data("check", test, "--train", corpus).status == 2  # label [PER] is unknown then
    assert data("check", test, "--against", corpus, "--strict").status == 0


def test_check_the_corpora_of_a_config(data, corpus, tmp_path, encoder_folder):
    dev = tmp_path / "dev.jsonl"
    dev.write_text(CROSSING + "\n")
    config = tmp_path / "config.yaml"
    values = {
        "data": {"train": str(corpus), "dev": str(dev)},
        "encoder": {"name": str(encoder_folder), "max_subwords": 16},
    }
    config.write_text(yaml.safe_dump(values))
    assert data("check", "--config", config, "data.format=conll").status == 2
    result = data("check", "--config", config)
    assert result.status == 2
    assert f"{dev}:1: error: label X does not occur in the training corpus" in result.out
    assert "lengths are in words" not in result.out
    # One file alone, with the settings of the config: 11 subwords of at most 14.
    result = data("check", "--config", config, corpus)
    assert (result.status, "subwords, but" in result.out) == (0, False)
    corpus.write_text(NESTED.replace("IL-2", "interleukin-2") + "\n")
    result = data("check", "--config", config, corpus)
    assert f"{corpus}:1: warning: 20 subwords, but the encoder reads at most 14" in result.out
    result = data("check", "--config", config, corpus, "encoder.name=nobody/has-this")
    assert "the tokenizer of 'nobody/has-this' is not on this machine" in result.out


def test_check_nothing(refused, corpus, tmp_path):
    assert "give files to check" in refused("data", "check")
    assert "give files to check" in refused("data", "check", "inference.overlap=flat")
    assert "unknown format" in refused("data", "check", corpus, "--format", "nope")
    assert "no such file" in refused("data", "check", corpus, "--train", tmp_path / "gone.jsonl")


def test_check_reports_a_missing_file_and_goes_on(data, corpus, tmp_path):
    result = data("check", tmp_path / "gone.jsonl", corpus)
    assert result.status == 2
    assert "gone.jsonl: error: no such file" in result.out
    assert result.row("gold entities") == ["0", "3"]
    assert result.row("F1 ceiling") == ["-", "100.00"]
