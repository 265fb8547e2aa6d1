"""The calibration stored with a model: a map from summed probabilities to scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffusionner.errors import CheckpointError
from diffusionner.storage.config import read_config

MAX_SUM = 3.0  # of three probabilities


@dataclass(frozen=True)
class Calibration:
    """Non-decreasing interpolation between knots, and the best threshold on dev for each type."""

    sums: tuple[float, ...]  # summed probabilities, increasing
    probabilities: tuple[float, ...]  # non-decreasing
    thresholds: Mapping[str, float]
    threshold: float | None = None  # of all types alike, if labels are open
    gapped: Calibration | None = None  # of discontinuous entities

    def threshold_of(self, label: str) -> float:
        """Return the minimum score of a type."""
        return self.thresholds[label] if self.threshold is None else self.threshold

    def scores(self, sums: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the probabilities that entities with these sums are right."""
        return np.asarray(np.interp(sums, self.sums, self.probabilities))

    def min_sum(self, score: float) -> float:
        """Return the smallest sum with at least this score."""
        if score <= self.probabilities[0]:
            return 0.0
        if score > self.probabilities[-1]:
            return np.inf
        after = int(np.searchsorted(self.probabilities, score))  # the first knot that reaches it
        low, high = self.probabilities[after - 1], self.probabilities[after]
        share = (score - low) / (high - low)
        return float(self.sums[after - 1] + share * (self.sums[after] - self.sums[after - 1]))

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        if self.threshold is None:
            del values["threshold"]
        del values["gapped"]
        return values if self.gapped is None else values | {"gapped": self.gapped.to_dict()}

    @classmethod
    def from_dict(cls, values: Any, labels: Sequence[str], origin: str) -> Calibration:
        """Read and check the calibration in config.json."""
        try:
            sums = _numbers(values["sums"], MAX_SUM)
            probabilities = _numbers(values["probabilities"], 1)
            thresholds = values["thresholds"]
            thresholds = dict(zip(thresholds, _numbers(thresholds.values(), 1), strict=True))
            shared = _numbers([values["threshold"]], 1)[0] if "threshold" in values else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{origin}: 'calibration' needs lists of numbers 'sums' (0 to 3) and "
                "'probabilities' (0 to 1) and a table 'thresholds' (0 to 1); run `diffusionner "
                "calibrate` again"
            ) from error
        ascending = len(sums) == len(probabilities) > 0 and bool(
            (np.diff(sums) > 0).all() and (np.diff(probabilities) >= 0).all()
        )
        if not (ascending and set(thresholds) == set(() if shared is not None else labels)):
            raise CheckpointError(
                f"{origin}: 'calibration' must be ascending and have a threshold for each label; "
                "run `diffusionner calibrate` again"
            )
        gapped = values.get("gapped")
        if gapped is not None:
            gapped = cls.from_dict(gapped, labels, origin)
        return cls(sums, probabilities, thresholds, shared, gapped)


def _numbers(values: Iterable[Any], high: float) -> tuple[float, ...]:
    """Return values as floats; raise ValueError unless all are numbers between 0 and `high`."""
    numbers = tuple(values)
    if not all(type(x) in (int, float) and 0 <= x <= high for x in numbers):  # false for NaN
        raise ValueError("not a number, or out of range")
    return tuple(map(float, numbers))


def load_calibration(folder: Path) -> Calibration | None:
    """Read the calibration of a model's folder, if it has one."""
    config = read_config(folder)
    values = config.get("calibration")
    if values is None:
        return None
    return Calibration.from_dict(values, config["labels"], str(folder / "config.json"))
