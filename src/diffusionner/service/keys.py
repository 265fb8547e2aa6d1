"""API keys: one a line in a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from diffusionner.errors import SettingsError


class ApiKeys:
    """Keeps digests, so that neither the length nor the place of a key can be timed."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Lines of the file; empty ones and those that begin with # are no keys."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"the API keys in {path} cannot be read: {error}") from error
        keys = [line.strip() for line in lines]
        keys = [key for key in keys if key and not key.startswith("#")]
        if not keys:
            raise SettingsError(f"{path} has no API keys; write one on each line")
        return cls(keys)

    def allow(self, authorization: bytes) -> bool:
        """Whether the header is `Bearer KEY` with one of the keys. All are compared, always."""
        scheme, _, key = authorization.partition(b" ")
        digest = _digest(key.strip())
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(found) and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
