"""The network that a training run starts from."""

from __future__ import annotations

from pathlib import Path

from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.methods import network_class
from diffusionner.model.base import Network
from diffusionner.model.network import DenoisingNetwork
from diffusionner.settings import Settings
from diffusionner.storage import encoders
from diffusionner.storage.config import is_model, read_config


def build_network(settings: Settings, labels: list[str]) -> tuple[Network, SubwordTokenizer]:
    """Build the network on its pretrained encoder, or with the weights of a trained model."""
    transformer, tokenizer = encoders.load_pretrained(settings.encoder)
    network: Network = network_class(settings.method)(transformer, labels, settings)
    location = encoders.encoder_location(settings.encoder.name)
    if is_model(Path(location)):
        same_labels = read_config(Path(location))["labels"] == labels
        network.start_from(encoders.model_weights(Path(location)), same_labels)
    if isinstance(network, DenoisingNetwork) and network.beliefs is not None:
        network.beliefs.reset()  # not inherited: it is added last
    return network, tokenizer
