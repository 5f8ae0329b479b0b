"""The process behind the page: Gradio without anything that asks other machines, and an orderly end."""

import asyncio
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from edlm.demo.config import DemoConfig
from edlm.demo.shelf import Shelf
from edlm.listening import is_loopback, quiet_signals

MAX_BODY = 64 * 1024 * 1024
"""Largest trace that can be opened, in bytes."""
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; form-action 'self'; frame-ancestors 'self'"
"""What the browser may fetch: only what comes from here, whatever a version of Gradio would like to."""


def run(shelf: Shelf, config: DemoConfig, listening: socket.socket) -> None:
    """Show the page until SIGINT or SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="edlm-demo-") as folder:
        os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": folder, "HF_HUB_DISABLE_TELEMETRY": "1"}
        import uvicorn

        app = make_app(shelf, config)
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
        )
        with quiet_signals():
            asyncio.run(uvicorn.Server(settings).serve(sockets=[listening]))


def make_app(shelf: Shelf, config: DemoConfig) -> Any:
    """The page as a web application. Settings of Gradio's in the environment must be there before."""
    import gradio
    from fastapi import FastAPI

    from edlm.demo.page import CSS, THEME, make_page
    from edlm.serving.guard import Guard

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(OnlyFromHere)
    app.add_middleware(Guard, max_body=MAX_BODY, only_local=is_loopback(config.host))
    return gradio.mount_gradio_app(
        app, make_page(shelf, config), path="/", server_name=config.host, footer_links=[], run_history=False,
        show_error=False, max_file_size=MAX_BODY, ssr_mode=False, theme=THEME, css=CSS, pwa=False, mcp_server=False,
        enable_monitoring=False,
    )  # fmt: skip


class OnlyFromHere:
    """Tells the browser with every answer to fetch nothing from elsewhere."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await self._app(scope, receive, answer)
