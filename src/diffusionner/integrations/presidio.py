"""A recogniser for Presidio, which finds and hides personal data in texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from presidio_analyzer import AnalysisExplanation, LocalRecognizer, RecognizerResult

from diffusionner.errors import SettingsError
from diffusionner.inference.pipeline import DiffusionNER

# Presidio's names for the types of our models and of the usual corpora. What is not here is not
# looked for unless a mapping of the caller's names it.
MAPPING = {
    "PER": "PERSON",
    "PERSON": "PERSON",
    "ORG": "ORGANIZATION",
    "LOC": "LOCATION",
    "GPE": "LOCATION",
    "FAC": "LOCATION",
    "NORP": "NRP",
    "DATE": "DATE_TIME",
    "TIME": "DATE_TIME",
}


class DiffusionNERRecognizer(LocalRecognizer):  # type: ignore[misc]
    """`registry.add_recognizer(DiffusionNERRecognizer("en"))`

    mapping: Presidio's entity for each type of the model's that is wanted.
    options: inference settings, such as threshold. A lower one hides more, and more that is none.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        mapping: Mapping[str, str] | None = None,
        supported_language: str = "en",
        device: str | None = None,
        **options: Any,
    ) -> None:
        self.ner = DiffusionNER.from_pretrained(model, device)
        self.ner.settings.with_inference(options)  # what is wrong is told now
        self.options = options
        chosen = MAPPING if mapping is None else mapping
        self.mapping = {label: chosen[label] for label in self.ner.labels if label in chosen}
        # Of a mapping of ours some types are enough; of the caller's all are meant.
        unknown = sorted(set(chosen) - set(self.mapping))
        if not self.mapping or (unknown and mapping is not None):
            raise SettingsError(
                f"the model has no type {', '.join(unknown)}; give mapping={{type: entity}} for "
                f"some of its types: {', '.join(self.ner.labels)}"
            )
        super().__init__(
            supported_entities=sorted(set(self.mapping.values())),
            name=type(self).__name__,
            supported_language=supported_language,
        )

    def load(self) -> None:
        """Presidio asks for it; the model is there already."""

    def analyze(
        self, text: str, entities: Sequence[str], nlp_artifacts: object = None
    ) -> list[RecognizerResult]:
        """entities: Presidio's, of which those that are wanted."""
        results = []
        for entity in self.ner(text, **self.options):
            kind = self.mapping.get(entity.label)
            if kind is None or (entities and kind not in entities):
                continue
            explanation = AnalysisExplanation(
                recognizer=self.name,
                original_score=entity.score,
                textual_explanation=f"Identified as {entity.label} by DiffusionNER",
            )
            result = RecognizerResult(
                entity_type=kind,
                start=entity.start,
                end=entity.end,
                score=min(entity.score, self.MAX_SCORE),
                analysis_explanation=explanation,
                recognition_metadata={
                    RecognizerResult.RECOGNIZER_NAME_KEY: self.name,
                    RecognizerResult.RECOGNIZER_IDENTIFIER_KEY: self.id,
                },
            )
            results.append(result)
        return results
