"""A trained model as a folder: config.json, model.safetensors and the tokenizer. No pickle."""

from __future__ import annotations

import json
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
from diffusionner.files import bytes_writer, write_all_or_none
from diffusionner.inference.calibration import Calibration
from diffusionner.methods import network_class
from diffusionner.model import bert
from diffusionner.model.base import Network
from diffusionner.model.encoder import Transformer
from diffusionner.settings import Settings
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
    """All files are written beside their places first, then moved there together."""
    encoder_config = network.encoder.transformer.config.to_dict()
    # Where the encoder came from is in the settings; these depend on the machine or the run.
    for name in ("_name_or_path", "dtype", "torch_dtype", "transformers_version"):
        encoder_config.pop(name, None)
    config = new_config(network.labels, settings, calibration) | {"encoder_config": encoder_config}
    text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
    writers = {
        folder / name: bytes_writer(content) for name, content in tokenizer_files(tokenizer).items()
    }
    writers[folder / "config.json"] = bytes_writer(text.encode())
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
                f"the tokenizer cannot be written to {scratch} ({error}); what was there before is "
                "untouched. Check the space on the disk"
            ) from error
        return {file.name: file.read_bytes() for file in sorted(Path(scratch).iterdir())}


def tensor_writer(
    tensors: Mapping[str, Tensor], metadata: dict[str, str]
) -> Callable[[Path], None]:
    """What fills a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        try:
            save_file(plain, temporary, metadata)
        except SafetensorError as error:  # how it reports a full disk
            raise OSError(str(error)) from error

    return write


class _Unfilled(TorchFunctionMode):
    """Weights stay as they are allocated: random ones take time, and memory once they are written,
    only to be replaced."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def load(folder: str | Path) -> tuple[Network, SubwordTokenizer, Settings]:
    """The network (on the CPU, float32, in eval mode) with its tokenizer and settings."""
    folder = Path(folder)
    config = read_config(folder, "encoder_config")
    settings = Settings.from_dict(config["settings"], str(folder / "config.json"))
    try:
        with _Unfilled():
            transformer = _build_encoder(config["encoder_config"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder / 'config.json'}: encoder_config describes no encoder that the installed "
            f"transformers knows ({error}); update transformers or restore the file"
        ) from error
    try:
        with _Unfilled():
            network = network_class(settings.method)(transformer, config["labels"], settings)
    except RuntimeError as error:  # a size that no memory has room for
        raise CheckpointError(
            f"{folder / 'config.json'}: its settings describe no network ({error}); restore it "
            "from a good copy"
        ) from error
    load_weights(network, folder / "model.safetensors", assign=True)
    return network.eval(), _read_tokenizer(folder, transformer), settings


def _build_encoder(config: dict[str, Any]) -> Transformer:
    if bert.fits(config):
        return bert.Bert(config)
    from diffusionner.model.pretrained import build_encoder

    return build_encoder(config)


def _read_tokenizer(folder: Path, transformer: Transformer) -> SubwordTokenizer:
    # Without it transformers would make one that knows no word, and nothing would be found.
    if not (folder / BACKEND_FILE).exists():
        raise CheckpointError(f"{folder} has no {BACKEND_FILE}; copy the whole folder again")
    if isinstance(transformer, bert.Bert):
        with suppress(OSError, ValueError):  # which transformers may be able to read
            return SubwordTokenizer.read(folder, transformer.config.max_position_embeddings)
    from diffusionner.model.pretrained import load_tokenizer, position_limit

    try:
        return load_tokenizer(folder, position_limit(transformer.config), offline=True)
    except Exception as error:  # what a damaged file leads to is anybody's guess
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({error}); copy the whole folder again"
        ) from error


def load_weights(network: Network, path: Path, assign: bool = False) -> None:
    """assign: the tensors that are read become the network's, instead of being copied into it."""
    tensors = unpack(read_tensors(path), str(path))
    expected = network.state_dict()
    wrong = sorted(expected.keys() ^ tensors.keys()) or sorted(
        name for name in expected if expected[name].shape != tensors[name].shape
    )
    if wrong:
        raise CheckpointError(
            f"{path} does not fit its config.json ({len(wrong)} tensors differ, first '{wrong[0]}')"
            "; the two files come from different models. Copy the whole folder again"
        )
    network.load_state_dict(tensors, assign=assign)
