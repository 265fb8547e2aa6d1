"""Short versions of the attacks on processes and files: `python -m benchmarks attack-...`"""

from __future__ import annotations

import re
from functools import partial

import pytest

from benchmarks.attack import journals, kills
from benchmarks.cli import main


@pytest.fixture
def run(cli):
    return partial(cli, main=main)


@pytest.mark.parametrize("command", ["attack-annotate", "attack-training"])
def test_killed_runs(run, command):
    result = run(command, "--kills", 4, "--seed", 3)
    assert result.status == 0, result.out + result.err
    ended, of = re.search(
        r"(\d+) of (\d+) runs ended as if nothing had happened", result.out
    ).groups()
    assert ended == of and " 4 killed in " in result.out


def test_damaged_journals(run):
    result = run("attack-journals", "--damages", 8, "--seed", 1, "--records", 60)
    assert result.status == 0, result.out + result.err
    assert "8 damages, 0 failures" in result.out
    assert " refused " in result.out and " resumed " in result.out


def test_differences_are_noticed():
    entity = {"start": 0, "end": 3, "label": "PER", "score": 0.5, "text": "Ada"}
    records = [{"id": n, "text": "Ada", "entities": [entity]} for n in range(3)]
    assert kills.compare(records, [*records]) == ""
    assert "2 records instead of 3" in kills.compare(records[:2], records)
    assert "record 1 differs" in kills.compare([records[0], records[0], records[2]], records)
    other = [{**records[0], "entities": [{**entity, "score": 0.6}]}, *records[1:]]
    assert "other scores" in kills.compare(other, records)


def test_errors_must_be_clear():
    assert journals._is_clear(2, "error: the file is damaged; restore it\n")
    assert not journals._is_clear(1, "error: the file is damaged; restore it\n")
    assert not journals._is_clear(2, "Traceback (most recent call last):\nerror: x\n")
