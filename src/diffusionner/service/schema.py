"""Requests and responses: validated on input and described in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from diffusionner.service.limits import Limits

MAX_LABELS = 1_000  # per request
MAX_GIVEN = 1_000  # spans per text
LABEL_CHARACTERS, DESCRIPTION_CHARACTERS = 300, 1_000  # `LabelSet` says more about both


def _integer(value: Any) -> Any:
    """Convert floats such as 5.0: JSON has one type of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _distinct(labels: list[str]) -> list[str]:
    """Sort labels and remove duplicates: they are a set."""
    return sorted(set(labels))


Index = Annotated[int, Field(ge=0), BeforeValidator(_integer)]
Label = Annotated[str, Field(max_length=LABEL_CHARACTERS)]
Labels = Annotated[list[Label], Field(max_length=MAX_LABELS), AfterValidator(_distinct)]
Described = Annotated[
    dict[Label, Annotated[str, Field(max_length=DESCRIPTION_CHARACTERS)]],
    Field(max_length=MAX_LABELS),
]
INFERENCE_OPTIONS = {"steps", "spans", "threshold", "overlap"}


class Options(BaseModel):
    """Options of the library; omitted ones keep the model's settings."""

    # Without its string cache, pydantic keeps no texts.
    model_config = ConfigDict(extra="forbid", strict=True, cache_strings="none")

    steps: int | None = Field(
        None, description="Denoising steps; 0: the initializer's candidates as it scores them."
    )
    spans: int | Literal["auto"] | None = Field(
        None, description="Noisy spans per sentence; auto: depending on its length."
    )
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Minimum score of an entity."
    )
    overlap: Literal["nested", "flat", "all"] | None = Field(
        None, description="Keep nested but not crossing entities, only disjoint ones, or all."
    )
    labels: Labels | Described | None = Field(
        None,
        description="Types to look for; an object describes each of them in words. A model with "
        "fixed labels must know them all.",
    )

    def inference_options(self) -> dict[str, Any]:
        return self.model_dump(include=INFERENCE_OPTIONS, exclude_none=True)


class EntitiesRequest(Options):
    texts: list[str] = Field(description="Texts, each processed independently.")


class RefineSpan(BaseModel):
    """A span to refine; other fields, such as the text of an entity, are ignored."""

    model_config = ConfigDict(strict=True, cache_strings="none")

    start: Index = Field(description="First character, counted in Unicode code points.")
    end: Index = Field(description="End, exclusive.")
    label: Label | None = None
    score: float | None = Field(None, allow_inf_nan=False)
    fragments: Any = Field(None, description="Refused: only contiguous spans can be refined.")


class RefineText(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, cache_strings="none")

    text: str
    spans: list[RefineSpan] = Field(max_length=MAX_GIVEN)


class RefineRequest(Options):
    texts: list[RefineText] = Field(description="Texts with their spans, each independent.")
    only: bool = Field(False, description="Return only entities that given spans became.")
    label_map: dict[Label, Label | None] = Field(
        {}, max_length=MAX_LABELS, description="Labels of the spans to the model's; null drops one."
    )


class StepsRequest(Options):
    text: str
    sentence: Index = Field(0, description="Which sentence of the text, counted from 0.")


Request = TypeVar("Request", bound=Options)


def with_limits(model: type[Request], limits: Limits) -> type[Request]:
    """Return the request model with the limits of this service."""

    def count(minimum: int, maximum: int) -> Any:
        return Annotated[int, Field(ge=minimum, le=maximum), BeforeValidator(_integer)]

    min_steps = 0 if issubclass(model, EntitiesRequest) else 1
    text = Annotated[str, Field(max_length=limits.characters)]
    item: Any = text
    if issubclass(model, RefineRequest):
        item = create_model("RefineText", __base__=RefineText, text=(text, ...))
    types: dict[str, Any] = {
        "steps": count(min_steps, limits.steps) | None,
        "spans": count(1, limits.spans) | Literal["auto"] | None,
        "texts": Annotated[list[item], Field(max_length=limits.texts)],
        "text": Annotated[str, Field(max_length=limits.step_characters)],
    }
    known = model.model_fields
    fields: dict[str, Any] = {n: (types[n], known[n]) for n in types if n in known}
    return create_model(model.__name__, __base__=model, **fields)


class FoundEntity(BaseModel):
    start: int = Field(description="First character, counted in Unicode code points.")
    end: int = Field(description="End, exclusive.")
    label: str
    score: float = Field(description="Probability that the entity is correct.")
    text: str = Field(description="That of the entity; fragments are joined by an ellipsis.")
    fragments: list[tuple[int, int]] | None = Field(
        None, description="Start and end of each fragment of a discontinuous entity; else absent."
    )


class TextResult(BaseModel):
    text: str
    entities: list[FoundEntity]


class EntitiesResponse(BaseModel):
    model: str
    results: list[TextResult]


class GivenSpan(BaseModel):
    start: int
    end: int
    label: str | None = None
    score: float | None = None


class RefineOutcome(BaseModel):
    given: GivenSpan = Field(description="The span as it was given.")
    change: Literal["kept", "moved", "retyped", "moved and retyped", "dropped"]
    entity: FoundEntity | None = Field(description="What it became; null if it was dropped.")


class RefineResult(TextResult):
    outcomes: list[RefineOutcome] = Field(description="One for each given span, in order.")


class RefineResponse(BaseModel):
    model: str
    results: list[RefineResult]


class NoisySpan(BaseModel):
    start: int = Field(description="First character of the noisy span.")
    end: int
    to_start: int = Field(description="First character of the denoised span.")
    to_end: int
    label: str | None = Field(description="Predicted type; null for no entity.")
    score: float


class DenoisingStep(BaseModel):
    timestep: int = Field(description="Diffusion timestep, from T down.")
    spans: list[NoisySpan] = Field(description="A span has the same index at every step.")


class StepsResponse(BaseModel):
    model: str
    text: str
    sentences: list[tuple[int, int]] = Field(description="Start and end of each sentence.")
    words: list[tuple[int, int]] = Field(description="Start and end of each word of the one shown.")
    steps: list[DenoisingStep]
    entities: list[FoundEntity] = Field(description="Entities that result from these steps.")


class Model(BaseModel):
    name: str
    labels: list[str]
    open_labels: bool = Field(description="Whether any other labels can be asked for.")
    backend: str
    method: str
    steps: int | None = Field(description="null for methods without diffusion, as is spans.")
    spans: int | str | None
    overlap: str


class Models(BaseModel):
    models: list[Model]


class Health(BaseModel):
    status: str


class ErrorDetail(BaseModel):
    code: str
    message: str


class ErrorBody(BaseModel):
    error: ErrorDetail


def describe_model(
    schema: dict[str, Any], labels: list[str], is_open: bool, needs_steps: bool
) -> None:
    """Add the model's labels and minimum number of steps to an OpenAPI description."""
    for path in ("/v1/entities", "/v1/refine", "/v1/steps"):
        content = schema["paths"][path]["post"]["requestBody"]["content"]
        fields = content["application/json"]["schema"]["properties"]
        if not is_open:
            listed, described, _ = fields["labels"]["anyOf"]
            listed["items"]["enum"], described["propertyNames"] = labels, {"enum": labels}
        if needs_steps:
            fields["steps"]["anyOf"][0]["minimum"] = 1
