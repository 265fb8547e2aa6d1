"""A trained model as a folder: config.json, model.safetensors and the tokenizer. No pickle."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from diffusionner.batching.subwords import BACKEND_FILE, SubwordTokenizer
from diffusionner.errors import CheckpointError, WriteError
from diffusionner.files import bytes_writer, to_json, write_all_or_none
from diffusionner.methods import network_class
from diffusionner.model import bert
from diffusionner.model.base import Network
from diffusionner.model.encoder import Transformer
from diffusionner.settings import Settings
from diffusionner.storage.calibration import Calibration
from diffusionner.storage.config import new_config, read_config
from diffusionner.storage.packing import pack, read_tensors, unpack


def save(
    folder: Path,
    network: Network,
    tokenizer: SubwordTokenizer,
    settings: Settings,
    calibration: Calibration | None = None,
    precision: str = "float32",
) -> None:
    """Write a model folder: all of its files or none."""
    encoder_config = network.encoder.transformer.config.to_dict()
    # Settings record where the encoder came from; these depend on the machine or the run.
    for name in ("_name_or_path", "dtype", "torch_dtype", "transformers_version"):
        encoder_config.pop(name, None)
    values = None if calibration is None else calibration.to_dict()
    config = new_config(network.labels, settings, values) | {"encoder_config": encoder_config}
    files = {**tokenizer_files(tokenizer), "config.json": to_json(config)}
    writers = {folder / name: bytes_writer(content) for name, content in files.items()}
    writers[folder / "model.safetensors"] = tensor_writer(
        pack(network.state_dict(), precision), {"format": "pt"}
    )
    write_all_or_none(writers)


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


class _SkipInit(TorchFunctionMode):
    """Leave weights uninitialised: random ones take time, and are replaced right away."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def load(folder: str | Path) -> tuple[Network, SubwordTokenizer, Settings]:
    """Load a network (on the CPU, float32, in eval mode) with its tokenizer and settings."""
    folder = Path(folder)
    config = read_config(folder, "encoder_config")
    settings = Settings.from_dict(config["settings"], str(folder / "config.json"))
    try:
        with _SkipInit():
            transformer: Transformer
            if bert.is_supported(config["encoder_config"]):
                transformer = bert.Bert(config["encoder_config"])
            else:
                from diffusionner.storage.encoders import build_encoder  # imports transformers

                transformer = build_encoder(config["encoder_config"])
            network = network_class(settings.method)(transformer, config["labels"], settings)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder / 'config.json'}: the installed transformers cannot build a network from it "
            f"({error}); update transformers or restore the file from a good copy"
        ) from error
    load_weights(network, folder / "model.safetensors", assign=True)
    return network.eval(), _read_tokenizer(folder, transformer), settings


def _read_tokenizer(folder: Path, transformer: Transformer) -> SubwordTokenizer:
    # Without this file, transformers would build a tokenizer with an empty vocabulary.
    if not (folder / BACKEND_FILE).exists():
        raise CheckpointError(f"{folder} has no {BACKEND_FILE}; copy the whole folder again")
    if isinstance(transformer, bert.Bert):
        with suppress(OSError, ValueError):  # transformers may still be able to read it
            return SubwordTokenizer.read(folder, transformer.config.max_position_embeddings)
    from diffusionner.storage.encoders import load_tokenizer, position_limit

    try:
        return load_tokenizer(folder, position_limit(transformer.config), offline=True)
    except Exception as error:  # a damaged file can raise anything
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({error}); copy the whole folder again"
        ) from error


def load_weights(network: Network, path: Path, assign: bool = False) -> None:
    """Load weights into a network. assign: use the tensors from the file instead of copying."""
    tensors = unpack(read_tensors(path), str(path))
    expected = network.state_dict()
    wrong = sorted(expected.keys() ^ tensors.keys()) or sorted(
        name for name in expected if expected[name].shape != tensors[name].shape
    )
    if wrong:
        raise CheckpointError(
            f"{path} does not match its config.json ({len(wrong)} tensors differ, first "
            f"'{wrong[0]}'); the two files come from different models. Copy the whole folder again"
        )
    network.load_state_dict(tensors, assign=assign)
