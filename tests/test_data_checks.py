"""Findings in corpora and the F1 ceiling of settings, with every number worked out by hand."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import plain_encoder, plain_inference

from diffusionner.batching import EncodedCorpus
from diffusionner.cli.data.check import load_local_tokenizer
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.data.ceiling import REASONS, F1Ceiling, Window, WindowSplitter
from diffusionner.data.checks import CheckedFile, Checker
from diffusionner.data.findings import KINDS, Findings, Severity
from diffusionner.data.fingerprint import fingerprint
from diffusionner.errors import DataError
from diffusionner.inference.decoding import DecodedEntity, merge_candidates, resolve_overlaps
from diffusionner.settings import EncoderSettings, Settings
from models import candidates_of, everything


def line(words: str, *entities: tuple, **more: object) -> dict:
    spans = [{"start": start, "end": end, "label": label} for start, end, label in entities]
    return {"tokens": words.split(" "), "entities": spans, **more}


@pytest.fixture
def make(tmp_path: Path):
    def write(name: str, *records: dict | str) -> Path:
        path = tmp_path / name
        text = (r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records)
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
        return path

    return write


class Checked:
    def __init__(self, findings: Findings, files: list[CheckedFile]) -> None:
        self.findings, self.files = findings, files

    @property
    def places(self) -> dict[str, list[str]]:
        """Kind: "file:line" of each finding, without the folder."""
        return {
            kind: [Path(f.where).name for f in self.findings.kept[kind]]
            for kind in self.findings.kinds()
        }

    def messages(self, kind: str) -> list[str]:
        return [finding.message for finding in self.findings.kept[kind]]


def check(*paths: Path, overrides=(), rare=0, train=(), against=(), learn=False, tokenizer=None):
    chosen = Settings().override(list(overrides))
    findings = Findings()
    compare = len(paths) + len(train) + len(against) > 1
    checker = Checker(chosen, WindowSplitter(chosen.encoder, tokenizer), findings, compare, rare)
    for path in train:
        checker.compare_with(path, None, train=True)
    for path in against:
        checker.compare_with(path, None, train=False)
    files = [checker.check(path, None, learn and path == paths[0]) for path in paths]
    checker.finish()
    return Checked(findings, files)


# --- Each kind of finding ---------------------------------------------------------------------


def test_a_clean_corpus(make):
    path = make("a.jsonl", line("Rome fell", (0, 1, "LOC")), line("So did Troy", (2, 3, "LOC")))
    checked = check(path)
    assert checked.places == {}
    (file,) = checked.files
    assert str(file.fingerprint).startswith("2 sentences, 2 entities, ")
    assert (file.ceiling.gold, file.ceiling.reachable, file.ceiling.f1) == (2, 2, 1.0)


def test_unreadable_records_between_readable_ones(make):
    path = make(
        "a.jsonl",
        line("Rome fell", (0, 1, "LOC")),
        "{broken",
        {"tokens": []},
        line("Troy", (0, 1, "LOC"), (0, "x", "LOC")),
        line("Troy", (0, 1, "LOC")),
    )
    checked = check(path)
    assert checked.places == {"unreadable": ["a.jsonl:2", "a.jsonl:3", "a.jsonl:4"]}
    assert checked.messages("unreadable")[0].startswith("not valid JSON")
    assert checked.files[0].ceiling.gold == 2
    assert checked.files[0].fingerprint is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no sentences"),
        ("neither one nor the other", "not a file of a known format"),
        ('[{"tokens": ["a"]}, ', "truncated"),
    ],
)
def test_files_that_are_no_corpora(tmp_path, content, message):
    path = tmp_path / "a: b.txt"  # what a place ends with is in its name too
    path.write_text(content)
    checked = check(path)
    assert [place.split(":1")[0] for place in checked.places["unreadable"]] == ["a: b.txt"]
    assert message in checked.messages("unreadable")[0]


def test_file_that_is_not_there(tmp_path):
    checked = check(tmp_path / "gone.jsonl")
    assert checked.places == {"unreadable": ["gone.jsonl"]}
    assert checked.messages("unreadable") == ["no such file; check the path"]


CASES = {
    "out-of-range": [(0, 3, "A"), (-1, 1, "A"), (5, 9, "A")],
    "empty": [(1, 1, "A"), (1, 0, "A"), (9, 9, "A")],
    "duplicate": [(0, 1, "A"), (0, 1, "A"), (0, 1, "A")],
    "two-labels": [(0, 2, "A"), (0, 2, "B"), (0, 2, "C")],
}


@pytest.mark.parametrize("kind", CASES)
def test_entities(make, kind):
    path = make("a.jsonl", line("fine here"), line("no good", *CASES[kind]))
    times = 3 if kind in ("out-of-range", "empty") else 1
    assert check(path).places == {kind: ["a.jsonl:2"] * times}


def test_crossing(make):
    path = make(
        "a.jsonl",
        line("a b c d e", (0, 3, "A"), (1, 2, "A"), (3, 5, "A"), (0, 5, "A")),
        line("a b c d e", (0, 3, "A"), (1, 4, "B"), (2, 5, "A")),
    )
    checked = check(path)
    assert checked.places == {"crossing": ["a.jsonl:2"] * 2}
    assert checked.messages("crossing")[0] == "A 'a b c' [0, 3) and B 'b c d' [1, 4) cross"


def test_irregular(make):
    parts = [
        {"parts": [[0, 1], [4, 6]], "label": "A"},
        {"parts": [[0, 5]], "label": "B"},
    ]
    checked = check(make("a.jsonl", line("a b cde", irregular=parts)))
    assert checked.places == {"misaligned": ["a.jsonl:1"] * 2}
    assert checked.messages("misaligned") == [
        "annotation A at characters 0-1 and 4-6 does not align with token boundaries",
        "annotation B at characters 0-5 does not align with token boundaries",
    ]
    assert checked.files[0].ceiling.lost["irregular"] == checked.files[0].ceiling.gold == 2


def gapped(label: str, *fragments: tuple[int, int]) -> dict[str, object]:
    return {"label": label, "fragments": fragments}


def record(words: str, *entities: dict[str, object]) -> dict[str, object]:
    return {"tokens": words.split(), "entities": entities}


MUSCLE = "Muscle pain , cramps and stiffness"
FIVE = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


def test_discontinuous_entities(make):
    symptom = gapped("ADR", (0, 1), (5, 6))
    train = make("train.jsonl", record(MUSCLE, symptom))
    path = make(
        "a.jsonl",
        record(MUSCLE, symptom, symptom, gapped("PAIN", (0, 1), (5, 6))),
        record("a , b c d e f g h i", gapped("ADR", *FIVE), gapped("ADR", (0, 1), (8, 9))),
        record("a , b", gapped("ADR", (1, 2), (0, 1))),
        record("a b ,", gapped("ADR", (0, 1), (2, 3))),
    )
    checked = check(train, path, learn=True)
    assert checked.places == {
        "unreadable": ["a.jsonl:3"],
        "unknown-label": ["a.jsonl:1"],
        "duplicate": ["a.jsonl:1"],
        "two-labels": ["a.jsonl:1"],
        "many-fragments": ["a.jsonl:2"],
        "leakage": ["a.jsonl:1"],
        "discontinuous": ["train.jsonl:1", *["a.jsonl:1"] * 2, *["a.jsonl:2"] * 2, "a.jsonl:4"],
        "punctuation": ["a.jsonl:4"],
    }
    assert checked.files[1].fingerprint is None
    assert checked.messages("duplicate") == ["ADR 'Muscle … stiffness' [0, 1), [5, 6) occurs twice"]
    assert checked.messages("two-labels") == [
        "'Muscle … stiffness' [0, 1), [5, 6) has labels ADR, PAIN"
    ]
    assert checked.messages("discontinuous")[1] == (
        "ADR 'Muscle … stiffness' [0, 1), [5, 6) has 2 fragments"
    )
    assert checked.messages("many-fragments") == [
        "ADR 'a … b … d … f … h' [0, 1), [2, 3), [4, 5), [6, 7), [8, 9) has 5 fragments; "
        "models find at most 4"
    ]


@pytest.mark.parametrize(
    ("override", "lost"),
    [
        ((), {"fragments": 1}),
        (("decoder.discontinuous=true",), {"fragments": 1}),
        (("decoder.discontinuous=false",), {"fragments": 3}),
    ],
)
def test_ceiling_of_discontinuous_entities(make, override, lost):
    path = make(
        "a.jsonl",
        record("a b c d e f g h i", gapped("A", *FIVE), gapped("A", *FIVE[:4])),
        record("a b c", gapped("A", (0, 1), (2, 3)), {"start": 0, "end": 3, "label": "A"}),
    )
    ceiling = check(path, overrides=override).files[0].ceiling
    assert (ceiling.gold, +ceiling.lost) == (4, Counter(lost))
    assert ceiling.reachable == 4 - lost["fragments"]


def test_ceiling_of_discontinuous_entities_in_windows(tokenizer):
    """They need a window that holds all fragments; two labels of one entity count once."""
    sentence = Sentence(["w"] * 40)
    far, near = ((0, 1), (39, 40)), ((3, 4), (6, 7))
    entities = [Discontinuous(far, "A"), Discontinuous(near, "A"), Discontinuous(near, "B")]
    ((_, _, windows),) = WindowSplitter(plain_encoder(max_subwords=20), tokenizer).split([sentence])
    ceiling = F1Ceiling()
    chosen = plain_inference(overlap="flat", spans=1)
    assert ceiling.add(sentence, [*entities, Span(0, 10, "A")], windows, chosen) == entities[:1]
    assert +ceiling.lost == Counter(window=1, label=1)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Inc . !", 1),
        ("( Ada )", 1),
        ("。 a b", 1),
        ("$ 5 US$", 0),
        ("a ! b", 0),
        ("\u3000 a b", 1),
    ],
)
def test_punctuation(make, words, found):
    checked = check(make("a.jsonl", line(words, (0, 3, "A"))))
    assert checked.places == ({"punctuation": ["a.jsonl:1"]} if found else {})


def test_labels_that_are_rare_or_differ_by_case(make):
    one = make("a.jsonl", line("a b c", (0, 1, "ORG"), (1, 2, "Org"), (2, 3, "RARE")))
    two = make("b.jsonl", line("d e f", (0, 1, "ORG"), (1, 2, "ORG"), (2, 3, "org")))
    checked = check(one, two, rare=2)
    assert checked.places == {
        "label-case": ["a.jsonl:1", "b.jsonl:1"],
        "rare-label": ["a.jsonl:1", "a.jsonl:1", "b.jsonl:1"],
    }
    assert (
        "Org (1 times) differs only in case from ORG (3 times" in checked.messages("label-case")[0]
    )
    assert checked.messages("rare-label")[1] == "label RARE occurs only once, first here"


def test_scattered_documents(make):
    path = make("a.jsonl", *(line(f"w{i}", doc=doc) for i, doc in enumerate("aabba")), line("x"))
    checked = check(path)
    assert checked.places == {"scattered": ["a.jsonl:5"]}


def test_leakage(make):
    train = make("train.jsonl", line("A b", (0, 1, "X")), line("A b"), line("Yes ."))
    test = make("test.jsonl", line("A b c"), line("A b", (0, 1, "X")), line("Yes ."))
    for options in ({"train": [train]}, {"against": [train]}):
        checked = check(test, **options)
        assert checked.places == {"leakage": ["test.jsonl:2"], "repeated": ["test.jsonl:3"]}
        assert checked.messages("leakage") == [f"'A b' also occurs at {train}:1"]
    assert check(train, test).places == check(test, train=[train]).places
    assert check(train).places == {}  # within a file, it is not leakage
    assert check(test, against=[test]).findings.counts == {"leakage": 1, "repeated": 2}


def test_labels_unknown_to_the_training_corpus(make):
    train = make("train.jsonl", line("a", (0, 1, "X")))
    other = make("other.jsonl", line("b", (0, 1, "Z")))
    dev = make("dev.jsonl", line("c", (0, 1, "X")), line("d e", (0, 1, "Y"), (1, 2, "Y")))
    assert check(dev, train=[train]).places == {"unknown-label": ["dev.jsonl:2"] * 2}
    assert check(train, dev, learn=True).places == {"unknown-label": ["dev.jsonl:2"] * 2}
    assert check(dev, train=[train], against=[other]).findings.counts["unknown-label"] == 2
    assert check(other, train=[train, other]).findings.counts["unknown-label"] == 0
    assert check(dev, against=[train]).places == {}
    with pytest.raises(DataError, match=r"broken\.jsonl:1"):
        check(dev, train=[make("broken.jsonl", '{"tokens": 3}')])


def test_training_corpus_without_entities(make):
    checked = check(make("a.jsonl", line("a b")), learn=True)
    assert checked.places == {"nothing-to-learn": ["a.jsonl"]}
    assert checked.files[0].fingerprint is None


def test_only_the_first_places_are_kept():
    findings = Findings(keep=2)
    for number in range(5):
        findings.add("empty", f"a:{number}", "odd \x1b[31m\nword")
    assert [f.where for f in findings.kept["empty"]] == ["a:0", "a:1"]
    assert findings.counts["empty"] == findings.count(Severity.ERROR) == 5
    assert str(findings.kept["empty"][0]) == "a:0: error: odd \\x1b[31m\\nword"  # harmless


def test_kinds_are_sorted_by_severity():
    severities = [severity for severity, _ in KINDS.values()]
    assert severities == sorted(severities, reverse=True)


# --- Windows ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(encoder_folder):
    """128 positions, a subword a character."""
    tokenizer = load_local_tokenizer(EncoderSettings(str(encoder_folder)))
    assert tokenizer is not None
    return tokenizer


def test_tokenizer_that_is_not_here():
    assert load_local_tokenizer(EncoderSettings("nobody/has-this")) is None


def test_room_is_what_settings_and_encoder_allow(tokenizer):
    assert WindowSplitter(plain_encoder(max_subwords=512), tokenizer).size == 126
    assert WindowSplitter(plain_encoder(max_subwords=64), tokenizer).size == 62
    assert WindowSplitter(plain_encoder(max_subwords=64), None).size == 62


def test_windows_are_those_of_the_model(tokenizer):
    chosen = plain_encoder(max_subwords=20, context=3)
    sentences = [
        Sentence([f"{'w' * (1 + i * j % 7)}" for i in range(j)], doc="d") for j in range(1, 30)
    ]
    sentences.append(Sentence(["x" * 40, "y"]))
    windows = EncodedCorpus(sentences, tokenizer, chosen).windows
    expected = list(
        zip(
            windows.sentence,
            windows.offset,
            windows.offset + windows.words,
            windows.owned_start,
            windows.owned_end,
            strict=True,
        )
    )
    cut = list(WindowSplitter(chosen, tokenizer).split(sentences))
    assert [(i, *window) for i, (_, _, its) in enumerate(cut) for window in its] == expected
    assert [length for _, length, _ in cut] == [sum(map(len, s.words)) for s in sentences]


@pytest.mark.parametrize("by_words", [True, False])
def test_long_sentences_and_entities(make, tokenizer, by_words):
    """18 subwords: windows of words 0-18, 9-27, 18-36, ... ; 300 sentences: several batches."""
    long = " ".join("abcdefghij" * 4)
    path = make(
        "a.jsonl",
        *[line(f"short {i}") for i in range(299)],
        line(long, (0, 18, "A"), (0, 19, "B"), (9, 27, "C"), (5, 21, "D"), (39, 40, "E")),
    )
    checked = check(
        path,
        overrides=["encoder.max_subwords=20", "inference.overlap=all"],
        tokenizer=None if by_words else tokenizer,
    )
    # The middle of B is the first window's, that of D the second's: B ends and D begins outside.
    assert checked.places == {
        "crossing": ["a.jsonl:300"] * 2,
        "long-sentence": ["a.jsonl:300"],
        "cut-entity": ["a.jsonl:300"] * 2,
    }
    unit = "words" if by_words else "subwords"
    assert checked.messages("long-sentence") == [
        f"40 {unit}, but the encoder reads at most 18: the sentence is split into 4 overlapping "
        "windows"
    ]
    assert [m.split()[0] for m in checked.messages("cut-entity")] == ["B", "D"]
    ceiling = checked.files[0].ceiling
    assert (ceiling.gold, ceiling.lost["window"], ceiling.reachable) == (5, 2, 3)


# --- F1 ceiling -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "spans", "lost"),
    [
        ("all", 9, {"label": 1}),
        ("nested", 9, {"label": 1, "overlap": 1}),  # 1-3
        ("flat", 9, {"label": 1, "overlap": 2}),  # 0-4 and 1-3
        ("all", 3, {"label": 1, "spans": 2}),
        ("flat", 1, {"label": 1, "overlap": 2, "spans": 2}),
    ],
)
def test_ceiling_by_hand(overlap, spans, lost):
    sentence = Sentence("a b c d e f".split(), irregular=[Irregular(((0, 1), (4, 5)), "Z")])
    entities = [Span(0, 2, "B")]
    entities += [Span(start, end, "A") for start, end in [(0, 4), (0, 2), (1, 3), (2, 4), (5, 6)]]
    ceiling = F1Ceiling()
    chosen = plain_inference(overlap=overlap, spans=spans)
    assert ceiling.add(sentence, entities, [Window(0, 6, 0, 6)], chosen) == []
    expected = Counter(lost) + Counter(irregular=1)
    assert +ceiling.lost == expected
    assert ceiling.gold == 7
    assert ceiling.reachable == 7 - expected.total()
    recall = ceiling.reachable / 7
    assert ceiling.f1 == pytest.approx(2 * recall / (1 + recall))
    assert list(ceiling.to_dict()["lost"]) == list(REASONS)


def test_ceiling_without_entities():
    assert F1Ceiling().f1 is None


spans = st.tuples(st.integers(0, 5), st.integers(1, 4), st.sampled_from("AB")).map(
    lambda s: Span(s[0], s[0] + s[1], s[2])
)


@settings(max_examples=60, deadline=None)
@given(st.sets(spans, max_size=5), st.sampled_from(["all", "nested", "flat"]))
def test_ceiling_is_what_decoding_can_keep(entities, policy):
    """However gold entities are ranked, decoding keeps no more, and for some ranking as many."""
    ceiling = F1Ceiling()
    chosen = plain_inference(overlap=policy)
    ceiling.add(Sentence(["w"] * 10), entities, [Window(0, 10, 0, 10)], chosen)
    different = {span[:2] for span in entities}  # as deduplication leaves them
    most = 0
    for ranking in permutations(different):
        found = [
            DecodedEntity(s, e - 1, 0, 3 - i / 100, 1.0, 1) for i, (s, e) in enumerate(ranking)
        ]
        most = max(most, len(resolve_overlaps(found, policy)))
    assert ceiling.reachable == most


def test_crowded_windows(make):
    entities = [(i, j, "A") for i, j in combinations(range(5), 2)]  # 10 spans
    path = make("a.jsonl", line("a b c d", *entities, (0, 1, "B")))
    overrides = ["inference.overlap=all", "inference.spans=7", "diffusion.spans=10"]
    checked = check(path, overrides=overrides)
    assert checked.messages("crowded") == [
        "11 entities in a window, but diffusion.spans=10: each training step sees a random subset",
        "10 spans in a window with 7 noisy spans (inference.spans): the rest cannot be predicted",
    ]
    assert +checked.files[0].ceiling.lost == {"label": 1, "spans": 3}


def test_each_window_has_its_own_spans(tokenizer):
    """A long sentence with an entity on each word: every window gives `inference.spans`."""
    chosen = plain_encoder(max_subwords=20)
    sentence = Sentence(["w"] * 40)
    entities = [Span(i, i + 1, "A") for i in range(40)]
    ((_, _, windows),) = WindowSplitter(chosen, tokenizer).split([sentence])
    ceiling = F1Ceiling()
    assert ceiling.add(sentence, entities, windows, plain_inference(spans=5)) == []
    assert ceiling.reachable == 5 * len(windows)


def test_owning_is_as_in_decoding(tokenizer):
    """A span counts as reachable if decoding would give it out of some window, and only then."""
    import numpy as np

    chosen = plain_encoder(max_subwords=20)
    sentence = Sentence(["w"] * 31)
    corpus = EncodedCorpus([sentence], tokenizer, chosen)
    ((_, _, windows),) = WindowSplitter(chosen, tokenizer).split([sentence])
    for start, end in combinations(range(32), 2):
        table = np.full((len(windows), 1, 1, 5), -1.0)
        for row, window in enumerate(windows):
            if window.start <= start and end <= window.end:
                table[row, 0, 0] = start - window.start, end - 1 - window.start, 0, 3, 1
        rows = np.arange(len(windows))
        found = merge_candidates(
            candidates_of(table), corpus.windows, rows, everything(["A"])
        ).sentence
        assert len(found) <= 1
        assert any(w.contains(Span(start, end, "A")) for w in windows) == bool(len(found))


def test_labels_of_a_corpus_to_compare_with_are_not_known(make):
    train, other = (make(f"{x}.jsonl", line(x, (0, 1, x))) for x in ("A", "B"))
    checked = check(make("c.jsonl", line("c", (0, 1, "B"))), train=[train], against=[other])
    assert checked.places == {"unknown-label": ["c.jsonl:1"]}


def test_fingerprint_depends_on_annotated_types(make):
    one, other = Sentence(["a"]), Sentence(["a"], types=("X",))
    assert fingerprint([one]) != fingerprint([other])
    assert fingerprint([other]) == fingerprint([Sentence(["a"], types=("X",))])


def test_fingerprint_is_that_of_the_corpus(make):
    path = make("a.jsonl", line("a b", (0, 1, "X"), (0, 1, "X")))
    (file,) = check(path).files
    assert file.fingerprint == fingerprint([Sentence(["a", "b"], [Span(0, 1, "X")])])
