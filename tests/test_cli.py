"""The command line: end to end in separate processes, details in this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import Result, assert_short
from corpus_files import EXCERPT
from plain import plain
from services import until

from diffusionner import DiffusionNER, __version__, formats
from diffusionner.cli import _install_command
from diffusionner.evaluation.scorer import score
from diffusionner.settings import describe
from diffusionner.training.trainer import Trainer
from models import written as shown

COMMANDS = (
    *("predict", "annotate", "serve", "models", "train", "calibrate", "export", "settings"),
    *("evaluate", "score", "data"),
)


# --- End to end -------------------------------------------------------------------------------


def start(folder: Path, *arguments: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    if "PYTHONPATH" in environment:  # relative entries would not survive the change of folder
        entries = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(e) for e in entries)
    return subprocess.Popen(
        [sys.executable, "-m", "diffusionner", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def finish(process: subprocess.Popen, stdin: bytes | None = None) -> Result:
    out, err = process.communicate(stdin, timeout=240)
    return Result(process.returncode, out.decode(), err.decode())


@pytest.fixture(scope="module")
def project(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a config and the model trained by `diffusionner train`."""
    folder = tmp_path_factory.mktemp("project")
    lines = EXCERPT.read_text(encoding="utf-8").splitlines()
    (folder / "train.jsonl").write_text("\n".join(lines[:16]) + "\n", encoding="utf-8")
    (folder / "test.jsonl").write_text("\n".join(lines[7:15]) + "\n", encoding="utf-8")
    (folder / "dev.jsonl").write_text("\n".join(lines[8:16]) + "\n", encoding="utf-8")
    config = {
        "data": {
            "train": "train.jsonl",
            "dev": "dev.jsonl",
            "test": "test.jsonl",
        },
        "encoder": {"name": str(encoder_folder), "lstm_layers": 1, "context": 1},
        "diffusion": {"spans": 12, "timesteps": 100},
        "decoder": {"heads": 4, "feedforward": 32},
        "training": {
            "epochs": 2,
            "frozen_epochs": 0,
            "learning_rate": 5e-3,
            "matches_per_entity": 0,
            "tune_threshold": False,
        },
        "inference": {"steps": 2, "phi": 2, "overlap": "all"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    process = start(folder, "train", "config.yaml", "training.output=runs/a", "inference.phi=0")
    result = finish(process)
    assert result.status == 0, result.err
    assert "best dev F1" in result.out
    assert "micro" in result.out  # the table of the test set
    assert "epoch 2:" in result.err
    return folder


@pytest.fixture
def model(project: Path) -> Path:
    return project / "runs" / "a"


def test_end_to_end(project, model):
    """Train, evaluate and predict in separate processes."""
    assert {"config.json", "model.safetensors", "log.jsonl", "tensorboard", "test.json"} <= {
        path.name for path in model.iterdir()
    }
    evaluated = start(
        project, "evaluate", "--model", "runs/a", "--data", "test.jsonl", "--json", "scores.json"
    )
    arguments = ("--model", "runs/a", "--input", "-", "--output", "-", "--batch-size", "1")
    piped = start(project, "predict", *arguments, stdin=subprocess.PIPE, bufsize=0)
    for number in range(40):
        piped.stdin.write(f'{{"tokens": ["Ada", "met"], "id": {number}}}\n'.encode())
    first = piped.stdout.readline().decode()  # before the last line has gone in
    result = finish(piped, b'{"text": "Ada met Charles in London.", "doc": 1}\n')
    assert (result.status, result.err) == (0, "")

    ner = DiffusionNER.from_pretrained(model)
    (by_token,) = ner.predict_tokens([["Ada", "met"]])
    (by_text,) = ner.pipe(["Ada met Charles in London."])
    assert by_text and by_token
    records = [json.loads(first), *result.records]
    assert [record.get("id") for record in records] == [*range(40), None]
    for record, entities in ((records[0], by_token), (records[40], by_text)):
        assert record["entities"] == [pytest.approx(shown(e), abs=1e-5) for e in entities]

    result = finish(evaluated)
    assert (result.status, result.err) == (0, "")
    sentences = formats.read(project / "test.jsonl")
    report = score([s.entities for s in sentences], ner.predict_sentences(sentences)).to_dict()
    written = json.loads((project / "scores.json").read_text(encoding="utf-8"))
    assert {key: written[key] for key in report} == report
    assert report["micro"]["predicted"] > 0
    assert written["inference"] == ner.settings.to_dict()["inference"]
    assert (written["model"], written["data"]["file"]) == ("runs/a", "test.jsonl")
    tested = json.loads((model / "test.json").read_text())
    assert {key: tested[key] for key in report} == report
    assert tested["data"].items() <= written["data"].items()
    assert f"{100 * report['micro']['f1']:.2f}" in result.out


def test_help_groups_the_commands(tmp_path):
    result = finish(start(tmp_path, "--help"))
    assert result.status == 0
    assert all(command in result.out for command in COMMANDS)
    assert all(group in result.out for group in ("Use a model", "Train a model", "Evaluate"))


# --- Help and settings ------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help(cli, command):
    result = cli(command, "--help")
    assert result.status == 0
    assert f"{command} [OPTIONS]" in result.out
    options = {
        "train": ["--resume", "KEY=VALUE"],
        "evaluate": ["--model", "--data", "--json", "--steps", "--spans", "--threshold", "--phi"],
        "predict": ["--model", "--input", "--output", "--overlap", "--seed", "--device"],
        "settings": [],
        "data": ["stats", "convert", "split", "check", "formats"],
        "score": ["--other", "--html", "--json", "--gold-format"],
        "export": ["--model", "--dev", "--precision", "--format"],
        "annotate": ["--format", "--engine", "--workers", "--part-rows"],
        "serve": ["--host", "--port", "--api-key-file", "--max-texts"],
        "calibrate": ["--data", "--scores-of"],
        "models": ["NAME", "--json"],
    }
    assert all(option in result.out for option in options[command])


def test_version(cli):
    result = cli("--version")
    assert (result.status, result.out) == (0, f"{__version__}\n")


def test_no_command_is_help(cli):
    result = cli()
    assert all(command in result.out + result.err for command in COMMANDS)


@pytest.mark.parametrize("columns", ["300", "60"])
def test_settings_lists_every_setting(cli, monkeypatch, columns):
    """One line each, however narrow the terminal, if the output goes elsewhere."""
    monkeypatch.setenv("COLUMNS", columns)
    result = cli("settings")
    assert result.status == 0
    for name, allowed, _, meaning in describe():
        row = next(line for line in result.out.splitlines() if f" {name} " in line)
        assert allowed in row
        assert meaning in row


@pytest.mark.parametrize("columns", ["120", "80", "40"])
def test_settings_on_a_terminal_are_named_in_full(cli, monkeypatch, columns):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", columns)
    lines = cli("settings").out.splitlines()
    assert max(map(len, lines[3:])) == max(int(columns), 70)
    for name, *_ in describe():
        assert any(f" {name} " in line for line in lines)


# --- Missing packages, Ctrl-C -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "arguments", "install"),
    [
        ("torch", "train config.yaml", "pip install '.[train]'\n"),
        ("safetensors", "export new --dev dev.jsonl", "pip install .\n"),
        ("uvicorn", "serve", "pip install '.[serve]'\n"),
    ],
)
def test_missing_package(tmp_path, package, arguments, install):
    code = f"import sys; sys.modules['{package}'] = None\nfrom diffusionner.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert_short(done.stderr)
    assert f"needs the package '{package}'" in done.stderr
    assert done.stderr.endswith(install)


@pytest.mark.parametrize(
    ("package", "install"),
    [
        ("regex", "pip install ."),
        ("tensorboard", "pip install '.[train]'"),
        ("presidio_analyzer", "pip install '.[presidio]'"),
        ("diffusionner", None),
        ("something_else", None),
        ("", None),
    ],
)
def test_install_command(package, install):
    assert _install_command(package) == install


def test_train_is_interrupted(project):
    arguments = ("training.output=runs/long", "training.epochs=100000")
    process = start(project, "train", "config.yaml", *arguments)
    until(lambda: (project / "runs" / "long" / "state.safetensors").exists(), 60)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.status == 130
    assert "Traceback" not in result.err
    said = "stopped; run the same command with --resume to continue from the state in runs/long"
    assert result.err.splitlines()[-2:] == [said, "interrupted"]


def test_train_is_interrupted_before_it_has_a_state(cli, config, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", interrupt)
    result = cli("train", config)
    assert result.status == 130
    assert result.err.splitlines()[-2:] == [
        "stopped before the first training state was saved; start again",
        "interrupted",
    ]


def test_predict_is_interrupted(project, tmp_path):
    """The lines done so far are kept and their file is named."""
    target = tmp_path / "out.jsonl"
    partial = tmp_path / "out.jsonl.partial"
    arguments = ("--model", "runs/a", "--input", "-", "--output", str(target), "--batch-size", "1")
    process = start(project, "predict", *arguments, stdin=subprocess.PIPE)
    process.stdin.write(b'{"tokens": ["Ada", "met"], "note": "%s"}\n' % (b"x" * 1000) * 100)
    process.stdin.flush()
    until(lambda: partial.exists() and partial.stat().st_size > 0, 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    result = finish(process)
    done = len(partial.read_text().splitlines())
    assert result.err.splitlines() == [
        f"stopped; {done} lines are done, in {partial}",
        "interrupted",
    ]
    assert not target.exists()


def test_annotate_without_an_output(refused):
    assert "OUT is missing" in refused("annotate", "t.txt")


# --- evaluate ---------------------------------------------------------------------------------


def test_evaluate_options_change_the_scores(cli, project, model, tmp_path):
    def evaluate(*options: object) -> dict:
        path = tmp_path / "scores.json"
        arguments = ("--model", model, "--data", project / "dev.jsonl", "--json", path)
        assert cli("evaluate", *arguments, *options).status == 0
        return json.loads(path.read_text())

    plain = evaluate()
    many = evaluate("--spans", 50, "--seed", 3, "--steps", 5, "--batch-size", 2)
    assert many["inference"] == plain["inference"] | {
        "spans": 50, "seed": 3, "steps": 5, "batch_size": 2,
    }  # fmt: skip
    assert evaluate("--phi", 3)["micro"]["predicted"] == 0
    ner = DiffusionNER.from_pretrained(model)
    sentences = formats.read(project / "dev.jsonl")
    flat = ner.predict_sentences(sentences, overlap="flat")
    expected = score([s.entities for s in sentences], flat).to_dict()
    assert evaluate("--overlap", "flat")["micro"] == expected["micro"]


def test_evaluate_reads_conll(cli, model, tmp_path):
    (tmp_path / "gold.conll").write_text("Ada B-PER\nmet O\nCharles B-PER\n\nRome O\n")
    result = cli("evaluate", "--model", model, "--data", tmp_path / "gold.conll")
    assert result.status == 0
    assert "PER" in result.out


# --- predict ----------------------------------------------------------------------------------


def test_predict_shows_texts(cli, model):
    result = cli("predict", "--model", model, "Ada met Charles.", "He left London.")
    assert result.status == 0
    assert "Ada met Charles." in result.out
    assert "He left London." in result.out
    assert "└" in result.out or "╵" in result.out


def test_predict_files(cli, model, tmp_path):
    """Other fields are kept, entities are in order, empty lines and texts are accepted."""
    lines = [
        {"text": "Ada met Charles, the wife of the captain. He left London.", "id": 5, "ü": [1]},
        {"tokens": ["Ada", "met", "Charles"], "entities": "replaced"},
        {"text": "", "note": None},
        {"tokens": []},
        {"text": "Zoë and 👩‍👩‍👧‍👦 in 北京", "doc": 3},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    text = "\n\n".join(json.dumps(line) for line in lines)
    source.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n  \r\n")
    target.write_text("old")
    result = cli("predict", "--model", model, "--input", source, "--output", target)
    assert (result.status, result.out, result.err) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    written = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert "Zoë" in target.read_text(encoding="utf-8")  # not \u-escaped
    assert len(written) == len(lines)
    for before, after in zip(lines, written, strict=True):
        entities = after.pop("entities")
        before.pop("entities", None)
        assert after == before
        assert bool(entities) == bool(before.get("text") or before.get("tokens"))
        order = [(e["start"], -e["end"]) for e in entities]
        assert order == sorted(order)
        for entity in entities:
            assert list(entity) == ["start", "end", "label", "score", "text"]
            if "text" in before:
                assert before["text"][entity["start"] : entity["end"]] == entity["text"]
            else:
                words = before["tokens"][entity["start"] : entity["end"]]
                assert " ".join(words) == entity["text"]


def test_predict_from_pipe_to_pipe(cli, model):
    source = '{"text": "Ada met Zoë."}\n{"tokens": ["Ada"]}'.encode()
    result = cli("predict", "--model", model, "--input", "-", "--output", "-", stdin=source)
    assert result.status == 0
    assert result.err == ""
    assert [set(record) for record in result.records] == [
        {"text", "entities"},
        {"tokens", "entities"},
    ]
    again = cli("predict", "--model", model, "--input", "-", stdin=source)
    assert again.out == result.out


def test_predict_text_from_standard_input(cli, model):
    source = "Ada met Zoë.\nHe left London.\n".encode()
    assert "Ada met Zoë. He left London." in cli("predict", "--model", model, "-", stdin=source).out
    result = cli("predict", "--model", model, "-", "--output", "-", stdin=source)
    assert [record["text"] for record in result.records] == ["Ada met Zoë.\nHe left London."]
    result = cli("predict", "--model", model, "-", stdin=b"\xff")
    assert (result.status, result.out) == (2, "")
    assert "standard input: not UTF-8" in result.err


def test_predict_points_to_annotate_for_plain_text(cli, model, monkeypatch):
    """Once, on one line even in a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "40")
    result = cli("predict", "--model", model, "--input", "-", stdin=b"Ada met Zoe.\nHe left.\n")
    assert result.status == 1
    first, second, last = result.err.splitlines()
    assert first.startswith("standard input:1: not valid JSON (")
    assert first.endswith("; for plain text: diffusionner annotate - -")
    assert second.startswith("standard input:2: not valid JSON (")
    assert "annotate" not in second
    assert last == "bad records skipped: 2"


def test_predict_makes_the_folder_of_its_output(cli, model, tmp_path):
    target = tmp_path / "no" / "such" / "out.jsonl"
    assert cli("predict", "--model", model, "--output", target, "Ada met Charles.").status == 0
    assert json.loads(target.read_text())["text"] == "Ada met Charles."


@pytest.mark.parametrize("output", ["in.jsonl", "folder/../in.jsonl", "link.jsonl", "in"])
def test_predict_does_not_overwrite_its_input(refused, model, tmp_path, monkeypatch, output):
    source = tmp_path / ("in.partial" if output == "in" else "in.jsonl")
    source.write_text('{"text": "Ada"}')
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.jsonl").symlink_to(source)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    err = refused("predict", "--model", model, "--input", source.name, "--output", output)
    assert f"is the same file as the input {source.name}" in err
    assert source.read_text() == '{"text": "Ada"}'
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("output", [".", "/dev/null"])
def test_predict_writes_only_files(refused, model, output):
    assert "is not a regular file" in refused(
        "predict", "--model", model, "--output", output, "Ada"
    )


def test_predict_texts_as_json(cli, model, tmp_path):
    result = cli("predict", "--model", model, "--output", "-", "Ada met Charles.", "Rome")
    assert [record["text"] for record in result.records] == ["Ada met Charles.", "Rome"]
    assert all(record["entities"] for record in result.records)


def test_predict_uses_the_document_as_context(cli, model):
    words = ["He", "met", "the", "captain", "of", "the", "ship"]

    def scores(*docs: str | None) -> list[list[float]]:
        lines = [json.dumps({"tokens": words[i:], "doc": doc}) for i, doc in enumerate(docs)]
        source = "\n".join(lines).encode()
        result = cli("predict", "--model", model, "--input", "-", "--spans", 30, stdin=source)
        return [[e["score"] for e in record["entities"]] for record in result.records]

    together, apart, without = (
        scores("a", "a", "a"),
        scores("a", "b", "c"),
        scores(None, None, None),
    )
    assert apart == [pytest.approx(one, abs=1e-5) for one in without]
    assert together != [pytest.approx(one, abs=1e-5) for one in apart]


def test_predict_options(cli, model):
    def predict(*options: object) -> list[dict]:
        arguments = ("--model", model, "--output", "-", "Ada met the wife of Charles in London.")
        return cli("predict", *arguments, *options).records[0]["entities"]

    everything = predict("--spans", 60)
    assert len(everything) > len(predict("--spans", 60, "--overlap", "flat"))
    assert predict("--phi", 3) == predict("--threshold", 1) == []
    assert predict("--seed", 1, "--spans", 5) != predict("--seed", 2, "--spans", 5)


BAD_LINES = {
    b'{"text": "unfinished': "not valid JSON",
    b'["Ada"]': "expected an object",
    b'{"id": 1}': 'either "text" or "tokens"',
    b'{"text": 5}': '"text" must be a string',
    b'{"tokens": "Ada"}': '"tokens" must be a list',
    b'{"tokens": ["Ada", ""]}': "non-empty strings",
    b'{"tokens": ["Ada", 3]}': "non-empty strings",
    b'{"text": "\xff"}': "not UTF-8",
    b"[[bold]": "not valid JSON",  # not markup either
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_bad_lines_are_reported_and_skipped(cli, model, tmp_path, bad):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = b'{"text": "Ada met Charles."}'
    source.write_bytes(b"\n".join([good, b"", bad, good]) + b"\n")
    result = cli("predict", "--model", model, "--input", source, "--output", target)
    assert result.status == 1
    assert f"{source}:3: " in result.err
    assert BAD_LINES[bad] in result.err
    assert "bad records skipped: 1" in result.err
    assert "Traceback" not in result.err
    assert len(target.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(rb'{"tokens": ["Ada", "\ud83d"]}', id="surrogate in a token"),
        pytest.param(rb'{"text": "Ada \ud83d"}', id="surrogate in a text"),
        pytest.param(b"[" * 100_000, id="nested too deeply"),
    ],
)
def test_odd_lines_do_not_stop_the_run(cli, model, tmp_path, bad):
    """They are reported or, if possible, used."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b'{"text": "Ada"}\n' + bad + b'\n{"text": "Charles"}\n')
    result = cli("predict", "--model", model, "--input", source, "--output", target)
    assert result.status in (0, 1)
    assert "Traceback" not in result.err
    done = [json.loads(line).get("text") for line in target.read_text().splitlines()]
    assert (done[0], done[-1]) == ("Ada", "Charles")
