"""Models on the Hugging Face hub. Loading by name is `DiffusionNER.from_pretrained`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from diffusionner.errors import WriteError
from diffusionner.integrations.model_files import copy_model
from diffusionner.storage.config import CARD, ENCODER_FILE

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER


def push(
    ner: DiffusionNER, name: str, precision: str, private: bool, token: str | None, message: str
) -> str:
    """Write a model's folder and upload it; the address of the commit."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if ner.folder is not None and (ner.folder / ENCODER_FILE).exists():
            copy_model(ner.folder, folder)
        else:
            ner.save_pretrained(folder, precision)
        card = card_of(ner, name)
        (folder / CARD).write_text(card, encoding="utf-8")
        try:
            api = HfApi(token=token)
            api.create_repo(name, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
        except Exception as error:  # those of the HTTP library beneath it have no common class
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise WriteError(
                f"the model could not be put on the hub as '{name}': {reason}. Check the name, the "
                "network and your token (`hf auth login`)"
            ) from error
    return str(commit.commit_url)


def card_of(ner: DiffusionNER, name: str) -> str:
    """Return the card in the model's folder, or else a short one without measurements."""
    if ner.folder is not None and (ner.folder / CARD).exists():
        return (ner.folder / CARD).read_text(encoding="utf-8")
    inference = ner.settings.inference
    how, own = "by boundary denoising (DiffusionNER)", ""
    if ner.settings.denoises:
        values = [f"{name}={getattr(inference, name)}" for name in ("start", "steps", "spans")]
        own = f"Settings of its own: {', '.join(values)}.\n"
    else:
        how = f"with method={ner.settings.method}, a rival of DiffusionNER"
    front: dict[str, Any] = {
        "library_name": "diffusionner",
        "pipeline_tag": "token-classification",
        "tags": ["named-entity-recognition", "nested-ner", ner.settings.method],
    }
    types = ", ".join(f"`{label}`" for label in ner.labels)
    return f"""---
{yaml.safe_dump(front, sort_keys=False)}---

# {name}
Named entity recognition {how}. Types: {types}.

```python
from diffusionner import DiffusionNER

ner = DiffusionNER.from_pretrained({json.dumps(name)})
for entity in ner("Ada Lovelace met Charles Babbage in London."):
    print(entity.start, entity.end, entity.label, round(entity.score, 2), entity.text)
```

{own}This card has no measurements yet.
"""
