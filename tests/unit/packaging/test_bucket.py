"""Staging locations, and what a refusing or absent storage service is told as.

The refusals come from a real HTTP server that answers them; what a working service does is in
tests/contract/test_packaging.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from airflow_aiptraining.exceptions import StagingError, TransientServiceError
from airflow_aiptraining.packaging import bucket as bucket_module
from airflow_aiptraining.packaging import check_staging, package_trainer, split_uri, stage_archives

Answers = dict[str, tuple[int, Any]]


@pytest.fixture
def refusing() -> Iterator[Callable[[Answers], Client]]:
    """Give a maker of clients on a server with canned answers.

    The answers are by a part of the request line; the first that fits counts; 404 if none does.
    """
    answers: Answers = {}

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            line = f"{self.command} {self.path}"
            status, body = next(
                (answer for part, answer in answers.items() if part in line),
                (404, {"error": {"code": 404, "message": "not found"}}),
            )
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    def make(given: Answers) -> Client:
        answers.update(given)
        options = ClientOptions(api_endpoint=f"http://127.0.0.1:{server.server_port}")
        return Client("demo", AnonymousCredentials(), client_options=options)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield make
        server.shutdown()
        serving.join()


def refusal(status: int, message: str) -> tuple[int, Any]:
    return status, {"error": {"code": status, "message": message}}


@pytest.mark.parametrize(
    ("staging", "parts"),
    [
        ("gs://models", ("models", "")),
        ("gs://models/", ("models", "")),
        ("gs://models/team a/x/", ("models", "team a/x/")),
        ("gs://my.models_2-eu/job", ("my.models_2-eu", "job/")),
    ],
)
def test_staging_location_is_a_bucket_and_a_prefix(staging: str, parts: tuple[str, str]) -> None:
    assert split_uri(staging) == parts


NO_STAGING = ["", "models", "/tmp/x", "s3://models", "gs:/models"]
NO_BUCKET = ["gs://", "gs:///x", "gs://UPPER", "gs://a", "gs://-models"]
NO_PREFIX = ["gs://models/a/../b", "gs://models/a\nb", "gs://models/" + "x" * 600]


@pytest.mark.parametrize("staging", [*NO_STAGING, *NO_BUCKET, *NO_PREFIX])
def test_anything_else_is_refused(staging: str) -> None:
    with pytest.raises(StagingError, match="Staging location"):
        split_uri(staging)


def test_read_only_bucket_is_refused_with_the_role_to_give(
    refusing: Callable[[Answers], Client],
) -> None:
    client = refusing({"testPermissions": (200, {"kind": "x", "permissions": []})})
    with pytest.raises(StagingError, match=r"'models' \(project 'demo'\) is not writable"):
        check_staging("gs://models/p", client)


def test_writable_bucket_passes(refusing: Callable[[Answers], Client]) -> None:
    client = refusing({"testPermissions": (200, {"permissions": ["storage.objects.create"]})})
    check_staging("gs://models/p", client)


@pytest.mark.parametrize("status", [404, 405, 400, 501])
def test_endpoint_without_test_permissions_is_asked_for_the_bucket(
    refusing: Callable[[Answers], Client], status: int
) -> None:
    answers = {"testPermissions": refusal(status, "no such method")}
    client = refusing({**answers, "GET /storage/v1/b/models": (200, {"name": "models"})})
    check_staging("gs://models", client)
    with pytest.raises(StagingError, match=r"'other' doesn't exist \(.*project 'demo'"):
        check_staging("gs://other", client)


def test_account_that_may_not_even_ask_is_left_to_the_upload(
    refusing: Callable[[Answers], Client],
) -> None:
    check_staging("gs://models", refusing({"testPermissions": refusal(403, "denied")}))


def make_trainer(tmp_path: Path) -> Path:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/__init__.py").write_text("")
    return tmp_path / "trainer"


def test_listing_denied_names_the_bucket_project_and_role(
    refusing: Callable[[Answers], Client], tmp_path: Path
) -> None:
    client = refusing({"/o?": refusal(403, "caller lacks storage.objects.list")})
    with pytest.raises(StagingError) as caught:
        package_trainer(make_trainer(tmp_path), staging="gs://models", client=client)
    for part in ("models", "'demo'", "lacks storage.objects.list", "roles/storage.objectUser"):
        assert part in str(caught.value)


def test_upload_denied_names_the_bucket_project_and_role(
    refusing: Callable[[Answers], Client], tmp_path: Path
) -> None:
    answers = {
        "GET /storage/v1/b/models/o?": (200, {"items": []}),
        "testPermissions": refusal(403, "denied"),
        "POST /upload": refusal(403, "retention policy"),
    }
    with pytest.raises(StagingError, match=r"Could not write gs://models/p.*retention policy"):
        package_trainer(make_trainer(tmp_path), staging="gs://models", client=refusing(answers))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_service_that_is_away_for_long_is_told_as_transient(
    refusing: Callable[[Answers], Client],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    monkeypatch.setattr(bucket_module, "RETRY_SECONDS", 0.05)
    client = refusing({"/o?": refusal(status, "later")})
    with pytest.raises(TransientServiceError, match="later"):
        package_trainer(make_trainer(tmp_path), staging="gs://models", client=client)


def test_service_that_nobody_serves_is_told_as_transient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "RETRY_SECONDS", 0.05)
    options = ClientOptions(api_endpoint="http://127.0.0.1:9")  # discard: nobody listens
    client = Client("demo", AnonymousCredentials(), client_options=options)
    with pytest.raises(TransientServiceError):
        check_staging("gs://models", client)


def test_wrong_staging_is_refused_before_the_tree_is_read(
    refusing: Callable[[Answers], Client], tmp_path: Path
) -> None:
    with pytest.raises(StagingError, match="not in Cloud Storage"):
        package_trainer(tmp_path / "nowhere", staging="/tmp/x", client=refusing({}))


def test_package_that_only_the_service_may_see_is_passed_on_with_a_warning(
    refusing: Callable[[Answers], Client], caplog: pytest.LogCaptureFixture
) -> None:
    client = refusing({"/o/": refusal(403, "denied to this worker")})
    uri = "gs://private/trainer-1.0.tar.gz"
    assert stage_archives([uri], staging="gs://m-1", client=client, module_name="t.task") == [uri]
    assert "denied to this worker" in caplog.text
