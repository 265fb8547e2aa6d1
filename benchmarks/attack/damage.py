"""Damage to bytes at random."""

from __future__ import annotations

import re
from random import Random

_NUMBER = re.compile(rb"\d+")
_STRING = re.compile(rb'"[^"]*"|\w+')
_INSTEAD = tuple(b'-1|0|7|99999999999999999999|1.5|""|null|[]|{}|true|NaN|1e400|"x"'.split(b"|"))
_INSERTED = (
    *(b'"', b",", b"\n", b"\n\n", b"\r", b"\r\n", b"\t", b" ", b"\0", b"\xff", b"\xc2\x85", b"#"),
    *(
        b"\xe2\x80\xa8",
        b"\xef\xbb\xbf",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\\",
        b"<",
        b">",
        b"&",
        b"(",
        b")",
    ),
    *(b"-", b"\xed\xa0\x80", b"\\ud800", b"O", b"B-"),
)


def damage(content: bytes, chance: Random) -> bytes:
    """Return the content with one to five changes, never as it was."""
    changed = content
    while changed == content:
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            changed = _change(changed, chance)
    return changed


def _change(content: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    how = chance.randrange(9)
    if how == 0:
        return content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :]
    if how == 1:
        return content[:at] + content[at + chance.choice((1, 1, 2, 9)) :]
    if how == 2:
        return content[:at] + content[max(0, at - chance.randrange(30)) :]
    if how == 3:
        return content[:at] + chance.choice(_INSERTED) + content[at:]
    if how == 4 and chance.random() < 0.3:
        return content[:at]
    if how in (5, 6):
        lines = content.split(b"\n")
        one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        if how == 5:
            lines[one], lines[other] = lines[other], lines[one]
        else:
            del lines[one]
        return b"\n".join(lines)
    places = list((_NUMBER if how == 7 else _STRING).finditer(content))
    if not places:
        return content + chance.choice(_INSERTED)
    start, end = chance.choice(places).span()
    return content[:start] + chance.choice(_INSTEAD) + content[end:]
