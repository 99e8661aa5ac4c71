"""Errors as Google's APIs answer them.

One class for all surfaces: a handler raises ``ApiError``, the application answers its JSON.
ML v1 and Cloud Logging carry the canonical status (``"status": "NOT_FOUND"``); Cloud Storage
carries a list of reasons instead (``"errors": [{"reason": "notFound", ...}]``), which its clients
read.  Sources: google.rpc.Status as googleapis JSON; Cloud Storage JSON API, "Status codes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class ApiError(Exception):
    """A request is refused.

    :param status: HTTP status, e.g. 404.
    :param status_name: canonical name of google.rpc.Code, e.g. ``NOT_FOUND``.
    :param message: what happened, to what, and what to do.
    :param field_violations: pairs (path of the field, what is wrong with it).
    :param reason: Cloud Storage's reason, e.g. ``notFound``; empty on the other surfaces.
    :param headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        status_name: str,
        message: str,
        field_violations: Sequence[tuple[str, str]] = (),
        *,
        reason: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.status_name = status_name
        self.message = message
        self.field_violations = tuple(field_violations)
        self.reason = reason
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON body that Google's clients parse."""
        error: dict[str, Any] = {"code": self.status, "message": self.message}
        if self.reason:
            error["errors"] = [{"message": self.message, "domain": "global", "reason": self.reason}]
        else:
            error["status"] = self.status_name
        if self.field_violations:
            error["details"] = [
                {
                    "@type": "type.googleapis.com/google.rpc.BadRequest",
                    "fieldViolations": [
                        {"field": field, "description": description}
                        for field, description in self.field_violations
                    ],
                }
            ]
        return {"error": error}


_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    416: "OUT_OF_RANGE",
    501: "UNIMPLEMENTED",
}


def storage_error(status: int, reason: str, message: str) -> ApiError:
    """Return a Cloud Storage error.

    :param reason: the API's word, e.g. ``conditionNotMet``.
    """
    return ApiError(status, _STATUS_NAMES.get(status, "UNKNOWN"), message, reason=reason)


def bad_request(message: str, *, reason: str = "invalid") -> ApiError:
    """Return Cloud Storage's 400."""
    return storage_error(400, reason, message)


def bucket_not_found(name: str) -> ApiError:
    """Return the 404 of a missing bucket."""
    return storage_error(
        404, "notFound", f"The specified bucket does not exist: {name}. Create it first."
    )


def object_not_found(bucket: str, name: str, generation: int | None = None) -> ApiError:
    """Return the 404 of a missing object or of a generation that was overwritten."""
    which = f"{bucket}/{name}" + (f"#{generation}" if generation is not None else "")
    return storage_error(404, "notFound", f"No such object: {which}")


def precondition_failed(what: str) -> ApiError:
    """Return the 412 of a precondition that doesn't hold.

    :param what: which one, asked and found, for the person who reads it.
    """
    return storage_error(
        412,
        "conditionNotMet",
        f"At least one of the pre-conditions you specified did not hold: {what}.",
    )
