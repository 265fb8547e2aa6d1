"""A sentence with its gold entities above the words and its predicted ones below, as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from diffusionner.corpus import Sentence
from diffusionner.evaluation.matching import Judgement, Kind, judge
from diffusionner.evaluation.mentions import Layout, Mention
from diffusionner.evaluation.scorer import Pair
from diffusionner.evaluation.tables import KIND_NAMES

MARKS = {
    Kind.CORRECT: "✓",
    Kind.TYPE: "≠",
    Kind.BOUNDARY: "↔",
    Kind.BOTH: "✗",
    Kind.MISSED: "−",
    Kind.SPURIOUS: "+",
}
# Short, because they stand in the page for every entity; the style sheet and script know them.
LETTERS = dict(zip(Kind, "ctbxms", strict=True))

# Lanes of a side, the nearest to the words first: for each word the segment that is drawn there.
_Lanes = list[dict[int, str]]


def draw(number: int, pair: Pair, labels: Mapping[str, int]) -> tuple[str, int]:
    """The sentence's HTML and how many lanes are below its words."""
    sentence = pair.sentence
    assert sentence is not None
    judgements = judge(pair.gold, pair.predicted)
    layout = Layout(sentence.words)
    above = _lanes([(j.kind, j.gold) for j in judgements], layout)
    below = _lanes([(j.kind, j.predicted) for j in judgements], layout)
    words = " ".join(_cell(i, word, above, below) for i, word in enumerate(sentence.words))
    errors = [judgement for judgement in judgements if judgement.kind is not Kind.CORRECT]
    listed = "".join(f"<li>{_describe(judgement, sentence)}</li>" for judgement in errors)
    keys = sorted({key for judgement in judgements for key in _keys(judgement, labels)})
    place = escape(sentence.where)
    if sentence.doc is not None:
        place += f" <bdi>{escape(sentence.doc)}</bdi>"
    html = (
        f'<article id="s{number}" tabindex="-1" data-k="{" ".join(keys)}">'
        f'<h3><a href="#s{number}">{number}</a> <small>{place}</small></h3>'
        f'<p class="words" dir="auto">{words}</p>{f"<ul>{listed}</ul>" if listed else ""}</article>'
    )
    return html, len(below)


def _keys(judgement: Judgement, labels: Mapping[str, int]) -> set[str]:
    """What the sentence is found by: kind and number of the label."""
    mentions = (judgement.gold, judgement.predicted)
    return {f"{LETTERS[judgement.kind]}{labels[m.label]}" for m in mentions if m is not None}


def _lanes(mentions: Sequence[tuple[Kind, Mention | None]], layout: Layout) -> _Lanes:
    """Shorter ones nearer to the words, each in the first lane with room."""
    lanes: _Lanes = []
    present = [(kind, mention) for kind, mention in mentions if mention is not None]
    for kind, mention in sorted(present, key=lambda item: (item[1].words, item[1])):
        parts = [(first, last) for first, last in layout.touched(mention.parts) if first < last]
        if not parts:
            continue  # nothing but white space: it is in the list below the sentence
        room = range(parts[0][0], max(last for _, last in parts))
        for lane in lanes:
            if not any(word in lane for word in room):
                break
        else:
            lane = {}
            lanes.append(lane)
        lane.update(_segments(kind, mention, parts, room))
    return lanes


def _segments(
    kind: Kind, mention: Mention, parts: Sequence[tuple[int, int]], room: range
) -> dict[int, str]:
    """One for each word from the first to the last; between parts a mere line."""
    covered = {word for first, last in parts for word in range(first, last)}
    found = {}
    for word in room:
        classes = [LETTERS[kind]]
        if word == room[0]:
            classes.append("S")
        if word == room[-1]:
            classes.append("E")
        if word not in covered:
            classes.append("gap")
        elif not mention.regular:
            classes.append("cut")
        text = f"{MARKS[kind]} {escape(mention.label)}" if word == room[0] else ""
        found[word] = f'<i class="{" ".join(classes)}">{text}</i>'
    return found


def _cell(index: int, word: str, above: _Lanes, below: _Lanes) -> str:
    over = _stack(index, above)
    under = _stack(index, below)
    depth = f" v{len(under)}" if under else ""
    body = "".join(reversed(over)) + f"<b>{escape(word)}</b>" + "".join(under)
    return f'<span class="w{depth}">{body}</span>'


def _stack(index: int, lanes: _Lanes) -> list[str]:
    """A word's segments, with blanks where a lane has none but a further one does."""
    used = [lane.get(index) for lane in lanes]
    while used and used[-1] is None:
        used.pop()
    return [segment or "<i></i>" for segment in used]


def _describe(judgement: Judgement, sentence: Sentence) -> str:
    kind, gold, predicted = judgement
    said = f'<b class="{LETTERS[kind]}">{MARKS[kind]} {KIND_NAMES[kind]}</b> '
    if gold is None or predicted is None:
        mention = gold or predicted
        assert mention is not None
        return said + f"{_label(mention)} {_text(mention, sentence)}"
    if kind is Kind.TYPE:
        both = f"gold {_label(gold)}, predicted {_label(predicted)}"
        return said + f"{_text(gold, sentence)} {both}"
    if kind is Kind.BOUNDARY:
        both = f"gold {_text(gold, sentence)}, predicted {_text(predicted, sentence)}"
        return said + f"{_label(gold)} {both}"
    return said + (
        f"gold {_label(gold)} {_text(gold, sentence)}, "
        f"predicted {_label(predicted)} {_text(predicted, sentence)}"
    )


def _label(mention: Mention) -> str:
    return f"<bdi>{escape(mention.label)}</bdi>"


def _text(mention: Mention, sentence: Sentence) -> str:
    joined = " ".join(sentence.words)
    parts = " … ".join(escape(joined[max(0, start) : end]) for start, end in mention.parts)
    return f"<q><bdi>{parts}</bdi></q>"
