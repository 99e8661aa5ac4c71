"""Who may talk to the embedded service."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from airflow_aiptraining.local.security import LocalOnly

TOKEN = "t" * 32


def client_of(**options: object) -> TestClient:
    async def answer(request: Request) -> Response:
        await request.body()
        return PlainTextResponse("in")

    app = Starlette(
        routes=[Route("/{rest:path}", answer, methods=["GET", "POST"])],
        middleware=[Middleware(LocalOnly, **options)],  # type: ignore[arg-type]
    )
    return TestClient(app, base_url="http://127.0.0.1:8080")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("127.8.8.8:8080", 200),
        ("[::1]:8080", 200),
        ("LOCALHOST:8080", 200),
        ("training.internal:1", 200),
        ("proxy:81", 200),
        ("proxy:82", 403),
        ("10.0.0.1:8080", 403),
        ("localhost.evil.example:8080", 403),
        ("127.0.0.1:8080@evil.example", 403),
        ("0.0.0.0:8080", 403),
        ("", 403),
    ],
)
def test_host_must_be_a_name_of_this_service(host: str, status: int) -> None:
    client = client_of(allowed_hosts=["training.internal", "proxy:81"])

    assert client.get("/x", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (TOKEN, 401),
        ("Bearer ünïcode".encode(), 401),
        (None, 401),
    ],
)
def test_token_is_asked_of_everybody_whatever_the_host(
    given: str | bytes | None, status: int
) -> None:
    headers = {"Host": "a-container"} | ({} if given is None else {"Authorization": given})

    assert client_of(token=TOKEN).get("/x", headers=headers).status_code == status  # type: ignore[arg-type]


def test_token_does_not_let_web_pages_in() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "https://evil.example"}

    assert client_of(token=TOKEN).get("/x", headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("path", "content_type", "status"),
    [
        ("/v1/projects/p/jobs", "application/json; charset=utf-8", 200),
        ("/v1/projects/p/jobs", "text/plain", 415),
        ("/v1/projects/p/jobs", "multipart/form-data; boundary=x", 415),
        ("/upload/storage/v1/b/b/o", "text/plain", 200),
        ("/resumable/upload/storage/v1/b/b/o", "text/plain", 200),
    ],
)
def test_only_uploads_take_what_is_not_json(path: str, content_type: str, status: int) -> None:
    answer = client_of().post(path, content=b"{}", headers={"Content-Type": content_type})

    assert answer.status_code == status
