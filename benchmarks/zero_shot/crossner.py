"""CrossNER's five domains, and the words in which a model is asked for their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.label_set import label_text

LEFT_OUT = "misc"  # a rest class, which no name describes; GLiNER leaves it out too
GENERAL = "country location organisation person"
DOMAINS = {
    "ai": f"{GENERAL} algorithm conference field metrics product programlang researcher task "
    "university",
    "literature": f"{GENERAL} award book event literarygenre magazine poem writer",
    "music": f"{GENERAL} album award band event musicalartist musicalinstrument musicgenre song",
    "politics": f"{GENERAL} election event politicalparty politician",
    "science": f"{GENERAL} academicjournal astronomicalobject award chemicalcompound "
    "chemicalelement discipline enzyme event protein scientist theory university",
}


class Label(NamedTuple):
    name: str  # as a user would write it
    other: str  # as another user would
    description: str


LABELS = {
    "academicjournal": Label(
        "academic journal", "scientific journal", "a periodical in which research is published"
    ),
    "album": Label("album", "record album", "a set of recordings released together, by its title"),
    "algorithm": Label(
        "algorithm", "computational method", "a method, model or procedure of computing, by name"
    ),
    "astronomicalobject": Label(
        "astronomical object", "celestial body", "a natural body in space, such as a star or planet"
    ),
    "award": Label("award", "prize", "a prize, medal or honour given for merit"),
    "band": Label("band", "musical group", "a group of people who make music together"),
    "book": Label("book", "title of a book", "a published book or series of books, by its title"),
    "chemicalcompound": Label(
        "chemical compound", "compound", "a substance made of several elements"
    ),
    "chemicalelement": Label("chemical element", "element", "a substance made of one kind of atom"),
    "conference": Label(
        "conference", "academic meeting", "a scientific meeting at which research is presented"
    ),
    "country": Label("country", "nation", "a state with a government of its own"),
    "discipline": Label("discipline", "branch of science", "a field of science or scholarship"),
    "election": Label("election", "elections", "a vote in which people are chosen for an office"),
    "enzyme": Label("enzyme", "enzymes", "a protein that speeds up a chemical reaction"),
    "event": Label("event", "named event", "a war, festival, disaster or other event with a name"),
    "field": Label("field", "research area", "an area of research, such as machine learning"),
    "literarygenre": Label(
        "literary genre", "genre of literature", "a kind of literature, such as novel or satire"
    ),
    "location": Label("location", "place", "a city, region, river or other place, not a country"),
    "magazine": Label("magazine", "periodical", "a magazine or newspaper, by its title"),
    "metrics": Label("metric", "evaluation measure", "a measure by which results are judged"),
    "musicalartist": Label(
        "musical artist", "musician", "a named person who sings, plays or composes music"
    ),
    "musicalinstrument": Label(
        "musical instrument", "instrument", "a thing on which music is played"
    ),
    "musicgenre": Label("music genre", "style of music", "a kind of music, such as jazz"),
    "organisation": Label(
        "organization", "organizations", "a company, institution, agency or team, by name"
    ),
    "person": Label("person", "individual", "a named person of no more specific type"),
    "poem": Label("poem", "poems", "a poem or collection of poems, by its title"),
    "politicalparty": Label(
        "political party", "party in politics", "an organization that stands for election"
    ),
    "politician": Label(
        "politician", "political leader", "a named person who holds or seeks political office"
    ),
    "product": Label("product", "products", "a piece of software, system or device, by name"),
    "programlang": Label(
        "programming language", "coding language", "a language in which programs are written"
    ),
    "protein": Label("protein", "proteins", "a molecule made of amino acids, by name"),
    "researcher": Label("researcher", "scientist", "a named person who does research"),
    "scientist": Label("scientist", "researcher", "a named person who works in science"),
    "song": Label("song", "song title", "a single piece of music, by its title"),
    "task": Label("task", "kind of problem", "a problem for machines to solve, such as parsing"),
    "theory": Label("theory", "scientific theory", "a theory, law or principle of science"),
    "university": Label(
        "university", "college or university", "an institution of higher education, by name"
    ),
    "writer": Label("writer", "author", "a named person who writes books, poems or plays"),
}


def labels_of(domain: str) -> list[Label]:
    return [LABELS[label] for label in DOMAINS[domain].split()]


def corpus_file(data: Path, domain: str) -> Path:
    return data / f"crossner-{domain}" / "test.jsonl"


def read_domain(data: Path, domain: str) -> list[Sentence]:
    """Read a test set; its labels become names in words."""
    sentences = formats.read(corpus_file(data, domain))
    names = {label: LABELS[label].name for label in DOMAINS[domain].split()}
    for sentence in sentences:
        for span in sentence.entities:
            if span.label not in (*names, LEFT_OUT):
                raise DataError(
                    f"{sentence.where}: '{span.label}' is no label of CrossNER's {domain}; use the "
                    "corpus as it was published"
                )
    return relabel(sentences, names)


def relabel(sentences: Sequence[Sentence], names: Mapping[str, str]) -> list[Sentence]:
    """Rename labels, drop entities of others, and note that all the names were annotated."""
    types = tuple(sorted(names.values()))
    return [
        replace(
            sentence,
            entities=[e._replace(label=names[e.label]) for e in sentence.entities if e[2] in names],
            types=types,
        )
        for sentence in sentences
    ]


def rewordings(domain: str) -> dict[str, dict[str, str]]:
    """Return other texts for the names of a domain: by the kind of wording, then by name."""
    labels = labels_of(domain)
    return {
        "other": {label.name: label.other for label in labels},
        "described": {label.name: label_text(label.name, label.description) for label in labels},
    }
