"""The machine, its memory and the installed versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("diffusionner", "torch", "transformers", "tokenizers", "numpy", "onnxruntime")


def load() -> float:
    """Return the average load of the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def describe(device: str) -> dict[str, Any]:
    on_gpu = device.startswith("cuda")
    return {
        "processor": _processor(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if on_gpu else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    with suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class PeakMemory:
    """Peak memory since its creation, in MB: of the process, and of tensors on the GPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        # Reset the high-water mark; if that fails, it covers the process so far.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> dict[str, float | None]:
        gpu = None
        if self.device.startswith("cuda"):
            gpu = torch.cuda.max_memory_allocated(self.device) / 1e6
        return {"resident_mb": _resident(), "gpu_mb": gpu}


def _resident() -> float:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
