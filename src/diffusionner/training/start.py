"""The network that a training run starts from."""

from __future__ import annotations

from pathlib import Path

import torch

from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.errors import EncoderError
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.label_set import LabelSet
from diffusionner.methods import network_class
from diffusionner.model.base import Network
from diffusionner.model.bert import Bert, is_supported
from diffusionner.model.encoder import Transformer
from diffusionner.model.network import DenoisingNetwork
from diffusionner.settings import Settings
from diffusionner.storage import encoders
from diffusionner.storage.config import is_model, read_config


def build_network(settings: Settings, labels: list[str]) -> tuple[Network, SubwordTokenizer]:
    """Build the network on its pretrained encoder, or with the weights of a trained model."""
    transformer: Transformer
    transformer, tokenizer = encoders.load_pretrained(settings.encoder)
    if settings.decoder.joins_labels:
        transformer = _as_bert(transformer, settings)
    network: Network = network_class(settings.method)(transformer, labels, settings)
    location = encoders.encoder_location(settings.encoder.name)
    if is_model(Path(location)):
        config = read_config(Path(location))
        network.start_from(encoders.model_weights(Path(location)), config["labels"] == labels)
        if network.table is not None and Settings.from_dict(config["settings"]).reads_labels:
            _read_table(network, tokenizer)
    if isinstance(network, DenoisingNetwork) and network.beliefs is not None:
        network.beliefs.reset()  # not inherited: it is added last
    return network, tokenizer


def _as_bert(transformer: Transformer, settings: Settings) -> Bert:
    """Return the encoder as the class that can read labels with the text."""
    config, encoder = transformer.config.to_dict(), settings.encoder
    if not is_supported(config):
        raise EncoderError(
            f"decoder.types={settings.decoder.types} needs a BERT encoder, and '{encoder.name}' is "
            f"of the kind {config['model_type']}; choose another, such as intfloat/e5-small"
        )
    bert = Bert(config)
    bert.load_state_dict(transformer.state_dict())
    return bert


@torch.no_grad()
def _read_table(network: Network, tokenizer: SubwordTokenizer) -> None:
    """Start the vectors of types with those of their labels' words."""
    labels = LabelSet.of(network.labels)
    table = TorchEngine(network).bind(labels, tokenizer).table()
    order = [labels.names.index(name) for name in network.labels]
    network.table = torch.nn.Parameter(table[order])
