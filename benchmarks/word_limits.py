"""`python -m benchmarks word-limits`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner import formats
from diffusionner.files import write_bytes
from diffusionner.storage.config import config_bytes, read_config
from diffusionner.word_limits import WordLimits


def word_limits(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.")],
    data: Annotated[list[Path], typer.Argument(help="The corpora that it was trained on.")],
) -> None:
    """Write into config.json how many words the model reads at once.

    Training writes these numbers; a model trained by release 0.1 has none. Nothing else in the
    folder changes.
    """
    config = read_config(model)
    passages = config["settings"]["encoder"].get("passage_words", 0) > 0
    sentences = [sentence for file in data for sentence in formats.read(file)]
    limits = WordLimits.of(sentences, passages)
    write_bytes(model / "config.json", config_bytes({**config, "word_limits": limits._asdict()}))
    print(
        f"{model}: sentences of up to {limits.sentence} words and {limits.separators} separators, "
        f"windows of {limits.window} words"
    )
