"""Entities drawn under their text in the terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from diffusionner import Entity
from diffusionner.cli.show import show


def draw(text: str, entities: list[Entity], width: int = 80) -> list[str]:
    file = io.StringIO()
    show(Console(file=file, width=width), text, entities, ["PER", "GPE", "人物"])
    return file.getvalue().splitlines()


def test_nested_entities_are_drawn_in_lanes():
    text = "the wife of the rich merchant left"
    entities = [
        Entity(0, 29, "PER", 0.9, text[0:29]),
        Entity(12, 29, "PER", 0.75, text[12:29]),
    ]
    lines = draw(text, entities)
    assert lines == [
        text,
        " " * 12 + "└" + "─" * 15 + "┘ PER 0.75",
        "└" + "─" * 27 + "┘ PER 0.90",
    ]


def test_discontinuous_entities_have_a_line_over_their_gaps():
    text = "Muscle pain and stiffness, a b"
    entities = [
        Entity(0, 25, "PER", 0.8, "Muscle … stiffness", gaps=((6, 16),)),
        Entity(7, 11, "GPE", 0.5, "pain"),
        Entity(27, 30, "GPE", 0.7, "a … b", gaps=((28, 29),)),
    ]
    assert draw(text, entities) == [
        text,
        "       └──┘ GPE 0.50       ╵┄╵ GPE 0.70",
        "└────┘┄┄┄┄┄┄┄┄┄┄└───────┘ PER 0.80",
    ]
    assert draw(text, entities[:1], width=27) == [
        "Muscle pain and ",
        "└────┘┄┄┄┄┄┄┄┄┄┄ PER 0.80",
        "stiffness, a b",
        "└───────┘ PER 0.80",
    ]


def test_disjoint_entities_share_a_lane():
    text = "Ada Lovelace and also Charles"
    lines = draw(text, [Entity(0, 3, "PER", 1.0, "Ada"), Entity(22, 29, "PER", 0.5, "Charles")])
    assert lines == [text, "└─┘ PER 1.00          └─────┘ PER 0.50"]


def test_labels_that_collide_take_two_lanes():
    lines = draw("Ada Bob", [Entity(0, 3, "PER", 1.0, "Ada"), Entity(4, 7, "GPE", 1.0, "Bob")])
    assert lines == ["Ada Bob", "└─┘ PER 1.00", "    └─┘ GPE 1.00"]


def test_one_column_and_no_entities():
    assert draw("I left", [Entity(0, 1, "PER", 1.0, "I")]) == ["I left", "╵ PER 1.00"]
    assert draw("Nobody", []) == ["Nobody", "(no entities)"]
    assert draw("", [])[-1] == "(no entities)"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("王先生住在北京。", "北京"),
        ("😀😀 Ada left", "Ada"),
        ("Zoe\u0308 met Jose\u0301", "Jose\u0301"),
        ("a\tb\r\nAda", "Ada"),
    ],
)
def test_wide_characters(text, found):
    start = text.index(found)
    entity = Entity(start, start + len(found), "GPE", 0.5, found)
    shown, bracket = draw(text, [entity])
    column = len(bracket) - len(bracket.lstrip())
    assert column == cell_len(text[:start].replace("\t", " ").replace("\r\n", "  "))
    mark = bracket.strip().split(" ")[0]
    assert len(mark) == cell_len(found)
    assert found in shown


def test_wide_labels():
    text = "Ada was not Bob"
    lines = draw(text, [Entity(0, 3, "人物", 1.0, "Ada"), Entity(12, 15, "PER", 1.0, "Bob")])
    bracket = next(line for line in lines if "PER" in line)
    assert cell_len(bracket[: bracket.rindex("└")]) == 12


def test_wrapping():
    """Lines break at spaces; an entity across the break is drawn under both parts."""
    text = "aaaa bbbb cccc dddd eeee ffff gggg hhhh"
    lines = draw(text, [Entity(5, 24, "PER", 0.5, text[5:24])], width=26)
    assert [line.rstrip() for line in lines[::2]] == ["aaaa bbbb cccc dddd", "eeee ffff gggg hhhh"]
    assert lines[1].startswith("     └─────────────┘ ")
    assert lines[3] == "└──┘ PER 0.50"
    assert len(lines) == 4


def test_labels_at_the_right_edge_are_complete():
    text = "In the end, after all those years, everybody went back to the town of Newcastle"
    lines = draw(text, [Entity(70, 79, "GPE", 0.5, "Newcastle")], width=82)
    assert any("GPE" in line for line in lines)
    assert any("0.50" in line for line in lines)


def test_wrapping_words_longer_than_the_line():
    text = "x" * 50
    lines = draw(text, [Entity(0, 50, "PER", 0.5, text)], width=30)
    assert "".join(line for line in lines if "x" in line) == text
    assert all(cell_len(line) <= 30 for line in lines if "x" in line)


def test_markup_is_not_interpreted():
    text = "[red]Ada[/red] met [bold]"
    assert draw(text, [Entity(5, 8, "PER", 0.5, "Ada")])[0] == text


def test_unknown_colours_repeat():
    labels = [f"L{i}" for i in range(20)]
    file = io.StringIO()
    show(Console(file=file, width=80), "Ada", [Entity(0, 3, "L19", 1.0, "Ada")], labels)
    assert "L19" in file.getvalue()
