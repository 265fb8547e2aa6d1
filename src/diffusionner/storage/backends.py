"""Change how a tokenizer treats the start and the case of words, even without an option for it."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

# The start of a word in two kinds of subwords. Words are tokenised one by one, so each needs it.
_PREFIXES = {"ByteLevel": "Ġ", "Metaspace": "▁"}


def lacks_prefix(backend: Tokenizer) -> bool:
    """Return whether single words do not begin as they do after a space."""
    steps = [step["type"] for step in _steps(_state(backend.pre_tokenizer))]
    prefix = next((_PREFIXES[step] for step in steps if step in _PREFIXES), "")
    if not prefix:
        return False
    text = backend.normalizer.normalize_str("a") if backend.normalizer else "a"
    return not backend.pre_tokenizer.pre_tokenize_str(text)[0][0].startswith(prefix)


def add_prefix(backend: Tokenizer) -> None:
    """Let single words begin as they do after a space, if they do not yet."""
    if not lacks_prefix(backend):
        return
    state = _state(backend.pre_tokenizer)
    if state["type"] == "ByteLevel":
        _replace(backend, "pre_tokenizer", state | {"add_prefix_space": True})
    elif state["type"] == "Metaspace":
        _replace(backend, "pre_tokenizer", state | {"prepend_scheme": "always"})
    else:  # in a sequence, it would be added to each part of a word
        steps = [*_steps(_state(backend.normalizer)), {"type": "Prepend", "prepend": " "}]
        _replace(backend, "normalizer", {"type": "Sequence", "normalizers": steps})


def removes_capitals(backend: Tokenizer) -> bool:
    """Return whether words are lower-cased."""
    return backend.normalizer is not None and "A" not in backend.normalizer.normalize_str("A")


def set_case(backend: Tokenizer, cased: bool) -> None:
    """Keep or remove capitals."""
    if removes_capitals(backend) != cased:
        return
    steps = [step for step in _steps(_state(backend.normalizer)) if step["type"] != "Lowercase"]
    for step in steps:
        if step["type"] == "BertNormalizer":
            step["lowercase"] = not cased
    if not cased and not any("lowercase" in step for step in steps):
        steps.insert(0, {"type": "Lowercase"})
    _replace(backend, "normalizer", {"type": "Sequence", "normalizers": steps})


def _state(part: Any) -> dict[str, Any]:
    """Return a normalizer or pre-tokenizer as JSON."""
    return {} if part is None else dict(json.loads(part.__getstate__()))


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a sequence, or the part itself."""
    if state.get("type") != "Sequence":
        return [state] if state else []
    parts = state.get("normalizers") or state.get("pretokenizers") or []
    return [step for part in parts for step in _steps(part)]


def _replace(backend: Tokenizer, part: str, state: dict[str, Any]) -> None:
    """Set the normalizer or pre-tokenizer, given as JSON, which only a whole tokenizer reads."""
    whole = json.loads(Tokenizer(WordLevel({}, unk_token="")).to_str())
    setattr(backend, part, getattr(Tokenizer.from_str(json.dumps(whole | {part: state})), part))
