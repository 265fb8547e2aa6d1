"""The requests and answers, checked on the way in and described in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from diffusionner.service.limits import Limits


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]


class Options(BaseModel):
    """As the library's; what is left out is as the model was saved with."""

    # Without its cache, pydantic keeps no texts.
    model_config = ConfigDict(extra="forbid", strict=True, cache_strings="none")

    steps: Count | None = Field(None, description="Denoising steps.")
    spans: Count | Literal["auto"] | None = Field(
        None, description="Noisy spans of a sentence; auto = by its length."
    )
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Least score of an entity."
    )
    overlap: Literal["nested", "flat", "all"] | None = Field(
        None, description="Keep nested but not crossing entities, only disjoint ones, or all."
    )
    labels: list[str] | None = Field(None, description="Only entities of these types.")


class EntitiesRequest(Options):
    texts: list[str] = Field(description="Each is answered as if it were alone.")


class StepsRequest(Options):
    text: str


class FoundEntity(BaseModel):
    start: int = Field(description="First character; characters are Unicode code points.")
    end: int = Field(description="After the last character.")
    label: str
    score: float = Field(description="The probability that it is right.")
    text: str


class TextResult(BaseModel):
    text: str
    entities: list[FoundEntity]


class EntitiesResponse(BaseModel):
    model: str
    results: list[TextResult]


class NoisySpan(BaseModel):
    start: int = Field(description="First character of the noisy span.")
    end: int
    to_start: int = Field(description="First character of what the network made of it.")
    to_end: int
    label: str | None = Field(description="Its type; null where it is no entity.")
    score: float


class DenoisingStep(BaseModel):
    timestep: int = Field(description="Of the diffusion: from T down.")
    spans: list[NoisySpan] = Field(description="The same span has the same place at each step.")


class SentenceSteps(BaseModel):
    start: int
    end: int
    words: list[tuple[int, int]] = Field(description="Characters of each word.")
    steps: list[DenoisingStep]


class StepsResponse(BaseModel):
    model: str
    text: str
    sentences: list[SentenceSteps]
    entities: list[FoundEntity] = Field(description="What these steps find.")


class Model(BaseModel):
    name: str
    labels: list[str]
    backend: str
    method: str
    steps: int | None = Field(description="null where the method is not diffusion; spans too.")
    spans: int | str | None
    overlap: str


class Models(BaseModel):
    models: list[Model]


class Health(BaseModel):
    status: str


class ProblemDetail(BaseModel):
    code: str
    message: str


class ProblemResponse(BaseModel):
    error: ProblemDetail


def name_labels(schema: dict[str, Any], labels: list[str]) -> None:
    """Say in an OpenAPI description which types the model has."""
    for path in ("/v1/entities", "/v1/steps"):
        content = schema["paths"][path]["post"]["requestBody"]["content"]
        listed = content["application/json"]["schema"]["properties"]["labels"]["anyOf"][0]
        listed["items"]["enum"] = labels


def request_schema(model: type[Options], limits: Limits) -> dict[str, Any]:
    """JSON Schema of a request, with the limits that this service was started with."""
    schema = model.model_json_schema()
    properties = schema["properties"]
    if "texts" in properties:
        properties["texts"]["maxItems"] = limits.texts
        properties["texts"]["items"]["maxLength"] = limits.characters
    else:
        properties["text"]["maxLength"] = limits.step_characters
    for name, most in (("steps", limits.steps), ("spans", limits.spans)):
        for kind in properties[name]["anyOf"]:
            if kind.get("type") == "integer":
                kind["maximum"] = most
    return schema
