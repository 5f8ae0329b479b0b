"""One request on its way: news from the batcher become a response, or a stream of events."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from edlm.serving.batcher import Batcher, Progress, Ticket
from edlm.serving.metrics import Metrics
from edlm.serving.orders import Order
from edlm.serving.problems import RequestError
from edlm.serving.protocol import Choice, Completion, CompletionRequest, Drawn, Usage


class Job:
    """News come from the drawing thread, and are read in the event loop."""

    def __init__(self, order: Order, body: CompletionRequest, batcher: Batcher) -> None:
        self._order, self._body, self._batcher = order, body, batcher
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self._news: asyncio.Queue[Progress] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._ticket = Ticket(self._listen, shows_steps=body.stream_steps)
        batcher.submit(order.tasks, self._ticket)

    def _listen(self, progress: Progress) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._news.put_nowait, progress)

    def cancel(self) -> None:
        """Stop drawing for it; nothing happens if it is done."""
        self._batcher.cancel(self._ticket)

    async def news(self) -> AsyncIterator[Progress]:
        """Everything that becomes known of its sequences, until all are finished; raises if one failed."""
        unfinished = len(self._order.tasks)
        while unfinished:
            progress = await self._news.get()
            if progress.problem is not None:
                raise progress.problem
            unfinished -= progress.finish is not None
            yield progress

    async def unless_gone(self, request: Request) -> Completion | None:
        """The whole response, or None if the client leaves before it is there."""
        drawing, leaving = asyncio.ensure_future(self._whole()), asyncio.ensure_future(gone(request))
        try:
            await asyncio.wait((drawing, leaving), return_when=asyncio.FIRST_COMPLETED)
            return await drawing if drawing.done() else None
        finally:
            self.cancel()
            drawing.cancel()
            leaving.cancel()

    async def _whole(self) -> Completion:
        texts = [self._echo(task.index) for task in self._order.tasks]
        ends: dict[int, Progress] = {}
        async for progress in self.news():
            texts[progress.index] += progress.text
            if progress.finish is not None:
                ends[progress.index] = progress
        choices = [Choice(index=i, text=text, finish_reason=ends[i].finish) for i, text in enumerate(texts)]
        return self._document(choices, self._usage(ends.values()))

    async def chunks(self) -> AsyncIterator[str]:
        """Server-sent events. A client that joins the texts of one choice has the text of the whole response."""
        ends: list[Progress] = []
        if self._body.echo:
            prompts = [Choice(index=task.index, text=self._echo(task.index)) for task in self._order.tasks]
            yield event(self._document(prompts).model_dump())
        try:
            async for progress in self.news():
                ends += [progress] if progress.finish is not None else []
                yield event(self._chunk(progress))
        except RequestError as problem:
            yield event(problem.body)
            return
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            yield event(self._document([], self._usage(ends)).model_dump())
        yield "data: [DONE]\n\n"

    def _chunk(self, progress: Progress) -> dict[str, Any]:
        """News as a document; where steps are shown, it also says which one it was and what it left masked."""
        choice = Choice(index=progress.index, text=progress.text, finish_reason=progress.finish)
        content = self._document([choice]).model_dump()
        if progress.holes is not None:
            content["choices"][0] |= {"step": progress.step, "masked_text": progress.holes}
        return content

    def _echo(self, index: int) -> str:
        return self._order.prompts[index] if self._body.echo else ""

    def _usage(self, ends: Iterable[Progress]) -> Usage:
        num = sum(progress.num_tokens for progress in ends)
        given = self._order.num_prompt_tokens
        return Usage(prompt_tokens=given, completion_tokens=num, total_tokens=given + num)

    def _document(self, choices: list[Choice], usage: Usage | None = None) -> Completion:
        model = self._order.model
        return Completion(
            id=self._id, created=self._created, model=model.id, system_fingerprint=model.fingerprint, choices=choices,
            usage=usage, edlm=self._drawn(),
        )  # fmt: skip

    def _drawn(self) -> Drawn:
        task = self._order.tasks[0]
        about = dict.fromkeys(("energy", "candidates", "window", "completions"))
        if task.settings.energy is not None:
            about |= {name: getattr(task.settings, name) for name in about}
        steps = None if task.model.is_causal else task.steps
        length = max(len(task.fixed) for task in self._order.tasks)
        return Drawn.model_validate(about | {"seed": task.seed, "steps": steps, "length": length})


class JobStream(StreamingResponse):
    """A stream whose sequences are given up as soon as it ends, for whatever reason."""

    def __init__(self, job: Job, metrics: Metrics, start: float) -> None:
        super().__init__(job.chunks(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._job, self._metrics, self._start = job, metrics, start

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._job.cancel()
            self._metrics.request_seconds.observe(time.monotonic() - self._start)


def event(content: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(content)}\n\n"


async def gone(request: Request) -> None:
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
