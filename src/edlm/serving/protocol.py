"""What travels over HTTP: the OpenAI completions protocol, with a few fields of ours, as data."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

INT64 = 2**63


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """A request for completions. Null is the same as leaving a field out; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    prompt: str | list[str] = ""
    suffix: str = ""
    max_tokens: int = Field(16, ge=1)
    n: int = Field(1, ge=1)
    temperature: float = Field(1.0, ge=0.01, le=2, allow_inf_nan=False)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: str | list[str] = Field(default_factory=list)
    echo: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Accepted and not used."""

    steps: int | None = Field(None, ge=1)
    """Denoising steps; by default the server's setting."""
    energy: str | None = None
    """Name of an energy of the model's list, or none."""
    candidates: int | None = Field(None, ge=1)
    """Completions drawn in a step, of which the energy chooses one; 2 by default."""
    window: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    """The energy is used while t >= 1 - window; 1 by default."""
    completions: int | None = Field(None, ge=0)
    """1 or more weighs candidates for what a step reveals, each with so many completions; 0 by default."""
    normalise: bool | None = None
    """Bring prompt and suffix into the 27 characters of text8; by default the server's setting."""
    stream_steps: bool = False
    """Also stream, after every step, the partly masked text."""

    # What other servers offer and this one does not: only the value that means "off" is accepted.
    best_of: int | None = None
    logprobs: int | None = None
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def nulls_are_absent(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def only_what_is_offered(self) -> Self:
        off = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "logprobs": None}
        for name, value in off.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} is not supported; leave it out")
        if self.best_of not in (None, self.n):
            raise ValueError("best_of is not supported; leave it out, and set energy and candidates instead")
        if not self.stream and (self.stream_options or self.stream_steps):
            raise ValueError("stream_options and stream_steps need stream to be true")
        if self.echo and self.suffix:
            raise ValueError("echo does not go with a suffix; put prompt, text and suffix together yourself")
        return self

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop


class Choice(BaseModel):
    index: int
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Drawn(BaseModel):
    """How the texts were drawn: enough to draw them again."""

    seed: int
    steps: int | None
    energy: str | None
    candidates: int | None
    window: float | None
    completions: int | None
    length: int
    """Tokens of the longest sequence that was drawn, prompt and what was dropped at the end included."""


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | None = None
    edlm: Drawn | None = None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "edlm"
    kind: Literal["denoiser", "ar"]
    length: int
    """Tokens of the longest sequence, prompt included."""
    energies: list[str]
    """What a request may name as energy."""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    error: ErrorDetail


class Health(BaseModel):
    status: Literal["ok", "stopping"]
    active: int
    """Sequences that are worked on."""
    waiting: int
