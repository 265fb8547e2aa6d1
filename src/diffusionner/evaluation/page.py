"""The evaluation as a self-contained HTML page.

All text is escaped. A content security policy allows only the page's own style and script, by their
hashes: no text of a corpus can run as code, and nothing can be fetched.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template

from diffusionner.corpus import ELLIPSIS, Sentence
from diffusionner.evaluation.matching import Match, Outcome, match_mentions
from diffusionner.evaluation.mentions import JoinedWords, Mention
from diffusionner.evaluation.report import Pair, ScoreTable
from diffusionner.evaluation.result import Evaluation

# The lanes of one side, nearest to the words first: the segment drawn at each word.
_Lanes = list[dict[int, str]]


def render(evaluation: Evaluation, max_sentences: int) -> str:
    """Return the page with at most `max_sentences` sentences, those with errors first."""
    report = evaluation.report
    pairs = report.pairs
    errors_first = sorted(range(len(pairs)), key=lambda i: pairs[i].gold == pairs[i].predicted)
    chosen = sorted(errors_first[:max_sentences])
    labels = {label: number for number, label in enumerate(report.per_type)}
    sentences = [_sentence(number + 1, pairs[number], labels) for number in chosen]
    lanes = max((below for _, below in sentences), default=0)
    style = _file("report.css") + "".join(f".v{n}{{--below:{n}}}\n" for n in range(1, lanes + 1))
    script = _file("report.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_file("report.html")).substitute(
        policy=policy,
        style=style,
        script=script,
        title=escape(evaluation.predicted_name),
        caption=escape(evaluation.caption),
        tables="\n".join(_table(table) for table in evaluation.tables),
        legend="".join(
            f'<li><i class="{outcome.css_class} S E">{outcome.mark}</i> {outcome.title}</li>'
            for outcome in Outcome
        ),
        outcomes="".join(
            f'<label><input type="checkbox" checked value="{outcome.css_class}"> '
            f"{outcome.mark} {outcome.title} ({count})</label>"
            for outcome, count in report.errors.items()
        ),
        types="".join(
            f'<option value="{number}">{escape(label)}</option>' for label, number in labels.items()
        ),
        coverage=_coverage(pairs, chosen),
        sentences="\n".join(html for html, _ in sentences),
    )


def _coverage(pairs: Sequence[Pair], chosen: Sequence[int]) -> str:
    hidden = set(range(len(pairs))).difference(chosen)
    if not hidden:
        return f"All {len(pairs)} sentences are shown."
    wrong = sum(pairs[i].gold != pairs[i].predicted for i in hidden)
    return (
        f"{len(chosen)} of {len(pairs)} sentences are shown; {wrong} of the other {len(hidden)} "
        "have errors. Raise --html-sentences to see more. The tables count all sentences."
    )


def _table(table: ScoreTable) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.headings)
    bodies = []
    for section in filter(None, table.sections):
        rows = ""
        for name, *cells in section:
            columns = "".join(f"<td>{escape(text)}</td>" for text in cells)
            rows += f'<tr><th scope="row">{escape(name)}</th>{columns}</tr>'
        bodies.append(f"<tbody>{rows}</tbody>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    # A focusable region, so that a wide table can be scrolled with the keyboard.
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>'
        f"<caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"{''.join(bodies)}</table>{note}</div>"
    )


def _sentence(number: int, pair: Pair, labels: Mapping[str, int]) -> tuple[str, int]:
    """Return the HTML of a sentence and the number of lanes below its words."""
    sentence = pair.sentence
    assert sentence is not None
    matches = match_mentions(pair.gold, pair.predicted)
    joined = JoinedWords(sentence.words)
    above = _lanes([(match.outcome, match.gold) for match in matches], joined)
    below = _lanes([(match.outcome, match.predicted) for match in matches], joined)
    words = " ".join(_word_html(i, word, above, below) for i, word in enumerate(sentence.words))
    errors = "".join(
        f"<li>{_describe(match, sentence)}</li>"
        for match in matches
        if match.outcome is not Outcome.CORRECT
    )
    # What the page filters by: the outcome and the number of the label.
    keys = {
        f"{outcome.css_class}{labels[mention.label]}"
        for outcome, *mentions in matches
        for mention in mentions
        if mention is not None
    }
    place = escape(sentence.where)
    if sentence.doc is not None:
        place += f" <bdi>{escape(sentence.doc)}</bdi>"
    html = (
        f'<article id="s{number}" tabindex="-1" data-k="{" ".join(sorted(keys))}">'
        f'<h3><a href="#s{number}">{number}</a> <small>{place}</small></h3>'
        f'<p class="words" dir="auto">{words}</p>{f"<ul>{errors}</ul>" if errors else ""}</article>'
    )
    return html, len(below)


def _lanes(mentions: Sequence[tuple[Outcome, Mention | None]], joined: JoinedWords) -> _Lanes:
    """Place each mention in the first lane with enough room, shorter ones first."""
    lanes: _Lanes = []
    present = [(outcome, mention) for outcome, mention in mentions if mention is not None]
    for outcome, mention in sorted(present, key=lambda item: (item[1].words, item[1])):
        parts = [part for part in joined.covered_words(mention.parts) if part[0] < part[1]]
        if not parts:
            continue  # only white space: it appears in the list below the sentence
        room = range(parts[0][0], max(last for _, last in parts))
        lane = next((lane for lane in lanes if lane.keys().isdisjoint(room)), None)
        if lane is None:
            lanes.append(lane := {})
        covered = {word for first, last in parts for word in range(first, last)}
        for word in room:
            classes = {
                outcome.css_class: True,
                "S": any(word == first for first, _ in parts),
                "E": any(word == last - 1 for _, last in parts),
                "gap": word not in covered,  # between the parts, only a line
                "cut": word in covered and not mention.aligned,
            }
            text = f"{outcome.mark} {escape(mention.label)}" if word == room[0] else ""
            names = " ".join(name for name, applies in classes.items() if applies)
            lane[word] = f'<i class="{names}">{text}</i>'
    return lanes


def _word_html(index: int, word: str, above: _Lanes, below: _Lanes) -> str:
    over, under = _segments(index, above), _segments(index, below)
    depth = f" v{len(under)}" if under else ""
    html = [*reversed(over), f"<b>{escape(word)}</b>", *under]
    return f'<span class="w{depth}">{"".join(html)}</span>'


def _segments(index: int, lanes: _Lanes) -> list[str]:
    """Return the segments at a word, with blanks for empty lanes up to the last used one."""
    segments = [lane.get(index) for lane in lanes]
    while segments and segments[-1] is None:
        segments.pop()
    return [segment or "<i></i>" for segment in segments]


def _describe(match: Match, sentence: Sentence) -> str:
    joined = " ".join(sentence.words)

    def entity_html(mention: Mention) -> str:
        parts = ELLIPSIS.join(escape(joined[max(0, start) : end]) for start, end in mention.parts)
        return f"<bdi>{escape(mention.label)}</bdi> <q><bdi>{parts}</bdi></q>"

    outcome, gold, predicted = match
    head = f'<b class="{outcome.css_class}">{outcome.mark} {outcome.title}</b> '
    shown = [("gold ", gold), ("predicted ", predicted)]
    sides = [(side, mention) for side, mention in shown if mention is not None]
    return head + ", ".join(
        f"{side if len(sides) > 1 else ''}{entity_html(mention)}" for side, mention in sides
    )


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _file(name: str) -> str:
    return resources.files("diffusionner.evaluation").joinpath(name).read_text(encoding="utf-8")
