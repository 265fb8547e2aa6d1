"""`python -m benchmarks attack-inputs`"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from benchmarks.attack import binary, records
from benchmarks.attack.content import (
    BY_DOCUMENT,
    LABELS,
    ODD,
    SPLITTING,
    Content,
    content_of,
    make_corpus,
)
from benchmarks.attack.damage import damage
from benchmarks.attack.faults import TOKEN, FaultError
from benchmarks.attack.spelling import SPELL, Spelled, meaning
from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import FORMATS

MAX_SECONDS = 5.0  # for one small file


@dataclass
class Outcome:
    """Counts for the inputs of one format and kind."""

    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    faults: list[str] = field(default_factory=list)


def write_files(contents: dict[str, bytes], folder: Path, name: str) -> Path:
    path = folder / ("corpus" + "".join(FORMATS[name].extensions[:1]))
    for file, content in contents.items():
        target = path / file if file else path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)
    return path


def as_format(name: str) -> str:
    spaces = any(option.name == "words" for option in fields(FORMATS[name].options))
    return f"{name}:words=spaces" if spaces and name not in binary.NAMES else name


def read(path: Path, name: str) -> list[Content] | DataError:
    """Return the sentences, or the error; any other exception is a fault."""
    try:
        return [content_of(s) for s in formats.read(path, as_format(name))]
    except DataError as error:
        message = str(error)
        if not message.startswith(str(path)) or "\n" in message or len(message) > 1000:
            raise FaultError(f"an unclear error: {message[:300]!r}") from error
        return error


# --- Legal files ------------------------------------------------------------------------------


def respelled(name: str, chance: Random, folder: Path) -> bool:
    """A file with a known meaning is read as that."""
    corpus = make_corpus(name, chance)
    spelled = SPELL[name](corpus, chance)
    contents = spelled.contents()
    if name not in BY_DOCUMENT:
        (content,) = contents.values()
        if chance.random() < 0.3 and b"\r" not in content and name != "genia":
            content = content.replace(b"\n", b"\r\n")
        if chance.random() < 0.2:
            content = b"\xef\xbb\xbf" + content
        contents[""] = content
    path = write_files(contents, folder, name)
    found = read(path, name)
    if isinstance(found, DataError):
        raise FaultError(f"a legal file is refused: {found}")
    expected = [content_of(sentence) for sentence in corpus]
    compare(found, expected, "")
    return True


def without_name(content: Content) -> Content:
    words, entities, _, irregular = content
    return words, entities, None, irregular


def compare(found: Sequence[Content], expected: Sequence[Content], what: str) -> None:
    for one, other in zip(found, expected, strict=False):
        if one != other:
            raise FaultError(f"{what}read {one!r:.300} for {other!r:.300}")
    if len(found) != len(expected):
        raise FaultError(f"{what}{len(found)} sentences read for {len(expected)}")


# --- Damaged files ----------------------------------------------------------------------------


def damaged(name: str, chance: Random, folder: Path) -> bool:
    """One record is damaged: the others are as they were, and it is reported or read."""
    corpus = make_corpus(name, chance)
    spelled = SPELL[name](corpus, chance)
    file = chance.choice(list(spelled.files))
    touched = chance.choice([n for n, _ in spelled.files[file] if n is not None])
    before, contents = spelled.contents(), spelled.contents()
    start = text = b""
    for number, chunk in spelled.files[file]:
        if number == touched:
            text = chunk.encode()
            break
        start += chunk.encode()
    changed = damage(text, chance)
    contents[file] = start + changed + before[file][len(start) + len(text) :]
    path = write_files(contents, folder, name)
    found = read(path, name)
    errors: list[DataError] = []
    kept = [content_of(s) for s in formats.iterate_with_errors(path, as_format(name), errors)]
    if isinstance(found, DataError):
        check_reported(found, errors)
    elif errors or found != kept:
        raise FaultError(f"read as if nothing was wrong, but the check says {errors[:1]}")
    lines = {n: spelled.lines(file, n) for n in range(len(corpus))}
    extra = changed.count(b"\n") - text.count(b"\n")
    own = range(lines[touched].start, lines[touched].stop + max(0, extra))
    own_contents = check_others(spelled, corpus, kept, touched, errors, file, extra)
    where = [error_line(error, path, file) for error in errors]
    ended = errors and spelled.may_end_at(touched)
    said = meaning(name, changed)
    if said is not None and not errors:
        compare(own_contents, [content_of(said)], "of a damaged record, ")
    if not ended and not any(n is None or n in own for n in where):
        check_nothing_lost(text, changed, own_contents, name)
    return not isinstance(found, DataError)


def check_reported(error: DataError, errors: list[DataError]) -> None:
    message = str(error)
    late = "has no sentences" in message or "lies outside its sentence" in message
    if not late and message not in map(str, errors):
        raise FaultError(f"the check does not report {message!r}")


def error_line(error: DataError, path: Path, file: str) -> int | None:
    """Return the line that an error names in the file, -1 for another file, None without line."""
    place = str(path / file if file else path)
    if not str(error).startswith(place):
        return -1 if file else None
    found = re.match(r":(\d+)", str(error)[len(place) :])
    return int(found[1]) if found else None


def check_others(
    spelled: Spelled,
    corpus: list[Sentence],
    kept: list[Content],
    touched: int,
    errors: list[DataError],
    file: str,
    extra: int,
) -> list[Content]:
    """Check that every other record was read as it was, or is named by an error.

    Return the remaining sentences, those of the damaged record.
    """
    remaining = Counter(kept)
    for number, sentence in enumerate(corpus):
        if number == touched:
            continue
        if remaining[content_of(sentence)]:
            remaining[content_of(sentence)] -= 1
            continue
        own = spelled.lines(file, number)
        shift = extra if number > touched else 0
        messages = (re.search(r":(\d+): ", str(error)) for error in errors)
        named = any(m and int(m[1]) - shift in own for m in messages)
        hidden = errors and spelled.may_end_at(touched)
        if not named and not hidden:
            raise FaultError(
                f"record {number} is lost or changed by damage to record {touched}; "
                f"errors: {[str(e)[-150:] for e in errors[:2]]}; read {kept!r:.300}"
            )
    return list(remaining.elements())


def check_nothing_lost(before: bytes, changed: bytes, kept: list[Content], name: str) -> None:
    """Check that every intact word and label in the damaged record was read."""
    read_text = " ".join(
        " ".join((*words, *(e.label for e in entities), *(e.label for e in irregular)))
        for words, entities, _, irregular in kept
    )
    intact = set(TOKEN.findall(data_in(changed.decode(errors="replace"), name)))
    lost = intact - set(TOKEN.findall(read_text))
    if lost and keys_in(before) == keys_in(changed):
        raise FaultError(f"{sorted(lost)[:3]} silently lost from {changed!r:.400}")


def data_in(text: str, name: str) -> str:
    """Leave out what a format ignores: comments, and text outside of its elements."""
    if name in ("conll", "conllu"):
        return "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    if name == "genia" or (name == "ace" and "<DOC" in text):
        element = "sentence" if name == "genia" else "TEXT"
        return " ".join(re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL))
    return text


def keys_in(record: bytes) -> list[bytes]:
    """Return the keys of JSON objects, and their types; of CoNLL-U, the keys of entities.

    All formats ignore keys that they do not know, so what is under a damaged key is not data.
    """
    return sorted(re.findall(rb'"type"\s*:\s*"\w+"|"[^"]*"(?=\s*:)|Entity=', record))


# --- Written files ----------------------------------------------------------------------------


def written(name: str, chance: Random, folder: Path) -> bool:
    """Check that written content is read back and that a refusal leaves no file."""
    corpus = make_corpus(name, chance)
    odd = chance.choice(corpus)
    number = corpus.index(odd)
    change = chance.randrange(5)
    if change == 0:
        word = chance.choice(ODD) + chance.choice(ODD)
        if not (name in SPLITTING and re.search(r"\s", word)):
            odd.words[chance.randrange(len(odd.words))] = word
    elif change == 1 and odd.entities:
        label = chance.choice(LABELS) + chance.choice(LABELS)
        odd.entities[0] = odd.entities[0]._replace(label=label)
    elif change == 2:
        corpus[number] = replace(odd, doc=chance.choice(ODD) + chance.choice(("", "x", "/../x")))
    elif change == 3:
        odd.words = []
    elif odd.entities:
        start, end, label = odd.entities[0]
        odd.entities[0] = Span(start - chance.choice((0, 1)), end + chance.choice((0, 9)), label)
    path = folder / ("corpus" + "".join(FORMATS[name].extensions[:1]))
    try:
        formats.write(path, corpus, name)
    except DataError:
        if left := list(folder.iterdir()):
            raise FaultError(f"a refused corpus leaves {left[0].name}") from None
        return False
    found = read(path, name)
    if isinstance(found, DataError):
        raise FaultError(f"what was written cannot be read: {found}")
    expected = [content_of(replace(s, doc=s.doc or None)) for s in corpus]
    if name in BY_DOCUMENT:  # their names are those of files
        found, expected = (
            sorted(map(without_name, contents), key=repr) for contents in (found, expected)
        )
    compare(found, expected, "written and ")
    return True


# --- The campaign -----------------------------------------------------------------------------

Kind = Callable[[str, Random, Path], bool]  # returns True if the input was read, not refused
ANNOTATE = "annotate"  # and predict: no format, but the same attacks


def kinds_of(name: str) -> dict[str, Kind]:
    if name == ANNOTATE:
        return {"respelled": records.respelled, "damaged": records.damaged}
    kinds: dict[str, Kind] = {}
    if name in SPELL:
        kinds |= {"respelled": respelled, "damaged": damaged}
    if name in binary.NAMES:
        kinds["damaged"] = binary_damaged
    if FORMATS[name].write is not None:
        kinds["written"] = written
    return kinds


def binary_damaged(name: str, chance: Random, folder: Path) -> bool:
    """A damaged binary file is refused, or read as its own library reads it."""
    corpus = make_corpus(name, chance)
    path = folder / ("corpus" + "".join(FORMATS[name].extensions[:1]))
    formats.write(path, corpus, name)
    file = chance.choice(sorted(path.iterdir())) if path.is_dir() else path
    file.write_bytes(damage(file.read_bytes(), chance))
    found = read(path, name)
    if isinstance(found, DataError):
        return False
    compare(found, [content_of(s) for s in binary.read(path, name)], "unlike its library, ")
    return True


def attack(case: str, name: str, kind: str, outcome: Outcome) -> None:
    """Try one input; `case` determines everything about it."""
    chance = Random(case)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        try:
            if kinds_of(name)[kind](name, chance, Path(folder)):
                outcome.read += 1
            else:
                outcome.refused += 1
        except FaultError as fault:
            outcome.faults.append(f"{case}: {fault}")
        except Exception as error:
            outcome.faults.append(f"{case}: raised {type(error).__name__}: {error}"[:500])
        seconds = time.process_time() - began
    outcome.slowest = max(outcome.slowest, seconds)
    if seconds > MAX_SECONDS:
        outcome.faults.append(f"{case}: took {seconds:.1f} s")


def campaign(count: int, seed: int, only: str | None = None) -> dict[tuple[str, str], Outcome]:
    tried = [(name, kind) for name in (*FORMATS, ANNOTATE) for kind in kinds_of(name)]
    outcomes = {pair: Outcome() for pair in tried}
    for number in range(count):
        name, kind = tried[number % len(tried)]
        case = f"{seed}/{number}/{name}/{kind}"
        if only is None or case == only:
            attack(case, name, kind, outcomes[name, kind])
    return outcomes


def attack_inputs(
    count: Annotated[int, typer.Option(help="Number of inputs.", min=1)] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    only: Annotated[
        str | None, typer.Option(help="Only this case, as printed for a fault.")
    ] = None,
) -> None:
    """Read mutated files of every format and compare the contents.

    * respelled: legal files, spelled by an independent writer, must be read as they say.
    * damaged: one record of such a file is damaged. All others must be read as they were, and
      everything intact in the damaged one must be read, unless an error names it. A binary file
      must be refused, or read as its own library reads it.
    * written: odd contents must be read back as written, or be refused without a trace.
    """
    outcomes = campaign(count, seed, only)
    print(
        f"{'format':14}{'kind':12}{'inputs':>8}{'read':>8}{'refused':>9}{'lost':>6}{'slowest':>10}"
    )
    for (name, kind), one in outcomes.items():
        total = one.read + one.refused + len(one.faults)
        print(
            f"{name:14}{kind:12}{total:8}{one.read:8}{one.refused:9}{len(one.faults):6}"
            f"{one.slowest:9.2f}s"
        )
    faults = [fault for one in outcomes.values() for fault in one.faults]
    total = sum(one.read + one.refused for one in outcomes.values()) + len(faults)
    print(f"{total} inputs, {len(faults)} lost, unclear or too slow")
    for fault in faults[:50]:
        print(f"  {fault}")
    if faults:
        raise typer.Exit(1)
