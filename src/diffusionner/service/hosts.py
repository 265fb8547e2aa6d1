"""Host names to which the service answers, as a defence against DNS rebinding.

A website can make its own name point to this machine. The browser then takes the service for a part
of that site and lets its scripts read the answers. The Host header still has the site's name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from diffusionner.errors import SettingsError

LOCAL = {"localhost", "127.0.0.1", "[::1]"}
MAX_BYTES = 300  # of a Host header; names have at most 253
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


class AllowedHosts:
    """Names that a Host header may have, with any port.

    A service on a loopback address answers as localhost. On other addresses it also answers to IP
    addresses and to names without a dot, such as those of containers: no website can have these.
    """

    def __init__(self, address: str, names: Sequence[str] = ()) -> None:
        """address: where the service listens; names: further names, or * for all."""
        self.all = "*" in names
        self.names = {*LOCAL, f"[{address}]" if ":" in address else address.lower()}
        self.local = address.lower() == "localhost" or _is_address(address, loopback=True)
        for name in names:
            match = _HOST.fullmatch(name.lower())
            if name != "*" and (match is None or match[2]):
                raise SettingsError(
                    f"--allowed-host {name[:80]!r} is not a host name; give it without scheme, "
                    "port and path, or * for all"
                )
            self.names.add(name.lower())

    def allow(self, headers: Sequence[bytes]) -> bool:
        """Return True if these are the values of the Host headers of a request to answer."""
        if self.all:
            return True
        if len(headers) != 1 or len(headers[0]) > MAX_BYTES:
            return False
        match = _HOST.fullmatch(headers[0].decode("latin-1").lower())
        if match is None:
            return False
        name = match[1]
        unowned = "." not in name or _is_address(name)
        return name in self.names or (not self.local and unowned)


def _is_address(name: str, loopback: bool = False) -> bool:
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or not loopback
