"""Models to measure: torch or exported models, or random networks of a given shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.plain import plainly
from diffusionner.errors import SettingsError, nearest
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.torch_engine import PRECISIONS, TorchEngine
from diffusionner.storage import checkpoint
from diffusionner.storage.calibration import load_calibration
from diffusionner.storage.config import ENCODER_FILE

EXPORTED = "exported"  # precision of an ONNX model, fixed by its export


@dataclass(frozen=True)
class Subject:
    name: str
    folder: Path
    device: str
    random: bool = False  # has random weights
    cuda_graphs: bool = True

    @property
    def exported(self) -> bool:
        return (self.folder / ENCODER_FILE).exists()

    @property
    def own_precision(self) -> str:
        """Precision that the library chooses."""
        if self.exported:
            return EXPORTED
        return "bf16" if self.device.startswith("cuda") else "float32"

    def load(self, precision: str | None = None) -> DiffusionNER:
        if self.exported:
            return DiffusionNER.from_pretrained(self.folder, "cpu")
        return DiffusionNER.from_pretrained(
            self.folder, self.device, precision=precision, cuda_graphs=self.cuda_graphs
        )

    def load_plain(self) -> DiffusionNER:
        """Load the same weights on the CPU, without optimisations."""
        network, subwords, settings = checkpoint.load(self.folder)
        engine = TorchEngine(plainly(network))
        return DiffusionNER(engine, subwords, settings, load_calibration(self.folder))


def check_precisions(given: list[str]) -> None:
    for precision in given:
        if precision not in PRECISIONS:
            raise SettingsError(
                f"unknown precision '{precision}'; {nearest(precision, PRECISIONS)}"
            )
