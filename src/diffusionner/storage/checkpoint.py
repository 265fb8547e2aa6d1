"""A trained model as a folder: config.json, model.safetensors and the tokenizer. No pickle."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from diffusionner.batching.subwords import (
    BACKEND_FILE,
    NAMES_FILE,
    SubwordTokenizer,
    parse_backend,
)
from diffusionner.errors import CheckpointError, WriteError, first_line
from diffusionner.files import (
    Writer,
    bytes_writer,
    file_digest,
    open_regular,
    read_bounded,
    write_all_or_none,
)
from diffusionner.methods import network_class
from diffusionner.model import bert
from diffusionner.model.base import Network
from diffusionner.model.encoder import Transformer, position_limit
from diffusionner.settings import Settings
from diffusionner.storage.calibration import Calibration
from diffusionner.storage.config import (
    WEIGHTS,
    check_files,
    config_bytes,
    new_config,
    read_config,
    read_word_limits,
)
from diffusionner.storage.initializers import INPUTS, SCALE
from diffusionner.storage.packing import (
    FLOATS,
    StoredTensor,
    pack,
    read_header,
    read_tensors,
    unpack,
)

BYTES_PER_SUBWORD = 500  # in tokenizer.json; real ones have up to 200
MAX_NUMBER = 2**20  # in an encoder's config, beside the sizes of its tensors
MIN_VOCABULARY = 0.9  # share of the encoder's embeddings that its tokenizer uses


def save(
    folder: Path,
    network: Network,
    tokenizer: SubwordTokenizer,
    settings: Settings,
    calibration: Calibration | None = None,
    precision: str = "float32",
    self_test: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder: all of its files or none.

    self_test: what `inference.self_test.record` returns.
    """
    config = model_config(network, tokenizer, settings, calibration, self_test)
    parts = {name: bytes_writer(content) for name, content in tokenizer_files(tokenizer).items()}
    weights = pack(network.state_dict(), precision)
    parts[WEIGHTS] = tensor_writer(weights, {"format": "pt"})
    digests: dict[str, Any] = {}

    def write_part(name: str, temporary: Path) -> None:
        parts[name](temporary)
        digests[name] = file_digest(temporary)

    def write_config(temporary: Path) -> None:
        temporary.write_bytes(config_bytes({**config, "files": digests}))

    writers: dict[Path, Writer] = {folder / name: partial(write_part, name) for name in parts}
    write_all_or_none({**writers, folder / "config.json": write_config})  # in this order


def model_config(
    network: Network,
    tokenizer: SubwordTokenizer,
    settings: Settings,
    calibration: Calibration | None,
    self_test: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return config.json without the digests of the other files."""
    encoder_config = network.encoder.transformer.config.to_dict()
    # Settings record where the encoder came from; these depend on the machine or the run.
    for name in ("_name_or_path", "dtype", "torch_dtype", "transformers_version"):
        encoder_config.pop(name, None)
    values = None if calibration is None else calibration.to_dict()
    config = new_config(network.labels, settings, values, tokenizer.word_limits)
    config["encoder_config"] = encoder_config
    if self_test is not None:
        config["self_test"] = self_test
    return config


def tokenizer_files(tokenizer: SubwordTokenizer) -> dict[str, bytes]:
    if tokenizer.files is not None:
        return tokenizer.files
    with tempfile.TemporaryDirectory() as scratch:
        try:
            tokenizer.hf.save_pretrained(scratch)
        except Exception as error:  # tokenizers has no exception class of its own
            raise WriteError(
                f"the tokenizer cannot be written to {scratch} ({error}); no existing file was "
                "changed. Check the free disk space"
            ) from error
        return {file.name: file.read_bytes() for file in sorted(Path(scratch).iterdir())}


def tensor_writer(
    tensors: Mapping[str, Tensor], metadata: dict[str, str]
) -> Callable[[Path], None]:
    """Return a function that writes a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        try:
            save_file(plain, temporary, metadata)
        except SafetensorError as error:  # its error for a full disk
            raise OSError(str(error)) from error

    return write


class _Building(TorchFunctionMode):
    """Build a network without initial weights, and no larger than its weights file.

    Random weights take time, and are replaced right away. Uninitialised memory is not used yet, so
    a config.json that asks for a huge network is refused before it takes any.
    """

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        super().__init__()
        self.calls = 100 + 50 * len(stored)
        self.elements = 2**26 + 2 * sum(math.prod(one.shape) for one in stored.values())

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        result = func(*args, **kwargs)
        self.calls -= 1
        if func is torch.empty:
            self.elements -= result.numel()
        if self.calls < 0 or self.elements < 0:
            raise ValueError("it describes a larger network than the weights file holds")
        return result


def load(folder: str | Path) -> tuple[Network, SubwordTokenizer, Settings]:
    """Load a network (on the CPU, float32, in eval mode) with its tokenizer and settings."""
    folder = Path(folder)
    config = read_config(folder, "encoder_config")
    settings = Settings.from_dict(config["settings"], str(folder / "config.json"))
    word_limits = read_word_limits(config, folder / "config.json")
    weights = folder / WEIGHTS
    stored = read_header(weights)
    try:
        _check_kind(config["encoder_config"])
        _check_numbers(config["encoder_config"], stored)
        with _Building(stored):
            transformer: Transformer
            if bert.is_supported(config["encoder_config"]):
                transformer = bert.Bert(config["encoder_config"])
            else:
                from diffusionner.storage.encoders import build_encoder  # imports transformers

                transformer = build_encoder(config["encoder_config"])
            network = network_class(settings.method)(transformer, config["labels"], settings)
    except Exception as error:  # a damaged config can raise anything
        raise CheckpointError(
            f"{folder / 'config.json'}: no network can be built from it ({type(error).__name__}: "
            f"{first_line(error)}); restore the file from a good copy, or update transformers"
        ) from error
    _check_shapes(network, stored, weights)
    check_files(folder, config)
    load_weights(network, weights, assign=True)
    tokenizer = _read_tokenizer(folder, transformer, has_digests="files" in config)
    tokenizer.word_limits = word_limits
    return network.eval(), tokenizer, settings


def _check_kind(values: Any) -> None:
    """Raise ValueError for what is no encoder's config, before transformers is imported."""
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ValueError("encoder_config does not name a model_type")
    if values.get("is_decoder"):
        raise ValueError("encoder_config has is_decoder, but an encoder is needed")


def _check_numbers(values: Any, stored: Mapping[str, StoredTensor]) -> None:
    """Raise ValueError for a number in an encoder's config that no encoder of this file can have.

    Most are sizes of tensors; a few, such as the range of rotary positions, are not.
    """
    largest = max((size for one in stored.values() for size in one.shape), default=0)
    limit = max(largest, MAX_NUMBER)
    queue = [("encoder_config", values)]
    while queue:
        name, value = queue.pop()
        if isinstance(value, dict):
            queue += value.items()
        elif isinstance(value, list):
            queue += ((name, one) for one in value)
        elif isinstance(value, int) and abs(value) > limit:
            raise ValueError(f"{name} is {value:.3g}, more than the weights file allows")


def _read_tokenizer(folder: Path, transformer: Transformer, has_digests: bool) -> SubwordTokenizer:
    # Without this file, transformers would build a tokenizer with an empty vocabulary.
    if not (folder / BACKEND_FILE).exists():
        raise CheckpointError(f"{folder} has no {BACKEND_FILE}; copy the whole folder again")
    try:
        tokenizer = _load_tokenizer(folder, transformer)
        largest = max(tokenizer.backend.get_vocab().values(), default=0)
    except Exception as error:  # a damaged file can raise anything
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({type(error).__name__}: "
            f"{first_line(error)}); copy the whole folder again"
        ) from error
    rows = transformer.config.vocab_size
    fewest = 0 if has_digests else MIN_VOCABULARY * rows
    if not fewest <= largest + 1 <= rows:
        raise CheckpointError(
            f"the tokenizer in {folder} has {largest + 1} subwords, but the encoder {rows}; it "
            "comes from another model. Copy the whole folder again"
        )
    return tokenizer


def _load_tokenizer(folder: Path, transformer: Transformer) -> SubwordTokenizer:
    size = 2**20 + BYTES_PER_SUBWORD * transformer.config.vocab_size
    backend = read_bounded(folder / BACKEND_FILE, size)
    limit = position_limit(transformer)
    if (folder / NAMES_FILE).exists():
        return SubwordTokenizer.read(folder, limit)
    from diffusionner.storage.encoders import load_tokenizer

    parse_backend(backend)
    for file in folder.iterdir():  # transformers would wait for a pipe
        if not file.is_dir():
            open_regular(file, sys.maxsize).close()
    return load_tokenizer(folder, limit, offline=True)


def load_weights(network: Network, path: Path, assign: bool = False) -> None:
    """Load weights into a network. assign: use the tensors from the file instead of copying."""
    _check_shapes(network, read_header(path), path)
    network.load_state_dict(unpack(read_tensors(path), str(path)), assign=assign)


def _check_shapes(network: Network, stored: Mapping[str, StoredTensor], path: Path) -> None:
    """Raise CheckpointError unless the file has the tensors of the network."""

    def fits(name: str, tensor: Tensor) -> bool:
        dtype, shape = stored[name]
        if dtype == "I8" and tensor.is_floating_point():
            dtype = stored.get(name + SCALE, stored[name]).dtype
        floats = dtype in FLOATS
        return shape == tuple(tensor.shape) and floats == tensor.is_floating_point()

    of_matrices = {name + suffix for name in stored for suffix in (SCALE, INPUTS)}
    expected = network.state_dict()
    wrong = sorted(expected.keys() ^ (stored.keys() - of_matrices)) or sorted(
        name for name, tensor in expected.items() if not fits(name, tensor)
    )
    if wrong:
        raise CheckpointError(
            f"{path} does not match its config.json ({len(wrong)} tensors differ, first "
            f"'{wrong[0][:100]}'); the two files come from different models. Copy the whole folder "
            "again"
        )
