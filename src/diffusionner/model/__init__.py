"""The denoising network f_θ(x_t, S, t): sentence encoder and entity decoder."""

from diffusionner.model.decoder import Prediction
from diffusionner.model.encoder import SentenceEncoding
from diffusionner.model.network import DenoisingNetwork

__all__ = ["DenoisingNetwork", "Prediction", "SentenceEncoding"]
