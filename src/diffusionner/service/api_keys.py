"""API keys: one per line in a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from diffusionner.errors import SettingsError


class ApiKeys:
    """Stores digests, so that timing reveals neither the length nor the content of a key."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file with one key per line, ignoring empty lines and comments (#)."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"the API keys in {path} cannot be read: {error}") from error
        keys = [line.strip() for line in lines]
        keys = [key for key in keys if key and not key.startswith("#")]
        if not keys:
            raise SettingsError(f"{path} contains no API keys; write one per line")
        return cls(keys)

    def allow(self, authorization: bytes) -> bool:
        """Return True if the header is `Bearer KEY` with a known key. Always compares all keys."""
        scheme, _, key = authorization.partition(b" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches) and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
