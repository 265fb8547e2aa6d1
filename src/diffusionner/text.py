"""Split raw text into sentences and words with exact character offsets.

Words follow the Penn Treebank conventions of the training corpora: punctuation and English
clitics are separate words; hyphenated words, numbers and abbreviations are not split. Every
visible character belongs to exactly one word, and no grapheme cluster is split. Run time is
linear in the text: no pattern here may backtrack over, or rescan, a long run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import regex

from diffusionner.layout import line_ends


@dataclass(slots=True)
class TextSentence:
    """The words of one sentence; word i is `text[starts[i]:ends[i]]`."""

    words: list[str]
    starts: Sequence[int]
    ends: Sequence[int]

    def between(self, gaps: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Return the (start, end) characters of gaps, given by their first and last word."""
        return tuple((self.ends[first - 1], self.starts[last + 1]) for first, last in gaps)


# --- Word lists -----------------------------------------------------------------------------

# Entries omit the final period. Single letters and capitalised entries match only as written
# ("ill" is a word, "Ill." a state); all others match in any case.

# Abbreviations that modify the following word and never end a sentence.
_LEADING = frozenset(
    "mr mrs ms messrs mme mlle sra srta dr drs prof hon gov sgt cpl lt cmdr supt vs v cf viz "
    "ca approx e.g i.e vol vols pp nr St Ste Mt Ft Gen Sen Rep Rev Col Capt Maj Adm".split()
)
# Abbreviations that may also be the last word of a sentence.
_TRAILING = frozenset(
    "inc corp ltd plc llc bros jr sr esq etc al dept univ assn assoc govt intl natl ph.d b.sc "
    "m.sc d.phil ave blvd rd jan feb apr jun jul aug sept oct nov dec tues thurs calif ariz "
    "ark colo conn fla ga kan ky md mich minn okla tenn tex va vt wis wyo acad biol chem mol "
    "physiol proc virol bzw usw gov't int'l gen'l nat'l dep't "
    "Co Mar Sep Ill Ind Mass Wash Ore Del Mont Neb Nev Penn Sci Res".split()
)
# Words or letters that are abbreviations only before a number: "No. 5", "c. 1900".
_NUMBERED = frozenset("no nos fig figs art sec ch op p pt c b d eq eqs par app".split())

# A capitalised word after "U.S." or "Inc." need not start a sentence, unless it is one of these.
_STARTERS = (
    "The A An This That These Those There Here He She It They We I You His Her Its Their Our "
    "My In On At By To From For With As After Before During Since Under Despite But And Or If "
    "When While Although Though Because However Meanwhile Then Thus So Now Also Not No Yes "
    "What Who Why How Where Which One Some Many Most All Both Each Another Such"
).split()

_CLITICS = frozenset(("s", "m", "d", "re", "ve", "ll"))

MAX_WORD = 100  # characters; models read no more of a word, so a longer one is cut

# --- Words ----------------------------------------------------------------------------------

# Scripts without spaces between words: every grapheme is a word.
_SPACELESS = (
    r"[[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Bopo}\p{scx=Thai}\p{scx=Laoo}\p{scx=Khmr}"
    r"\p{scx=Mymr}]--\p{Nd}]"
)
# Zero-width spaces, byte order mark, bidi marks, variation selectors...
_INVISIBLE = r"[\p{DI}--\p{L}]"
# Characters that start no word; lone surrogates among them, since no tokenizer can encode them.
_SKIPPED = rf"[\s\p{{Cc}}\p{{Cs}}\uFFF9-\uFFFB{_INVISIBLE}]"
_FIRST = rf"[a-zA-Z[[[\p{{L}}\p{{N}}\p{{M}}\p{{GCB=Prepend}}]--{_SPACELESS}]--{_INVISIBLE}]]"
_NEXT = rf"[{_FIRST}[\p{{M}}--{_SPACELESS}]\u00AD\u200C\u200D\u2060]"
_RUN = rf"{_FIRST}{_NEXT}*+"
_URL_INNER = rf"[{_FIRST}/=\#&_~%+$@\-]"
_URL_NOT_LAST = r"[.,:;!?'*]"
_EXTENDING = r"[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]"
# Flags are matched explicitly: \X takes quadratic time over a run of regional indicators.
_GRAPHEME = rf"(?:\p{{RI}}{{1,2}}+{_EXTENDING}*+|\X)"

# Group 1 is a word whose final period or clitics may still be split off; other matches are final.
# Slashes do not split: in GENIA and CoNLL03, "p50/p65" is one word more than twice as often as not.
_TOKEN = regex.compile(
    rf"""
  (?! [ ] ) (?:
    [a-zA-ZÀ-ÖØ-öø-ɏ]++ (?= [ \n,;!?)] )                   # fast paths for
  | [ぁ-ゖァ-ヺ一-鿿] (?= [ぁ-ゖァ-ヺ一-鿿、。，] )            # most text
  | (?: (?i:https?|ftp):// | (?i:www)\. )
    (?: {_URL_INNER}++ | {_URL_NOT_LAST}++ (?= {_URL_INNER} )
      | \( (?: {_URL_INNER} | {_URL_NOT_LAST} )*+ \) )++
  | {_FIRST} [{_NEXT}.+_%\-]{{0,63}}+ @ {_RUN} (?: -{_RUN} )*+ (?: \.{_RUN} (?: -{_RUN} )*+ )++
  | (?<! \w ) [@\#] (?= [\p{{N}}_]*+ \p{{L}} ) [{_NEXT}_]++  # mention, hashtag
  | [A-Z]{{1,3}} \$ (?= \d )                                # US$
  | (
      (?: (?<! [\w.] ) (?: \+\.? | \. ) (?= \p{{Nd}} ) )?+  # +44, .5
      {_RUN}
      (?: (?: [-\u2010\u2011/&\u00B7\u05F3\u05F4] | _++ | ['’]
            | (?<= \d ) ['’′]-                            # 5'-flanking
            | \. (?! (?<= \p{{Ll}}\p{{Ll}}\. ) \p{{Lu}}\p{{Ll}} ) -?+  # but not in "end.Next"
            | (?<= \p{{N}} ) [,:\u066B\u066C] (?= \p{{N}} ) )
          {_RUN} )*+
      (?: \+{{1,2}}+ (?! {_FIRST} )                         # CD4+, C++
        | - (?= ,?[ ](?:and|or|to)[ ] )                   # pre- and post-war
        | (?<= \b[35] ) ['′] (?= [\s\-] ) )?+             # the 5' end
      (?: \. (?! \. ) )?+
    )
  | (?<! \w ) ['’‘] (?i: em | tis | twas | til | cause | bout | n['’]? | \d\ds? ) (?! {_FIRST} )
  | (?<= [\w.)\]"”%] ) ['’] (?i: s | m | d | re | ve | ll ) (?! {_FIRST} )
  | \.{{2,}}+ | [!?]++ | '' | `` | \+/- | -{{1,2}}> | -++ | \*++ | =++ | _++ | ~++ | \#++
  | (?! {_SKIPPED} ) {_GRAPHEME}
  )
    """,
    regex.V1 | regex.VERBOSE,
)
_CLUSTERING = regex.compile(
    rf"[{_EXTENDING}\p{{GCB=Prepend}}\p{{GCB=L}}\p{{GCB=V}}\p{{GCB=T}}]", regex.V1
)
_CLUSTER = regex.compile(_GRAPHEME, regex.V1)
_LONG_RUN = regex.compile(rf"(?<!\S)\S{{{MAX_WORD + 1}}}")
_VISIBLE = regex.compile(rf"[^\s\p{{Cc}}\uFFF9-\uFFFB{_INVISIBLE}]++", regex.V1)

_INITIALS = regex.compile(r"(?:\p{L}\p{M}*+\.-?+)++\p{L}\p{M}*+")
_WITHIN_PARAGRAPH = r"[^\S\r\n]*+(?:\r\n?|\n)?+[^\S\r\n]*+"
_BEFORE_NUMBER = regex.compile(_WITHIN_PARAGRAPH + r"[#(A-Z]?+\p{Nd}")
_BEFORE_REST = regex.compile(_WITHIN_PARAGRAPH + r"[\p{L}\p{N},;:&\-(]")
_STARTER = regex.compile(r"\s*+[\"“‘'«(\[]*+\L<starters>(?![\w.\-])", starters=_STARTERS)


def split_words(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) character offsets of every word, in order."""
    spans: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(text):
        span = match.span()
        if match.lastindex is None:
            spans.append(span)
            continue
        start, end = span
        word_end = end
        if text[end - 1] == ".":
            previous_end = spans[-1][1] if spans else 0
            if not _keeps_period(text, previous_end, start, end):
                word_end -= 1
        word = text[start:word_end]
        if "'" in word or "’" in word:
            spans.extend(_split_clitics(word, start))
        else:
            spans.append((start, word_end))
        if word_end < end:
            spans.append((word_end, end))
    if not text.isascii() and _CLUSTERING.search(text):
        spans = _join_clusters(text, spans)
    if _LONG_RUN.search(text):
        return [piece for span in spans for piece in _pieces(text, *span)]
    return spans


def _keeps_period(text: str, previous_end: int, start: int, end: int) -> bool:
    """Return True if the period at `end - 1` belongs to the word before it."""
    word = text[start : end - 1]
    if _listed(word, _LEADING) or _listed(word, _TRAILING):
        return True
    if _listed(word, _NUMBERED) and _BEFORE_NUMBER.match(text, end):
        return True
    if len(word) == 1 and word.isupper():  # an initial, unless it ends its sentence
        return bool(_BEFORE_REST.match(text, end)) and not _STARTER.match(text, end)
    if word.isdecimal():  # the number of a list item
        at_line_start = previous_end == 0 or _line_breaks(text, previous_end, start) > 0
        return at_line_start and len(word) <= 3 and text[end : end + 1] in (" ", "\t")
    if _INITIALS.fullmatch(word):
        return True
    return word.isalpha() and text[end : end + 1] in (",", ";", ":")


def _listed(word: str, abbreviations: frozenset[str]) -> bool:
    return word in abbreviations or (len(word) > 1 and word.lower() in abbreviations)


def _split_clitics(word: str, offset: int) -> list[tuple[int, int]]:
    """Split off all trailing clitics ("n't", "'s", "'ll" ...)."""
    plain = word.replace("’", "'").lower()
    cuts = [len(word)]
    while (cut := plain.rfind("'", 0, cuts[-1])) > 0:
        ending = plain[cut + 1 : cuts[-1]]
        if ending == "t" and plain[cut - 1] == "n" and cut > 1:
            cuts.append(cut - 1)
        elif ending in _CLITICS:
            cuts.append(cut)
        else:
            break
    cuts.append(0)
    return [(offset + start, offset + end) for start, end in pairwise(reversed(cuts))]


def _join_clusters(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Extend words that start or end inside a grapheme cluster to the whole cluster."""
    bounds: dict[int, tuple[int, int]] = {}
    for match in _CLUSTER.finditer(text):
        start, end = match.span()
        # A mark after white space forms a cluster with it, but white space belongs to no word.
        if end - start > 1 and not any(map(str.isspace, match.group())):
            for inside in range(start + 1, end):
                bounds[inside] = start, end
    whole: list[tuple[int, int]] = []
    for start, end in spans:
        if start in bounds:
            start = bounds[start][0]
        if end in bounds:
            end = bounds[end][1]
        if whole and start < whole[-1][1]:
            previous_start, previous_end = whole.pop()
            start, end = min(start, previous_start), max(end, previous_end)
        whole.append((start, end))
    return whole


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the word, or parts of at most MAX_WORD characters of a longer one."""
    if end - start > MAX_WORD:
        for match in _CLUSTER.finditer(text, start, end):
            if match.end() - start > MAX_WORD and match.start() > start:
                yield start, match.start()
                start = match.start()
    yield start, end


def visible_gaps(text: str, words: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of visible characters, or of lone surrogates, that are in no word."""
    gaps, position = [], 0
    for start, end in (*words, (len(text), len(text))):
        if start > position:
            gaps += [match.span() for match in _VISIBLE.finditer(text, position, start)]
        position = end
    return gaps


# --- Sentences ------------------------------------------------------------------------------

_FINAL = frozenset(".!?…‽⁇⁈⁉。！？｡؟۔।॥։።")
_FINAL_WITHOUT_SPACE = frozenset("。！？｡")
_CLOSING = frozenset("\"'”’)]}»›」』）】》〉］｝")
_CITATION = regex.compile(r"(?:\[\d{1,3}\])++")
_OPENING = r"[\"'“‘„«‹¿¡(\[{「『（*_–—-]*+\s?+"
_NEW_SENTENCE = regex.compile(
    rf"{_OPENING}(?:[^\p{{Ll}}\p{{P}}\s]|[@#]|\p{{Ll}}++-?+[\p{{Lu}}\p{{Nd}}]|https?:)"
)
_NEW_SENTENCE_ANY_CASE = regex.compile(rf"{_OPENING}[^\p{{P}}\s]")
_BULLET = regex.compile(r"(?:[-*+•‣◦▪●○■□–·]|\(?[a-zA-Z\d]\)|\d{1,3}[.)])[ \t]")


class _Ending(IntEnum):
    """Evidence that a sentence ends at the current word."""

    NONE = 0
    ABBREVIATION = 1  # ends a sentence only before a word in _STARTERS
    FULL = 2  # ends it if the following text looks like a sentence
    FULL_WITHOUT_SPACE = 3  # always ends it


def split_sentences(text: str) -> list[TextSentence]:
    """Return the non-empty sentences in order; every word belongs to exactly one of them."""
    spans = split_words(text)
    sentences: list[TextSentence] = []
    first = 0
    for last in _sentence_ends(text, spans):
        starts, ends = map(list, zip(*spans[first:last], strict=True))
        words = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        sentences.append(TextSentence(words, starts, ends))
        first = last
    return sentences


def _sentence_ends(text: str, spans: list[tuple[int, int]]) -> list[int]:
    """Return the index after the last word of each sentence."""
    is_lower = text.islower()
    new_sentence = _NEW_SENTENCE_ANY_CASE if is_lower else _NEW_SENTENCE
    closed = line_ends(text, is_lower) if len(text.splitlines()) > 1 else frozenset()
    ends: list[int] = []
    ending = _Ending.NONE
    previous_end = -1
    citation_end = 0
    for index, ((start, end), (following, _)) in enumerate(pairwise(spans), 1):
        attached = start == previous_end
        previous_end = end
        if text[end - 1] in _FINAL:
            ending = _ending(text, start, end)
        elif ending and start >= citation_end and not (attached and text[start] in _CLOSING):
            ending = _Ending.NONE
        if following == end:
            if not ending or end < citation_end:
                continue
            mark = text[end]
            if mark in _CLOSING or mark in _FINAL:
                continue
            if mark == "[" and (citation := _CITATION.match(text, end)):
                citation_end = citation.end()
                continue
            # Sentences without a space between them: "end.Next", but not ".NET" or "U.S.A".
            is_end = ending == _Ending.FULL_WITHOUT_SPACE or (
                ending == _Ending.FULL and attached and mark.isupper()
            )
        else:
            breaks, is_cell = 0, False
            if following > end + 1 or text[end] != " ":
                breaks = _line_breaks(text, end, following)
                is_cell = not breaks and "\t" in text[end:following]
            if is_cell:  # of a table, unless it is the mark of a list item
                is_end = not _BULLET.match(text, start)
            elif breaks > 1 or (
                breaks
                and (ending >= _Ending.FULL or end in closed or _BULLET.match(text, following))
            ):
                is_end = True
            elif ending == _Ending.ABBREVIATION:
                is_end = _STARTER.match(text, following) is not None
            elif ending:
                is_end = new_sentence.match(text, following) is not None
            else:
                continue
        if is_end:
            ends.append(index)
            ending = _Ending.NONE
    if spans:
        ends.append(len(spans))
    return ends


def _ending(text: str, start: int, end: int) -> _Ending:
    """Classify a word whose last character is sentence-final."""
    if text[end - 1] in _FINAL_WITHOUT_SPACE:
        return _Ending.FULL_WITHOUT_SPACE
    if text[end - 1] != "." or text[start] in _FINAL:
        return _Ending.FULL
    word = text[start : end - 1]
    if word.isdecimal() or _listed(word, _LEADING) or _listed(word, _NUMBERED):
        return _Ending.NONE
    return _Ending.ABBREVIATION


def _line_breaks(text: str, start: int, end: int) -> int:
    """Count line breaks in the white space text[start:end]; a paragraph separator counts twice."""
    gap = text[start:end] + "."
    return len(gap.splitlines()) - 1 + gap.count("\u2029")
