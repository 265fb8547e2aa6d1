"""Set prediction with learned queries: the main method's decoder without noise, steps or timesteps.

K learned vectors stand in the place of the noisy spans. All else is the same, the matching too:
what differs in the result is what diffusion gives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from diffusionner.batching import Batch
from diffusionner.model.decoder import (
    CLASSIFIER,
    Prediction,
    SpanDecoder,
    check_heads,
    read_out,
)
from diffusionner.model.encoder import SentenceEncoding, Transformer
from diffusionner.settings import DecoderSettings, Settings
from diffusionner.training.matching import matching_cost
from diffusionner.training.objective import MatchingObjective
from reproduce.rivals.base import Rival


class QueryDecoder(SpanDecoder):
    def __init__(self, size: int, types: int, queries: int, settings: DecoderSettings) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, size))
        self.add_layers(size, types, settings)

    def forward(self, encoding: SentenceEncoding) -> Prediction:
        sentence = self.read(encoding)
        hidden = self.queries.to(encoding.states.dtype).expand(len(encoding.lengths), 1, -1, -1)
        return self.predict(sentence, self.attend(sentence, hidden, None))


class QueryNetwork(Rival):
    of_types = (f"decoder.{CLASSIFIER}",)

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__(transformer, labels, settings)
        size = self.encoder.hidden_size
        check_heads(size, settings.decoder)
        self.decoder = QueryDecoder(
            size, len(self.labels), settings.diffusion.spans, settings.decoder
        )

    def candidates(self, encoding: SentenceEncoding) -> Tensor:
        prediction = self.decoder(encoding)
        every = torch.ones_like(prediction.types[:, 0, :, 0], dtype=torch.bool)  # [B, K]
        return read_out(prediction, every, None)


class QueryObjective(MatchingObjective[Prediction]):
    network: QueryNetwork

    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Prediction:
        encoding = self.network.encode_words(batch, self.freeze_encoder)
        prediction: Prediction = self.network.decoder(encoding)
        return prediction

    @torch.no_grad()
    def costs(self, predicted: Prediction, batch: Batch[Tensor]) -> Tensor:
        return matching_cost(predicted, batch.gold, batch.gold_types)

    def loss(self, predicted: Prediction, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        return self.likelihood(predicted, batch, assigned)
