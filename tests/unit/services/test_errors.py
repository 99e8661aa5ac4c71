"""What a service answers, and what becomes of it."""

from __future__ import annotations

import json
import ssl
from typing import Any

import google.auth.exceptions
import httplib2
import pytest
from googleapiclient.errors import HttpError

from airflow_aiptraining.exceptions import (
    JobExistsError,
    JobNotFoundError,
    PermissionDeniedError,
    ServiceClosedError,
    ServiceError,
    TransientServiceError,
)
from airflow_aiptraining.services.errors import translate


def _answer(status: int, body: Any, **headers: str) -> HttpError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = httplib2.Response({"status": status, **headers})
    return HttpError(response, content, uri="https://ml.example.com/?key=SECRET")


def _google(status: int, message: str, **details: Any) -> HttpError:
    return _answer(status, {"error": {"code": status, "message": message, **details}})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_google(400, "Field: job Error: no"), ServiceError),
        (_google(401, "no"), PermissionDeniedError),
        (_google(403, "Permission denied"), PermissionDeniedError),
        (_google(403, "x", errors=[{"reason": "rateLimitExceeded"}]), TransientServiceError),
        (_google(404, "not found"), JobNotFoundError),
        (_answer(404, b"<html>no such backend</html>"), TransientServiceError),
        (_google(409, "exists"), JobExistsError),
        (_google(429, "quota"), TransientServiceError),
        (_google(500, "oops"), TransientServiceError),
        (_google(501, "not here"), ServiceError),
        (_answer(502, b"<html>bad gateway</html>"), TransientServiceError),
        (_answer(503, b""), TransientServiceError),
        (TimeoutError("timed out"), TransientServiceError),
        (ConnectionResetError(104, "reset"), TransientServiceError),
        (httplib2.ServerNotFoundError("no such host"), TransientServiceError),
        (ValueError("Expecting value: line 1"), TransientServiceError),
        (google.auth.exceptions.TransportError("x"), TransientServiceError),
        (google.auth.exceptions.RefreshError("invalid_grant"), PermissionDeniedError),
        (ssl.SSLCertVerificationError("self signed"), ServiceError),
    ],
)
def test_each_answer_has_its_error(error: Exception, kind: type[ServiceError]) -> None:
    told = translate(error, "Reading job 'j' (project 'p')")

    assert type(told) is kind
    assert "Reading job 'j' (project 'p')" in str(told)
    assert "SECRET" not in str(told)


def test_shutdown_is_told_apart_from_other_400s() -> None:
    told = translate(
        _google(400, "Cloud AI Platform has been deprecated. Please use Vertex AI instead."), "X"
    )

    assert isinstance(told, ServiceClosedError)
    assert "service 'local'" in str(told)


def test_field_violations_are_told() -> None:
    violation = {"field": "job.job_id", "description": "A job with this id already exists."}
    told = translate(_google(409, "conflict", details=[{"fieldViolations": [violation]}]), "X")

    assert "[job.job_id: A job with this id already exists.]" in str(told)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("Cloud ML API has not been used in project 1 before", "Enable the API"),
        ("caller lacks iam.serviceAccounts.actAs", "roles/iam.serviceAccountUser"),
        ("Billing must be enabled", "Enable billing"),
    ],
)
def test_missing_right_is_told_with_its_cure(words: str, cure: str) -> None:
    assert cure in str(translate(_google(403, words), "X"))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        (
            {
                "date": "Sat, 21 Nov 2026 10:00:00 GMT",
                "retry-after": "Sat, 21 Nov 2026 10:01:00 GMT",
            },
            60.0,
        ),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    told = translate(_answer(429, {}, **headers), "X")

    assert isinstance(told, TransientServiceError)
    assert told.retry_after == seconds


def test_what_is_no_answer_of_a_service_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        translate(KeyError("a bug"), "X")
