"""Upload models to the Hugging Face hub; `DiffusionNER.from_pretrained` downloads them."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from diffusionner.errors import WriteError
from diffusionner.storage.config import CARD, ENCODER_FILE, model_files

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER


def push(
    ner: DiffusionNER, name: str, precision: str, private: bool, token: str | None, message: str
) -> str:
    """Upload a model folder and return the URL of the commit."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if ner.folder is not None and (ner.folder / ENCODER_FILE).exists():
            for file in model_files(ner.folder):
                shutil.copyfile(file, folder / file.name)
        else:
            ner.save_pretrained(folder, precision)
        (folder / CARD).write_text(_card(ner, name), encoding="utf-8")
        try:
            api = HfApi(token=token)
            api.create_repo(name, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
        except Exception as error:  # HTTP errors have no common base class
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise WriteError(
                f"the model could not be uploaded to the hub as '{name}': {reason}. Check the "
                "name, the network and your token (`hf auth login`)"
            ) from error
    return str(commit.commit_url)


def _card(ner: DiffusionNER, name: str) -> str:
    """Return the model card in the folder, or else a short one."""
    if ner.folder is not None and (ner.folder / CARD).exists():
        return (ner.folder / CARD).read_text(encoding="utf-8")
    inference = ner.settings.inference
    method, details = "by boundary denoising (DiffusionNER)", ""
    if ner.settings.denoises:
        values = [f"{name}={getattr(inference, name)}" for name in ("start", "steps", "spans")]
        details = f"Inference settings: {', '.join(values)}.\n"
    else:
        method = f"with method={ner.settings.method}, a baseline of DiffusionNER"
    types = ", ".join(f"`{label}`" for label in ner.labels)
    return f"""---
library_name: diffusionner
pipeline_tag: token-classification
tags: [named-entity-recognition, nested-ner, {ner.settings.method}]
---

# {name}
Named entity recognition {method}. Types: {types}.

```python
from diffusionner import DiffusionNER

ner = DiffusionNER.from_pretrained({json.dumps(name)})
for entity in ner("Ada Lovelace met Charles Babbage in London."):
    print(entity.start, entity.end, entity.label, round(entity.score, 2), entity.text)
```

{details}This card has no measurements yet.
"""
