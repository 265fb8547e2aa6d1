"""Resolve the labels "place" and "other name" of the merged corpora of `en`.

    python models/en/recipe/resolve.py MERGED OUT [--names MERGED]

A place becomes a city or country, a location or a facility: by the names that other corpora mark
as one of them, or else by a word such as "River". If a sentence has a place that cannot be decided,
the sentence is not used for these three types.

Sentences with "other name" among their types are annotated for some kinds of person, organization
... only. They are used for all kinds of names if every word with a capital belongs to an entity,
and otherwise for the types that are whole. A nationality that was marked as a country is corrected.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import regex

from diffusionner import formats
from diffusionner.corpus import Sentence, Span

PLACE, OTHER, GROUP = "place", "other name", "nationality or group"
CITY, LOCATION, FACILITY = "city or country", "location", "facility"
KINDS = (CITY, LOCATION, FACILITY)
WHOLE = {CITY, "language", "award", "law"}  # in the first part of Few-NERD
NAMES = {*KINDS, "person", "organization", "product", "event", "work", "language", "award", "law"}

WORDS = {
    LOCATION: """africa antarctica archipelago arctic asia atlantic basin bay beach canyon cape
        caribbean coast continent creek delta desert earth europe falls forest glacier gulf hill
        hills isle island islands lake lakes mars moon mount mountain mountains mt ocean oceania
        pacific peak peninsula plain plains plateau range reef ridge river sea shore strait valley
        volcano woods""",
    FACILITY: """abbey airfield airport arena auditorium avenue bar base basilica bridge building
        cafe café camp castle cathedral cemetery center centre chapel church cinema club dam farm
        fort garage gallery garden gardens hall highway hospital hotel house inn jail library line
        lodge mall manor market monastery mosque museum palace park pier plaza prison pub railway
        ranch restaurant road school square stadium station store street synagogue temple terminal
        theater theatre tower tunnel university zoo""",
    CITY: """borough city county district duchy emirate empire kingdom municipality prefecture
        province republic shire state states territory town township village""",
}
KIND_OF_WORD = {word: kind for kind, words in WORDS.items() for word in words.split()}
REGIONS = {
    *"alps americas balkans brooklyn bronx east galilee harlem himalayas hollywood".split(),
    *"manhattan mediterranean midwest sahara scandinavia siberia west".split(),
    *("asia minor", "central america", "central asia", "east asia", "eastern europe", "far east"),
    *("latin america", "middle east", "near east", "new england", "north america", "south america"),
    *("south asia", "southeast asia", "gaza strip", "west bank", "western europe"),
}
# Cities and countries that are common but have other meanings, or are abbreviated.
CITIES = set(
    """u.s. us u.s u.k. uk usa u.s.a. u.s.a la l.a. ny n.y. nyc d.c. b.c. ga md ca vegas baghdad
    gaza cornwall phoenix seychelles yemen damascus victoria""".split()
)
DEMONYM = regex.compile(
    r"(?!Ossetian?$|Fujian$|Dalian$|Indian(a|apolis)|Ocean$|Jean$|Sean$|Dean$)\p{Lu}.*?"
    r"(ese|ish|[^hj]ian|ican|(?<!Oc|J|S|D)ean|landic|lander|aeli|aqi|stani)s?$"
    r"|(French|Dutch|Greek|German|Swiss|Thai|Czech|Roman|Arab|Saudi|Afghan|Kuwaiti|Yemeni|Omani|"
    r"Bengali|Tibetan|Moroccan|Libyan|Kenyan|Ugandan|Cuban|Mexican|Texan|Catalan|Philippine(?!s)|"
    r"Filipino|Icelandic|Soviet|Welsh|Scots|Anglo|Slovak|Slovene|Serb|Croat|Turk|Kurd|Tajik|Uzbek|"
    r"Kazakh|American|African|Asian)s?$"
)
NO_DEMONYM = frozenset(
    """parish cavendish guardian caspian meridian lillian vivian julian adrian ian brian gillian
    xian caribbean mediterranean aegean vatican tinian peloponnese dodecanese whitefish""".split()
)
# A sentence without entities teaches little if fewer types were looked for.
ENOUGH = 5
CALENDAR = frozenset(
    """January February March April May June July August September October November December Monday
    Tuesday Wednesday Thursday Friday Saturday Sunday AD BC I""".split()
)
CAPITAL = regex.compile(r"\p{Lu}")
OPENING = frozenset("`` “ ‘ \" ' ( : - – — ; . ! ?".split())


def is_demonym(words: list[str]) -> bool:
    word = words[-1]
    return len(words) == 1 and word.lower() not in NO_DEMONYM and bool(DEMONYM.match(word))


def name_of(span: Span, sentence: Sentence) -> str:
    name = " ".join(sentence.words[span.start : span.end]).lower().replace(" .", ".")
    return name.replace(". ", ".").removeprefix("the ").strip("#@ ").removesuffix(" 's")


class Places:
    """Names of places, as corpora that distinguish cities, landscapes and buildings mark them."""

    def __init__(self, sentences: Iterable[Sentence]) -> None:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for span in sentence.entities:
                if span.label in KINDS:
                    counts[name_of(span, sentence)][span.label] += 1
        self.kinds = {}
        for name, count in counts.items():
            [(kind, most)] = count.most_common(1)
            if name and (most >= 0.7 * count.total() or (kind == CITY and most > 2)):
                self.kinds[name] = kind
        self.kinds |= dict.fromkeys(CITIES, CITY)

    def kind(self, name: str) -> str | None:
        """Return the kind of a place, or None if it is not known."""
        if name in REGIONS:
            return LOCATION
        if name in self.kinds:
            return self.kinds[name]
        words = name.split()
        first, last = words[0] if words else "", words[-1] if words else ""
        if " of " in name and KIND_OF_WORD.get(first):
            return KIND_OF_WORD[first]
        if last in KIND_OF_WORD:
            return KIND_OF_WORD[last]
        if first in ("mount", "mt", "lake", "cape", "gulf", "isle", "river"):
            return LOCATION
        region = name.partition(" , ")[2]
        return CITY if region and self.kinds.get(region) == CITY else None


def resolve_places(sentence: Sentence, places: Places) -> Sentence:
    """Replace "place" by the kind of the place."""
    entities, known = [], True
    for span in sentence.entities:
        if span.label != PLACE:
            entities.append(span)
        elif not is_demonym(sentence.words[span.start : span.end]):
            kind = places.kind(name_of(span, sentence))
            if kind is None and _stands_as_city(span, sentence.words):
                kind = CITY
            known &= kind is not None
            entities.append(span._replace(label=kind or PLACE))
    kinds = KINDS if known else ()
    types = (set(sentence.types or ()) - {PLACE, *KINDS}) | set(kinds)
    entities = [span for span in entities if span.label in types]
    return replace(sentence, entities=sorted(set(entities)), types=tuple(sorted(types)))


def _stands_as_city(span: Span, words: list[str]) -> bool:
    """Return whether an unknown place is most likely a city: "in New Kenton", "Kenton"."""
    name, before = words[span.start : span.end], words[span.start - 1] if span.start else ""
    is_plain = all(word.istitle() and word.isalpha() for word in name)
    is_single = len(name) == 1 and before.lower() != "the"
    return is_plain and (is_single or before.lower() in ("in", "from", "near"))


def resolve_names(sentence: Sentence, is_common: set[str]) -> Sentence:
    """Choose the types of a sentence in which only some kinds of names are annotated."""
    words, types = sentence.words, set(sentence.types or ())
    covered = {i for span in sentence.entities for i in range(span.start, span.end)}
    whole = all(
        i in covered or not CAPITAL.search(word) or _is_no_name(words, i, is_common)
        for i, word in enumerate(words)
    )
    kept = NAMES if whole else WHOLE & types
    if any(i not in covered and is_demonym([word]) for i, word in enumerate(words)):
        kept = kept - ({"language"} - types)  # "French" may be one, and was not looked for
    entities = []
    for span in sentence.entities:
        if span.label == CITY and is_demonym(words[span.start : span.end]):
            span = span._replace(label=GROUP)
            kept = kept | {GROUP}
        if any(CAPITAL.search(word) for word in words[span.start : span.end]):
            entities.append(span)
    entities = [span for span in entities if span.label in kept]
    return replace(sentence, entities=sorted(set(entities)), types=tuple(sorted(kept)))


def _is_no_name(words: list[str], i: int, is_common: set[str]) -> bool:
    """Return whether a word has its capital for another reason than being (part of) a name."""
    word = words[i]
    starts = i == 0 or words[i - 1] in OPENING
    return word in CALENDAR or is_demonym([word]) or (starts and word.lower() in is_common)


def common_words(sentences: Iterable[Sentence]) -> set[str]:
    """Return words that are mostly written in lower case, and often."""
    counts = Counter(w for s in sentences if OTHER in (s.types or ()) for w in s.words)
    return {
        w for w, n in counts.items() if n >= 5 and w.islower() and n > 2 * counts[w.capitalize()]
    } | set("in the a an he she it they his her this that after on at".split())


def _has_letters(span: Span, sentence: Sentence) -> bool:
    return any(c.isalnum() for word in sentence.words[span.start : span.end] for c in word)


def resolve(sentences: list[Sentence], places: Places) -> Iterator[Sentence]:
    is_common = common_words(sentences)
    for sentence in sentences:
        types = sentence.types or ()
        if OTHER in types:
            sentence = resolve_names(sentence, is_common)
        elif PLACE in types:
            sentence = resolve_places(sentence, places)
        sentence.entities = [e for e in sentence.entities if _has_letters(e, sentence)]
        if sentence.entities or len(sentence.types or ()) >= ENOUGH:
            yield sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("merged", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--names", type=Path, help="corpus from which names of places are learned")
    options = parser.parse_args()
    sentences = formats.read(options.merged)
    known = formats.read(options.names) if options.names else sentences
    formats.write(options.out, resolve(sentences, Places(known)), "jsonl")


if __name__ == "__main__":
    main()
