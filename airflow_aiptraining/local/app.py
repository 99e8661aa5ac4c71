"""The application of the embedded service: every surface's routes behind one door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from airflow_aiptraining.local import buckets, objects, storage_batch, uploads
from airflow_aiptraining.local.errors import ApiError
from airflow_aiptraining.local.object_store import ObjectStore
from airflow_aiptraining.local.security import LocalOnly
from airflow_aiptraining.local.training import Training, TrainingSettings


def create_app(
    data: Path,
    *,
    allowed_hosts: Collection[str] = (),
    token: str | None = None,
    token_free_port: int | None = None,
    training: TrainingSettings | None = None,
) -> Starlette:
    """Return the service over one data directory.

    :param data: directory that holds everything the service keeps; made if missing.  One service
        at a time: a second one on the same directory is refused.
    :param allowed_hosts: Host names accepted beside loopback ones (see ``security.LocalOnly``).
    :param token: bearer token that every request must carry; None: none is asked.
    :param token_free_port: port where none is asked (see ``security.LocalOnly``).
    :param training: how jobs are run; None: as by default.
    :return: the ASGI application.  Its lifespan starts and stops what runs beside requests.
    """
    store = ObjectStore(data / "storage")

    # --- parts: each surface adds its routes, and what runs beside requests, here --------------
    routes: list[BaseRoute] = []
    background: list[Callable[[], AbstractAsyncContextManager[object]]] = []

    jobs = Training(data, store, training or TrainingSettings())
    routes += jobs.routes()
    background.append(jobs.running)

    routes += buckets.routes(store)
    routes += uploads.routes(store)
    routes += storage_batch.routes()
    # Last: its XML addresses (/bucket/object) match anything.
    routes += objects.routes(store)
    # --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(store.close)
            for start in background:
                await stack.enter_async_context(start())
            yield

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(
                LocalOnly,
                allowed_hosts=allowed_hosts,
                token=token,
                token_free_port=token_free_port,
            )
        ],
        exception_handlers={
            ApiError: _answer_api_error,
            HTTPException: _answer_http_error,
            ClientDisconnect: _answer_nobody,
            Exception: _answer_crash,
        },
    )
    # Names of objects may begin or end with anything: no redirect guesses another address.
    app.router.redirect_slashes = False
    return app


async def _answer_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """No route: say so in Google's shape, or clients show nothing but a number."""
    assert isinstance(error, HTTPException)
    status_name = {404: "NOT_FOUND", 405: "UNIMPLEMENTED"}.get(error.status_code, "UNKNOWN")
    reason = HTTPStatus(error.status_code).phrase
    message = f"{reason}: the embedded service has no {request.method} {request.url.path}"
    return JSONResponse(
        ApiError(error.status_code, status_name, message).body(),
        error.status_code,
        headers=error.headers,
    )


async def _answer_nobody(_: Request, error: Exception) -> Response:
    """The client went away in the middle of its body: nothing of ours failed."""
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=499)


async def _answer_crash(request: Request, error: Exception) -> Response:
    """A defect of this service; the server logs its traceback."""
    message = f"{request.method} {request.url.path} failed: {type(error).__name__}: {error}"
    return JSONResponse(ApiError(500, "INTERNAL", message).body(), 500)
