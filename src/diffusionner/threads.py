"""CPU threads of this process and of those it starts."""

from __future__ import annotations

import os

# Read by OpenMP (torch), MKL, OpenBLAS (numpy) and Rayon (tokenizers) when they are loaded.
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
WAIT_POLICY = "OMP_WAIT_POLICY"


def configure_threads(threads: int | None) -> dict[str, str]:
    """Set and return the environment for this many threads; None keeps the libraries' defaults.

    This has no effect on libraries that are loaded already. OpenMP's threads sleep while they wait
    for each other. By default they would spin, and on a machine with other busy processes most of
    the CPU time would go into that (see notes/performance.md).
    """
    os.environ.setdefault(WAIT_POLICY, "passive")
    if threads is not None:
        os.environ.update(dict.fromkeys(VARIABLES, str(threads)))
    return {name: os.environ[name] for name in (WAIT_POLICY, *VARIABLES) if name in os.environ}


def available_threads() -> int:
    """Return OMP_NUM_THREADS, or else the number of cores that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2": nested levels
    if given.isdecimal() and int(given) > 0:
        return int(given)
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
