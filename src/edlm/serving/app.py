"""The HTTP interface: routes and error bodies."""

import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from edlm._version import __version__
from edlm.serving.batcher import Batcher
from edlm.serving.catalogue import Catalogue
from edlm.serving.config import ServeConfig
from edlm.serving.guard import Guard, refusal
from edlm.serving.job import Job, JobStream
from edlm.serving.metrics import Metrics
from edlm.serving.orders import find_model, make_order
from edlm.serving.problems import RequestError, error_body, invalid
from edlm.serving.protocol import Completion, CompletionRequest, ErrorBody, Health, ModelCard, ModelList

CLIENT_LEFT = 499
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 403, 404, 413, 429, 500, 503)
}


def make_app(
    catalogue: Catalogue, config: ServeConfig, batcher: Batcher, metrics: Metrics, *, api_key: str = "",
    only_local: bool = False,
) -> FastAPI:  # fmt: skip
    """The server's routes. There are no documentation pages: they would fetch scripts from elsewhere."""
    app = FastAPI(title="edlm", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, api_key=api_key, max_body=config.max_body, only_local=only_local)
    add_error_handlers(app, metrics)
    created = int(time.time())
    cards = {name: model_card(name, catalogue, created) for name in catalogue}

    @app.post("/v1/completions", response_model=Completion, responses=REFUSALS)
    async def completions(body: CompletionRequest, request: Request) -> Any:
        """Draw texts that continue a prompt, or that fill the gap between prompt and suffix."""
        start = time.monotonic()
        order = make_order(body, catalogue, config)
        job = Job(order, body, batcher)
        if body.stream:
            metrics.requests.labels("200").inc()
            return JobStream(job, metrics, start)
        response = await job.unless_gone(request)
        metrics.requests.labels(str(CLIENT_LEFT if response is None else 200)).inc()
        metrics.request_seconds.observe(time.monotonic() - start)
        return Response(status_code=CLIENT_LEFT) if response is None else response

    @app.get("/v1/models", response_model=ModelList, responses=REFUSALS)
    async def models() -> Any:
        return ModelList(data=list(cards.values()))

    @app.get("/v1/models/{name:path}", response_model=ModelCard, responses=REFUSALS)
    async def model(name: str) -> Any:
        return cards[find_model(name, catalogue).id]

    @app.get("/health", response_model=Health, responses={503: {"model": Health}})
    async def health() -> Any:
        is_stopping = batcher.is_stopping
        about = Health(
            status="stopping" if is_stopping else "ok", active=batcher.num_active, waiting=batcher.num_waiting
        )
        return JSONResponse(about.model_dump(), 503 if is_stopping else 200)

    @app.get("/metrics", response_class=Response, responses=REFUSALS)
    async def numbers() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def add_error_handlers(app: FastAPI, metrics: Metrics) -> None:
    """Every error has the body that OpenAI's clients read, and is counted."""

    @app.exception_handler(RequestError)
    async def problem(request: Request, error: RequestError) -> Response:
        metrics.requests.labels(str(error.status)).inc()
        return refusal(error)

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> Response:
        return await problem(request, invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def wrong_path(request: Request, error: HTTPException) -> Response:
        # A body that grows too large is refused while it is read, and arrives here inside another error.
        if isinstance(error.__cause__, RequestError):
            return await problem(request, error.__cause__)
        return JSONResponse(error_body(str(error.detail), "invalid_request_error"), error.status_code, error.headers)


def model_card(name: str, catalogue: Catalogue, created: int) -> ModelCard:
    served = catalogue[name]
    about = {"kind": "ar" if served.is_causal else "denoiser", "energies": list(served.energies)}
    return ModelCard.model_validate({"id": name, "created": created, "length": served.model.length} | about)
