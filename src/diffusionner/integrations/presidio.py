"""A recognizer for Presidio, which detects and anonymizes personal data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from presidio_analyzer import AnalysisExplanation, LocalRecognizer, RecognizerResult

from diffusionner.corpus import Entity
from diffusionner.errors import SettingsError
from diffusionner.inference.pipeline import DiffusionNER

# What a model with open labels is asked for, with Presidio's names.
OPEN_MAPPING = {
    "person": "PERSON",
    "organization": "ORGANIZATION",
    "city or country": "LOCATION",
    "location": "LOCATION",
    "street address": "LOCATION",
    "date": "DATE_TIME",
    "time": "DATE_TIME",
    "nationality or group": "NRP",
}

# The types of our models and of common corpora. Other types are ignored unless the caller maps
# them.
MAPPING = {
    **OPEN_MAPPING,
    "facility": "LOCATION",
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

    mapping: Presidio's entity name for each type of the model to use. A model with open labels is
    asked for these types, whatever they are.
    options: inference settings, such as threshold. A lower threshold finds more personal data, and
    more false positives.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        mapping: Mapping[str, str] | None = None,
        supported_language: str = "en",
        device: str | None = None,
        **options: Any,
    ) -> None:
        ner = DiffusionNER.from_pretrained(model, device)
        if mapping is None and ner.is_open:
            mapping = OPEN_MAPPING
        self.ner = ner.for_labels(list(mapping)) if mapping and ner.is_open else ner
        self.ner.settings.with_inference(options)  # raises now if an option is wrong
        self.options = options
        names = MAPPING if mapping is None else mapping
        self.mapping = {label: names[label] for label in self.ner.labels if label in names}
        unknown = sorted(set(names) - set(self.mapping))
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
        """Do nothing: the model is already loaded. Required by Presidio."""

    def analyze(
        self, text: str, entities: Sequence[str], nlp_artifacts: object = None
    ) -> list[RecognizerResult]:
        """Return the results for the requested Presidio entities; empty means all.

        A discontinuous entity has a result for each fragment, so that all are anonymized and what
        lies between them is not.
        """
        return [
            self._result(entity, start, end)
            for entity in self.ner(text, **self.options)
            if entity.label in self.mapping
            and (not entities or self.mapping[entity.label] in entities)
            for start, end in entity.fragments
        ]

    def _result(self, entity: Entity, start: int, end: int) -> RecognizerResult:
        return RecognizerResult(
            self.mapping[entity.label],
            start,
            end,
            min(entity.score, self.MAX_SCORE),
            analysis_explanation=AnalysisExplanation(
                recognizer=self.name,
                original_score=entity.score,
                textual_explanation=f"Identified as {entity.label} by DiffusionNER",
            ),
            recognition_metadata={
                RecognizerResult.RECOGNIZER_NAME_KEY: self.name,
                RecognizerResult.RECOGNIZER_IDENTIFIER_KEY: self.id,
            },
        )
