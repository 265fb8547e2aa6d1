"""Word and sentence splitting: examples, invariants over random text, and linear time."""

from __future__ import annotations

import random
import time

import pytest
import regex

from diffusionner.text import split_sentences, split_words


def words(text: str) -> list[str]:
    return [text[start:end] for start, end in split_words(text)]


def sentences(text: str) -> list[str]:
    return [" ".join(sentence.words) for sentence in split_sentences(text)]


# The expected words, separated by spaces.
WORDS = [
    ("", ""),
    (" \t\r\n ", ""),
    ("word", "word"),
    ("Stop, now!", "Stop , now !"),
    ('He said: "Go (away)."', 'He said : " Go ( away ) . "'),
    # clitics
    ("don't DON’T can't", "do n't DO N’T ca n't"),
    ("John's we'll we’ll I'm they've you'd", "John 's we 'll we ’ll I 'm they 've you 'd"),
    ("wouldn't've O'Brien's", "would n't 've O'Brien 's"),
    ("the U.S.'s \"Time\"'s James' 1990's", "the U.S. 's \" Time \" 's James ' 1990 's"),
    ("O'Brien o'clock d'Herbinville Xi’an", "O'Brien o'clock d'Herbinville Xi’an"),
    ("get 'em in '98, rock 'n' roll", "get 'em in '98 , rock 'n' roll"),
    ("'quoted' ‘quoted’ n't", "' quoted ' ‘ quoted ’ n't"),
    # hyphens, dashes, dots, slashes
    ("NF-kappa interleukin-2 mother-in-law", "NF-kappa interleukin-2 mother-in-law"),
    ("pre- and post-war", "pre- and post-war"),
    ("a--b a—b a–b a - b ---", "a -- b a — b a – b a - b ---"),
    ("Wait... what….. no", "Wait ... what … .. no"),
    ("the end.Next one", "the end . Next one"),
    ("NF-kappaB/Rel and/or 1/2", "NF-kappaB/Rel and/or 1/2"),
    ("AT&T S&P R & D", "AT&T S&P R & D"),
    ("_emphasis_ snake_case ****", "_ emphasis _ snake_case ****"),
    ("What?! No!!!", "What ?! No !!!"),
    ("CD4+ C++ a+b +/- 5'-flanking -->", "CD4+ C++ a + b +/- 5'-flanking -->"),
    # numbers
    ("1,234.5 3.5 10:30 1996-08-22 08/26/96", "1,234.5 3.5 10:30 1996-08-22 08/26/96"),
    ("50% $5 US$5 €3 +44 .500 -5", "50 % $ 5 US$ 5 € 3 +44 .500 - 5"),
    ("It cost 3.5. In 1996, 2, 3", "It cost 3.5 . In 1996 , 2 , 3"),
    # abbreviations
    ("Mr. J. Smith, Inc., e.g. here", "Mr. J. Smith , Inc. , e.g. here"),
    ("in the U.S. today, U.S.-led, at 5 p.m.", "in the U.S. today , U.S.-led , at 5 p.m."),
    ("a Ph.D. vs. St. Paul et al. etc.", "a Ph.D. vs. St. Paul et al. etc."),
    ("No. 5 is no. Fig. 3, c. 1900", "No. 5 is no . Fig. 3 , c. 1900"),
    ("Plan B. The end of B.", "Plan B . The end of B ."),
    # the internet
    ("See https://a.org/b?c=d&e=f, www.x.org.", "See https://a.org/b?c=d&e=f , www.x.org ."),
    ("(http://en.org/Foo_(bar))", "( http://en.org/Foo_(bar) )"),
    ("Mail joe.b+c@ex-am.co.uk.", "Mail joe.b+c@ex-am.co.uk ."),
    ("@user_1: #tag, #1 a@b", "@user_1 : #tag , # 1 a @ b"),
    # other scripts
    ("我在北京。", "我 在 北 京 。"),
    ("東京でラーメン、かよ", "東 京 で ラ ー メ ン 、 か よ"),
    ("か\u3099き #话题#", "か\u3099 き # 话 题 #"),
    ("สวัสดี", "ส วั ส ดี"),
    ("한국어 문장.", "한국어 문장 ."),
    ("مرحبا، بالعالم؟", "مرحبا ، بالعالم ؟"),
    ("שלום, צה״ל", "שלום , צה״ל"),
    ("नमस्ते दुनिया।", "नमस्ते दुनिया ।"),
    ("می\u200cخواهم", "می\u200cخواهم"),
    ("Müller’s Köln", "Müller ’s Köln"),
    # grapheme clusters
    ("cafe\u0301s e\u0301", "cafe\u0301s e\u0301"),
    ("ok👍🏽👩\u200d👩\u200d👧!", "ok 👍🏽 👩\u200d👩\u200d👧 !"),
    ("🇩🇪🇫🇷🇩 1\ufe0f\u20e3", "🇩🇪 🇫🇷 🇩 1\ufe0f\u20e3"),
    ("...\u0301 (\u0301a John's\u0301", "...\u0301 (\u0301 a John's\u0301"),
    # white space and the invisible
    ("\ufeffHi\u200bthere\xa0you\x00all\u2028now", "Hi there you all now"),
    ("one\r\ntwo\rthree\tfour\x0bfive", "one two three four five"),
    ("co\u00adop \u200f(\u200e) \u200d \ud800 \ufe0f", "co\u00adop ( )"),
]


@pytest.mark.parametrize(("text", "expected"), WORDS)
def test_words(text: str, expected: str) -> None:
    assert words(text) == expected.split()


SENTENCES = [
    ("", []),
    (" \n\n\t ", []),
    ("word", ["word"]),
    ("One. Two! Three? Four… Five", ["One .", "Two !", "Three ?", "Four …", "Five"]),
    ("He paused... Then left. 15 died.", ["He paused ...", "Then left .", "15 died ."]),
    ("It cost 3.5 million. lower goes on.", ["It cost 3.5 million . lower goes on ."]),
    ("no capitals here. none at all.", ["no capitals here .", "none at all ."]),
    ("It binds. p53 does not. iPhones too.", ["It binds .", "p53 does not .", "iPhones too ."]),
    ("The end.Next one. It uses .NET now.", ["The end .", "Next one .", "It uses . NET now ."]),
    # quotes, brackets, citations
    ('"Stop." He left.', ['" Stop . "', "He left ."]),
    ('"Who?" he asked. “Me.” So?', ['" Who ? " he asked .', "“ Me . ”", "So ?"]),
    ("(He lied.) So? ('Yes!') No", ["( He lied . )", "So ?", "( ' Yes ! ' )", "No"]),
    ('He left. "The end."', ["He left .", '" The end . "']),
    ("It is.[3] The rest.[4][5] End.", ["It is . [ 3 ]", "The rest . [ 4 ] [ 5 ]", "End ."]),
    # abbreviations
    ("Mr. Smith met Dr. Who vs. St. Paul.", ["Mr. Smith met Dr. Who vs. St. Paul ."]),
    ("J. K. Rowling wrote. J. A. Smith read.", ["J. K. Rowling wrote .", "J. A. Smith read ."]),
    ("See Fig. 3, No. 5 and Lee et al. 1999.", ["See Fig. 3 , No. 5 and Lee et al. 1999 ."]),
    ("On Jan. 5 Apple Inc. Chairman Li fell.", ["On Jan. 5 Apple Inc. Chairman Li fell ."]),
    (
        "In Roe v. Wade. King George V. He fell.",
        ["In Roe v. Wade .", "King George V .", "He fell ."],
    ),
    ("e.g. Paris, i.e. The city.", ["e.g. Paris , i.e. The city ."]),
    ("He left the U.S. The U.S. House met.", ["He left the U.S.", "The U.S. House met ."]),
    ("He joined Foo Inc. In May he left.", ["He joined Foo Inc.", "In May he left ."]),
    ("He said no. I agreed.", ["He said no .", "I agreed ."]),
    # line breaks
    ("A heading\n\nA line\nwrapped Mr.\nSmith", ["A heading", "A line wrapped Mr. Smith"]),
    ("One\r\n\r\nTwo\r\rThree\n \u200b\nFour\u2029Five", ["One", "Two", "Three", "Four", "Five"]),
    ("One\r\nline\rhere\u2028still", ["One line here still"]),
    ("It ends.\nlower case", ["It ends .", "lower case"]),
    ("Buy:\n- milk\n* eggs\n1. tea\n(a) jam", ["Buy :", "- milk", "* eggs", "1. tea", "( a ) jam"]),
    ("Mr.\n\nSmith", ["Mr.", "Smith"]),
    # tabs between the cells of a table, but not around a line or after the mark of a list item
    ("Ada Lovelace\tBob Lee \t Paris", ["Ada Lovelace", "Bob Lee", "Paris"]),
    ("\tAda saw the\t\n\tEngine", ["Ada saw the Engine"]),
    ("-\tAda\n1.\tBob", ["- Ada", "1. Bob"]),
    # other scripts
    ("今天。“你好！”他说？！再见", ["今 天 。", "“ 你 好 ！ ”", "他 说 ？ ！", "再 见"]),
    ("مرحبا؟ نعم. لا", ["مرحبا ؟", "نعم .", "لا"]),
    ("यह है। वह है।", ["यह है ।", "वह है ।"]),
]


@pytest.mark.parametrize(("text", "expected"), SENTENCES)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_offsets_index_the_text() -> None:
    text = "\ufeffJohn’s  dog.\r\n\r\nIt 👍🏽 barks."
    first, second = split_sentences(text)
    assert (first.words, first.starts, first.ends) == (
        ["John", "’s", "dog", "."],
        [1, 5, 9, 12],
        [5, 7, 12, 13],
    )
    assert second.starts == [17, 20, 23, 28]
    assert [text[s:e] for s, e in zip(second.starts, second.ends, strict=True)] == second.words


def test_ten_thousand_words_without_punctuation_are_one_sentence() -> None:
    text = "Word " * 10_000
    (sentence,) = split_sentences(text)
    assert sentence.words == ["Word"] * 10_000
    assert sentence.starts[-1] == 49_995


# --- Invariants -----------------------------------------------------------------------------

PIECES = [
    *" \t\n\r.,;:!?'’\"“”()[]-–—_/&@#$%+*=~`0123456789",
    *["  ", "\r\n", "\n\n", "...", "--", "\xa0", "\u2028", "\u3000", "\x00", "\x1f", "\x85"],
    *["\u200b", "\ufeff", "\u200e", "\u202b", "\u00ad", "\u2060", "\u200c", "\u200d", "\ufe0f"],
    *["word", "Word", "WORD", "don't", "O'Brien", "Mr.", "U.S.", "J.", "e.g.", "No.", "3.5", "'s"],
    *["https://a.org/b", "www.", "joe@x.org", "@me", "#tag", "iPhone", "The", "[3]", "\n- ", "1. "],
    *["é", "ß", "ŉ", "\u0301", "\u0308", "\u0327", "\u20e3", "\u0e33", "\u0903", "\u0600", "ℹ"],
    *["我", "の", "か\u3099", "カ", "ー", "ｶﾞ", "。", "！", "、", "「", "」", "สวัสดี", "ພາສາ"],
    *["한국", "\u1112\u1161\u11ab", "नमस्ते", "क्षि", "مرحبا", "مُحَمَّد", "٣٫٥", "؟"],
    *["שלום", "צה״ל", "\u0e32", "ไทย"],
    *["👍", "👍🏽", "👩\u200d👩\u200d👧", "🇩🇪", "🇫", "🏴\U000e0067\U000e0062\U000e007f", "❤️", "©"],
    *["\ud800", "\U0001d54f", "ﬁ", "½", "²", "€", "\ue000", "\u0378"],
]


INVISIBLE = regex.compile(r"[\p{Cc}\p{Cs}\uFFF9-\uFFFB[\p{DI}--\p{L}]]", regex.V1)


def is_invisible(character: str) -> bool:
    return character.isspace() or INVISIBLE.match(character) is not None


def check_invariants(text: str) -> None:
    spans = split_words(text)
    covered = bytearray(len(text))
    position = 0
    for start, end in spans:
        assert position <= start < end <= len(text)
        position = end
        assert not any(character.isspace() for character in text[start:end])
        assert not all(map(is_invisible, text[start:end]))
        covered[start:end] = b"\1" * (end - start)
    for index, character in enumerate(text):
        assert covered[index] or is_invisible(character), (index, character)

    boundaries = {end for start, end in spans} | {start for start, end in spans}
    for cluster in regex.finditer(r"\X", text):
        if not any(character.isspace() for character in cluster.group()):
            cut = boundaries.intersection(range(cluster.start() + 1, cluster.end()))
            assert not cut, (ascii(cluster.group()), cut)

    found = split_sentences(text)
    assert all(sentence.words for sentence in found)
    assert [span for s in found for span in zip(s.starts, s.ends, strict=True)] == spans
    assert [word for s in found for word in s.words] == [text[s:e] for s, e in spans]


@pytest.mark.parametrize("seed", range(8))
def test_invariants_hold_for_random_mixes(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(250):
        pieces = generator.sample(PIECES, generator.randint(1, 12))
        check_invariants("".join(generator.choices(pieces, k=generator.randint(0, 60))))


def test_invariants_hold_for_random_characters() -> None:
    generator = random.Random(0)
    for _ in range(400):
        limit = generator.choice([0x80, 0x250, 0x3000, 0x110000])
        check_invariants("".join(chr(generator.randrange(limit)) for _ in range(40)))


def test_words_do_not_depend_on_the_text_before_a_paragraph() -> None:
    generator = random.Random(1)
    for _ in range(100):
        head, tail = ("".join(generator.choices(PIECES, k=20)) for _ in range(2))
        joined = f"{head}\n\n{tail}"
        assert words(joined) == words(f"{head}\n\n") + words(f"\n\n{tail}")


# --- Layout ---------------------------------------------------------------------------------

WRAPPED = """\
After the war she returned to the house that her grandfather had built in
Edinburgh, where Mr. Charles Babbage and his friends from the Royal
Society of London used to meet on Thursdays, and she lived there with
Ada Lovelace until the spring of 1852"""
NARROW = """\
She went to the north of
England with her friend
and met a banker from
Leeds who knew them."""
REPLY = """\
> After the war she returned to the house that her grandfather built in
> Edinburgh, where Mr. Charles Babbage and his friends from the Royal
> Society of London used to meet on Thursdays, and she lived there"""
SHOUTED = "THE MINISTER SAID ON TUESDAY THAT THE TALKS IN THE HOTEL\nWOULD GO ON"
PROSE = [
    WRAPPED,
    NARROW,
    REPLY,
    WRAPPED.lower(),
    SHOUTED,
    "the trans-\nport of goods",
    "我在北京" * 10 + "\n上海",
]


@pytest.mark.parametrize("text", PROSE)
def test_a_wrapped_line_does_not_end_a_sentence(text: str) -> None:
    assert len(sentences(text)) == 1


LINES = {
    "names": "Ada Lovelace\nCharles Babbage\nMary Somerville",
    "names in lower case": "ada lovelace\ncharles babbage\nmary somerville",
    "some in lower case": "Ada Lovelace\nnew orleans\nMary Somerville of York\nvan Gogh\nParis",
    "address": "Ada Lovelace\n12 St James's Square\nLondon SW1Y 4JH\nUnited Kingdom",
    "header": "From: Ada Lovelace\nTo: Charles Babbage\nSubject: the Engine and its use",
    "chat": "anna: where is Bob\nbob: in Leeds\nanna: ok",
    "times": "14:05 anna left Leeds\n14:09 bob is in York\n14:11 nobody else came",
    "heading": "The Analytical Engine\n" + WRAPPED,
    "tsv": "name\tplace\tyear\nAda Lovelace\tLondon\t1815\nCharles Babbage\tWalworth\t1791",
    "csv": "name,place of birth,year\nAda Lovelace,Marylebone in London,1815\nBob,Walworth,1791",
    "table": "| Ada Lovelace    | London   |\n| Charles Babbage | Walworth |\n| Mary | York |",
    "columns": "Ada Lovelace       London    1815\nCharles Babbage    Walworth  1791",
    "windows": "Ada Lovelace\r\nCharles Babbage\r\nMary Somerville",
    "indented": "  Ada Lovelace\n  Charles Babbage\n  Mary Somerville",
    "rows of prose": "Ada met Charles in London and wrote about it\nBob left\nMary stayed",
}


@pytest.mark.parametrize("layout", LINES)
def test_lines_that_stand_for_themselves(layout: str) -> None:
    text = LINES[layout]
    expected = 2 if layout == "heading" else len(text.splitlines()) + text.count("\t")
    assert len(sentences(text)) == expected, sentences(text)


def test_names_on_lines_are_not_merged() -> None:
    names = [f"{first} {last}" for last in ("Lovelace", "Lee") for first in ("Ada", "Al", "Jo")]
    assert sentences("\n".join(names)) == names
    assert sentences("Present:\n" + "\n".join(names)) == ["Present :", *names]


@pytest.mark.parametrize("line_break", ["\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"])
def test_every_line_break_counts(line_break: str) -> None:
    for text in (LINES["names"], "Ada Lovelace\n\nof London", "It ends.\nlower case", "1\n2. No"):
        assert sentences(text.replace("\n", line_break)) == sentences(text)


# --- Linear time ----------------------------------------------------------------------------

REPEATED = ["a", ".", "a.a.", "a'", "a's", "a-", "a@", "a+", "a@b-", "_", "#1", "http://(", "www.."]
REPEATED += ["1,", "\u0301", "👩\u200d", "🇦", "क्", "\u0600 ", "我", "。”", " ", "\n", "\u200b"]
REPEATED += ["a\n", "Ab\n", "A:\n", "a,b\n", "a\n\n", "a\tb\t\n", ">\n", "A: ", "a   ", "|"]
REPEATED += ['."', "A. ", "no. ", "U.S. ", ".[1]", ". (", "1.\n", "''"]


@pytest.mark.parametrize("piece", REPEATED, ids=ascii)
def test_time_is_linear_in_repetitive_text(piece: str) -> None:
    text = (piece * 50_000)[:50_000]
    started = time.process_time()
    split_sentences(text)
    assert time.process_time() - started < 3  # a quadratic scan takes far longer


def test_a_million_characters_of_prose() -> None:
    paragraph = (
        "Mr. O'Brien, of the U.S. Navy, didn't leave Köln until 10:30 on Jan. 5, 1996. “Why?” "
        "he asked; the well-known answer cost $1,234.5 million (about 50% more).\n\n"
    )
    text = paragraph * (1_000_000 // len(paragraph))
    started = time.perf_counter()
    found = split_sentences(text)
    assert time.perf_counter() - started < 5
    assert len(found) == 2 * text.count("\n\n")
