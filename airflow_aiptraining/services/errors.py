"""What the HTTP layer raises → this package's errors, with the cure where one is known."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any

import google.auth.exceptions
import httplib2
from googleapiclient.errors import Error as GoogleClientError
from googleapiclient.errors import HttpError

from airflow_aiptraining.exceptions import (
    JobExistsError,
    JobNotFoundError,
    PermissionDeniedError,
    ServiceClosedError,
    ServiceError,
    TransientServiceError,
)

#: Text of the 400 that every call to Google's ML v1 has answered since the shutdown.
SHUTDOWN_TEXT = "Cloud AI Platform has been deprecated"

_ACT_AS = "Grant roles/iam.serviceAccountUser on that service account to the caller."
#: What a 403's own words point to, and what to do about it.
_CURES = (
    ("actas", _ACT_AS),
    ("serviceaccounts", _ACT_AS),
    ("has not been used in project", "Enable the API in that project."),
    ("service_disabled", "Enable the API in that project."),
    ("billing", "Enable billing for that project."),
    ("artifactregistry", "Grant the project's ML service agent read access to the repository."),
    ("ml.jobs", "Grant roles/ml.developer on the project to the caller."),
    ("logging", "Grant roles/logging.viewer on the project to the caller."),
)
_QUOTA_REASONS = ("ratelimitexceeded", "quotaexceeded", "resource_exhausted")
_MAX_REASON = 2_000


def translate(error: Exception, doing: str) -> ServiceError:
    """Return the error of this package that says what ``error`` says.

    :param error: what a call through google-api-python-client raised.
    :param doing: what was tried, to which job and where, e.g. ``Reading job 'a_1' (project 'p')``.
    """
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, HttpError):
        return _of_answer(error, doing)
    if isinstance(error, google.auth.exceptions.TransportError):
        return TransientServiceError(f"{doing}: the token endpoint can't be reached: {error}")
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        if getattr(error, "retryable", False):
            return TransientServiceError(f"{doing}: no access token for now: {_short(str(error))}")
        return PermissionDeniedError(
            f"{doing}: the connection's credentials were not accepted: {_short(str(error))}. "
            "Check the key or the impersonation chain of the connection.",
            status=401,
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return ServiceError(f"{doing}: the endpoint's certificate isn't trusted: {error}")
    if isinstance(error, (OSError, HTTPException, httplib2.HttpLib2Error)):
        reason = f"no answer: {type(error).__name__}: {error}"
        return TransientServiceError(f"{doing}: {reason}", reason=reason)
    if isinstance(error, (ValueError, GoogleClientError)):
        reason = f"the answer can't be read: {_short(str(error))}"
        return TransientServiceError(f"{doing}: {reason}", reason=reason)
    raise error


def _of_answer(error: HttpError, doing: str) -> ServiceError:
    status = int(error.resp.status)
    reason, words = _reason(error.content)
    message = f"{doing}: HTTP {status}: {reason}"
    lowered = words.lower()
    if status == 400 and SHUTDOWN_TEXT.lower() in lowered:
        return ServiceClosedError(
            f"{doing}: Google has closed AI Platform Training at this endpoint. Point the "
            "connection at the embedded service (service 'local') or another ML v1 endpoint. "
            f"(HTTP 400: {reason})",
            status=status,
            reason=reason,
        )
    over_quota = status == 403 and any(word in lowered for word in _QUOTA_REASONS)
    if status in (408, 429) or (status >= 500 and status != 501) or over_quota:
        return TransientServiceError(
            message, status=status, reason=reason, retry_after=_retry_after(error.resp)
        )
    if status in (401, 403):
        cure = next((cure for word, cure in _CURES if word in lowered), "")
        return PermissionDeniedError(f"{message} {cure}".rstrip(), status=status, reason=reason)
    if status == 404 and not _is_json(error.content):
        # A load balancer's or a proxy's: the API itself answers JSON.
        return TransientServiceError(message, status=status, reason=reason)
    if status == 404:
        return JobNotFoundError(message, status=status, reason=reason)
    if status == 409:
        return JobExistsError(message, status=status, reason=reason)
    return ServiceError(message, status=status, reason=reason)


def _reason(content: bytes) -> tuple[str, str]:
    """Return the service's own sentence with its field violations, and all its words."""
    text = content.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
        reason = str(error["message"])
        for detail in error.get("details", []):
            for violation in detail.get("fieldViolations", []):
                description = str(violation.get("description", ""))
                if description not in reason:
                    reason += f" [{violation.get('field', '')}: {description}]"
    except (ValueError, KeyError, TypeError, AttributeError):
        page = text.lstrip()[:15].lower().startswith(("<!doctype", "<html"))
        return ("an HTML page, not the API's JSON" if page else _short(text) or "no text"), text
    return _short(reason), text


def _is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except ValueError:
        return False


def _short(text: str) -> str:
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + " …"


def _retry_after(headers: Mapping[str, Any]) -> float | None:
    """Return the seconds that ``Retry-After`` asks for; a date counts from the answer's own."""
    value = str(headers.get("retry-after", "")).strip()
    if value.isdigit():
        return float(value)
    try:
        until, now = (parsedate_to_datetime(text) for text in (value, str(headers["date"])))
    except (ValueError, KeyError, TypeError):
        return None
    return max(0.0, (until - now).total_seconds())
