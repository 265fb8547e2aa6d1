"""Set prediction with learned queries: the entity decoder without noise, steps or timesteps.

K learned vectors replace the noisy spans. Everything else, including the matching, is the same, so
that the difference in results is what diffusion contributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from diffusionner.batching import Batch
from diffusionner.diffusion import Candidates
from diffusionner.model.decoder import EntityDecoder, Prediction, read_out
from diffusionner.model.encoder import SentenceEncoding, Transformer
from diffusionner.settings import DecoderSettings, Settings
from diffusionner.training.matching import matching_cost
from diffusionner.training.objective import MatchingObjective
from reproduce.rivals.base import Rival


class QueryDecoder(EntityDecoder):
    """The entity decoder with queries instead of pooled spans."""

    def __init__(self, size: int, types: int, queries: int, settings: DecoderSettings) -> None:
        plain = replace(settings, span_pooling="mean", offset_window=0, initializer="none")
        super().__init__(size, types, 0, plain)
        self.queries = nn.Parameter(torch.randn(queries, size))

    def predict_queries(self, encoding: SentenceEncoding) -> Prediction:
        """Predict boundaries and types of all queries."""
        sentence, batch = self.prepare(encoding), len(encoding.lengths)
        hidden = self.queries.to(encoding.states.dtype).expand(batch, 1, -1, -1)
        spans = encoding.lengths.new_zeros(batch, 1, len(self.queries), 2)  # unused
        return self.predict(sentence, self.encode_spans(sentence, hidden, None), spans)


class QueryNetwork(Rival):
    has_decoder = True
    type_weights = ("decoder.classifier.3.",)

    def __init__(self, transformer: Transformer, labels: Sequence[str], settings: Settings) -> None:
        super().__init__(transformer, labels, settings)
        size = self.encoder.hidden_size
        self.decoder = QueryDecoder(
            size, len(self.labels), settings.diffusion.spans, settings.decoder
        )

    def propose(self, encoding: SentenceEncoding) -> Candidates[Tensor]:
        prediction = self.decoder.predict_queries(encoding)
        every = torch.ones_like(prediction.types[:, 0, :, 0], dtype=torch.bool)  # [B, K]
        return read_out(prediction, every, None)


class QueryObjective(MatchingObjective[Prediction]):
    network: QueryNetwork

    def predict(self, batch: Batch[Tensor], *inputs: Tensor) -> Prediction:
        return self.network.decoder.predict_queries(self.network.encode(batch, self.freeze_encoder))

    @torch.no_grad()
    def costs(self, predicted: Prediction, batch: Batch[Tensor]) -> Tensor:
        return matching_cost(predicted, batch.gold, batch.gold_types)

    def loss(self, predicted: Prediction, batch: Batch[Tensor], assigned: Tensor) -> Tensor:
        return self.likelihood(predicted, batch, assigned)
