"""Every format, damaged: one DataError that names the file, and nothing written."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from corpus_files import PASSAGES, put
from test_round_trips import skip_without_package

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import FORMATS

SENTENCES = [
    Sentence(["Köln", "met", "U.N.", "envoys"], [Span(0, 1, "LOC"), Span(2, 4, "PER")], "d1"),
    Sentence(["the", "U.N.", "envoy", "to", "Rome"], [Span(0, 5, "PER"), Span(4, 5, "LOC")], "d1"),
    Sentence(["Nothing", "here"], [], "d2"),
    Sentence(["Bye", "Köln"], [Span(1, 2, "LOC")], "d2"),
]

GENIA = """<?xml version="1.0" encoding="UTF-8"?>
<set><article>
<articleinfo><bibliomisc>MEDLINE:1</bibliomisc></articleinfo>
<title><sentence>The <cons sem="G#DNA_domain"><cons sem="G#protein">IL-2</cons>
 gene</cons> of K\u00f6ln.</sentence></title>
<abstract><sentence>It binds <cons sem="G#protein_complex">NF-kB</cons>.</sentence></abstract>
</article></set>
"""
SGM = "<DOC>\n<DOCID>d1</DOCID>\n<BODY><TEXT>\nRome fell to K\u00f6ln.\n</TEXT></BODY></DOC>\n"
APF = """<?xml version="1.0"?>
<source_file URI="d1.sgm" SOURCE="newswire" TYPE="text"><document DOCID="d1">
<entity ID="E1" TYPE="GPE" CLASS="SPC"><entity_mention ID="E1-1" TYPE="NAM">
<extent><charseq START="5" END="8">Rome</charseq></extent>
</entity_mention></entity>
</document></source_file>
"""

# Of the formats that are only read. All others are written.
ONLY_READ: dict[str, tuple[str, dict[str, str]]] = {
    "genia": ("corpus.xml", {"corpus.xml": GENIA}),
    "ace": ("", {"d1.sgm": SGM, "d1.apf.xml": APF}),
    "passages": ("p.txt", {"p.txt": PASSAGES}),
}
BINARY = {"docbin", "parquet", "huggingface"}
# Cut anywhere, these cannot be whole; others are when a line or a record ends there.
CLOSED = {"genia", "gliner", "labelstudio", "w2ner", "mrc", "reference", "ontonotes"} | BINARY


@pytest.fixture(scope="module", params=list(FORMATS))
def name(request) -> str:
    if FORMATS[request.param].write is not None:
        skip_without_package(request.param)
    return request.param


@pytest.fixture(scope="module")
def sample(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole file or folder of the format."""
    folder = tmp_path_factory.mktemp(name)
    if name in ONLY_READ:
        path, files = ONLY_READ[name]
        path = put(folder / "corpus", files) / path
    else:
        path = folder / ("corpus" + "".join(FORMATS[name].extensions[:1]))
        formats.write(path, SENTENCES, name)
    assert formats.read(path, name)
    return path


Damage = Callable[[bytes], bytes]


def files_of(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def damaged(sample: Path, damage: Damage) -> Iterator[Path]:
    """Copies of the sample in each of which one file is damaged, unless that changes nothing."""
    for number, file in enumerate(files_of(sample)):
        content = file.read_bytes()
        changed = damage(content)
        if changed == content:
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / sample.name
            if sample.is_dir():
                shutil.copytree(sample, copy)
                files_of(copy)[number].write_bytes(changed)
            else:
                copy.write_bytes(changed)
            yield copy


def refusal(path: Path, name: str | None) -> str:
    """The message with which reading fails; writing what is read must leave no trace."""
    with pytest.raises(DataError) as caught:
        formats.read(path, name)
    message = str(caught.value)
    assert message.startswith(str(path)), message
    assert "\n" not in message and len(message) < 1000
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.jsonl"
        for before in (None, b"what was there before"):
            if before is not None:
                output.write_bytes(before)
            with pytest.raises(DataError):
                formats.write(output, formats.iterate(path, name))
            assert list(Path(folder).iterdir()) == ([] if before is None else [output])
        assert output.read_bytes() == before
    if name is not None:
        refused: list[DataError] = []
        list(formats.iterate_with_errors(path, name, refused))
        # That nothing is there, or not where an entity says, is for the checks to say.
        left = "has no sentences" in message or "lies outside its sentence" in message
        assert left or message in map(str, refused)
    return message


def test_cut_short(name, sample):
    for share in (0.2, 0.5, 0.7, 0.9, 0.97):
        for path in damaged(
            sample, lambda content, s=share: content[: max(1, int(s * len(content)) - 1)]
        ):
            if name in CLOSED:
                message = refusal(path, name)
                assert name in BINARY or re.match(rf"{re.escape(str(path))}[^:]*:\d+: ", message)
            else:
                read_or_refuse(path, name)


def test_in_latin_1(name, sample):
    if name in BINARY:
        pytest.skip("no text")
    for path in damaged(sample, lambda content: content.replace("ö".encode(), b"\xf6")):
        message = refusal(path, name)
        assert re.match(rf"{re.escape(str(path))}[^:]*:\d+: ", message), message
        assert "not UTF-8 (byte 0xf6)" in message or "(invalid token)" in message


def test_in_utf_16(name, sample):
    if name in BINARY:
        pytest.skip("no text")
    for encoding in ("utf-16", "utf-16-le"):
        for path in damaged(sample, lambda content, e=encoding: content.decode().encode(e)):
            if name in ONLY_READ:
                read_or_refuse(path, name)  # XML may be so: its first bytes say it
            else:
                refusal(path, name)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_empty(name, sample, content):
    for path in damaged(sample, lambda _: content):
        if sample.is_dir():
            read_or_refuse(path, name)
        else:
            refusal(path, name)
            refusal(path, None)


def test_rubbish(name, sample):
    rubbish = random.Random(7).randbytes(5000)
    for path in damaged(sample, lambda _: rubbish):
        refusal(path, name)
    for path in damaged(sample, lambda content: content[:100] + rubbish):
        refusal(path, name)


def test_the_command_says_it_in_short(name, sample, refused, tmp_path):
    for path in damaged(sample, lambda content: content[: len(content) // 2] + b"\0\xff<{"):
        output = tmp_path / "output.jsonl"
        message = refused("data", "convert", path, output, "--from", name)
        assert message.startswith(f"error: {path}")
        assert list(tmp_path.iterdir()) == []


def test_a_folder_for_a_file_and_the_reverse(name, sample, tmp_path):
    folder = tmp_path / "folder.txt"
    folder.mkdir()
    assert re.search(r"cannot be read|has no sentences|not a dataset", refusal(folder, name))
    file = tmp_path / "file.txt"
    file.write_text("It is no corpus.\n")
    refusal(file, name)


BAD_OFFSETS = {
    "genia": ("", ""),  # it has none
    "ace": ('END="8"', 'END="80"'),
    "brat": ("LOC 0 4", "LOC 0 400"),
    "conllu": ("Entity=", "Entity=(9-"),
    "ontonotes": ("(PER*", "*)"),
    "gliner": ("[0,0,", "[0,9,"),
    "prodigy": ('"start":0,"end":4,"label"', '"start":0,"end":400,"label"'),
    "doccano": ("[0,4,", "[0,400,"),
    "labelstudio": ('"start":0,"end":4', '"start":0,"end":400'),
    "w2ner": ('"index":[0]', '"index":[-1]'),
    "mrc": ("0;0", "0;9"),
    "reference": ('"start":0,"end":1', '"start":0,"end":9'),
    "jsonl": ('"start":0,"end":1', '"start":-1,"end":1'),
    "conll": ("\tB-LOC", "\tX-LOC"),
}


def test_bad_offsets(name, sample):
    if name in BINARY or name in ("genia", "passages"):
        pytest.skip("no offsets in a text")
    old, new = (text.encode() for text in BAD_OFFSETS[name])
    paths = list(damaged(sample, lambda content: content))
    assert not paths
    for path in damaged(sample, lambda content: content.replace(old, new, 1)):
        paths.append(path)
        message = refusal(path, name)
        assert re.match(rf"{re.escape(str(path))}[^:]*:\d+: ", message), message
    assert len(paths) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("E", "L"), ("S", "U"), ("M", "U"), ("M", "L"), ("E", "U"), ("S", "L")]
)
def test_mixed_schemes(tmp_path, one, other):
    path = tmp_path / "a.conll"
    path.write_text(f"a B-X\nb {one}-X\n\nc {other}-X\nd O\n")
    message = refusal(path, "conll")
    assert message.startswith(f"{path}:4: tag '{other}-X' is of another scheme")


# --- A line of a gigabyte ---------------------------------------------------------------------

# Bytes of zero that take no space on the disk: behind the first half of a file, and before it.
HUGE = """
import resource, shutil, sys, time
from pathlib import Path
import reproduce.formats
from diffusionner import formats
from diffusionner.errors import DataError

def memory():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

name, sample, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
list(formats.iterate(sample, name))
for number in range(len([p for p in sample.rglob("*") if p.is_file()]) or 1):
    for behind in (True, False):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        copy = folder / sample.name
        (shutil.copytree if sample.is_dir() else shutil.copy)(sample, copy)
        file = sorted(p for p in copy.rglob("*") if p.is_file())[number] if copy.is_dir() else copy
        content = file.read_bytes()
        with file.open("wb") as output:
            output.write(content[: len(content) // 2 if behind else 0])
            output.truncate(2**30)
            output.seek(2**30)
            output.write(content[len(content) // 2 if behind else 0 :])
        resource.setrlimit(resource.RLIMIT_AS, (memory() + MOST, resource.RLIM_INFINITY))
        began = time.perf_counter()
        try:
            sentences = sum(1 for _ in formats.iterate(copy, name))
            message = f"{sentences} sentences"
        except DataError as error:
            message = str(error)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        print(round(time.perf_counter() - began, 2), message, sep="\\t")
""".replace("MOST", str(500 * 2**20))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited in another way here")
def test_a_line_of_a_gigabyte(name, sample, tmp_path):
    command = [sys.executable, "-c", HUGE, name, str(sample), str(tmp_path / "copy")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stderr) == (0, "")
    for line in done.stdout.splitlines():
        seconds, message = line.split("\t")
        assert float(seconds) < 8, line
        assert message.startswith(str(tmp_path)) and len(message) < 1000


# --- Damage at random -------------------------------------------------------------------------


def read_or_refuse(path: Path, name: str | None) -> None:
    try:
        formats.read(path, name)
    except DataError as error:
        assert str(error).startswith(str(path)) and len(str(error)) < 1000
    refused: list[DataError] = []
    list(formats.iterate_with_errors(path, name, refused))


NUMBER = re.compile(rb"\d+")
STRING = re.compile(rb'"[^"]*"|\w+')
INSTEAD = (
    b"-1",
    b"0",
    b"7",
    b"99999999999999999999",
    b"1.5",
    b'""',
    b"null",
    b"[]",
    b"{}",
    b"true",
)


def shake(chance: random.Random) -> Damage:
    def damage(content: bytes) -> bytes:
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            at = chance.randrange(len(content)) if content else 0
            how = chance.randrange(7)
            if how == 0:
                content = content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :]
            elif how == 1:
                content = content[:at] + content[at + chance.choice((1, 1, 2, 9)) :]
            elif how == 2:
                content = content[:at] + content[max(0, at - chance.randrange(30)) :]
            elif how == 3:
                lines = content.split(b"\n")
                one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
                lines[one], lines[other] = lines[other], lines[one]
                content = b"\n".join(lines)
            elif how == 4:
                lines = content.split(b"\n")
                del lines[chance.randrange(len(lines))]
                content = b"\n".join(lines)
            elif places := list((NUMBER if how == 5 else STRING).finditer(content)):
                start, end = chance.choice(places).span()
                content = content[:start] + chance.choice(INSTEAD) + content[end:]
        return content

    return damage


def test_damage_at_random(name, sample):
    chance = random.Random(name)
    for _ in range(60):
        for path in damaged(sample, shake(chance)):
            read_or_refuse(path, name)
