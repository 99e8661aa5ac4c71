"""Storage's errors in this package's words, and ``gs://`` URIs."""

from __future__ import annotations

import pytest
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from airflow_aiptraining.exceptions import (
    PermissionDeniedError,
    StagingError,
    TransientServiceError,
)
from airflow_aiptraining.hooks import storage


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (api.NotFound("x"), storage.ObjectGoneError),
        (api.Forbidden("x"), PermissionDeniedError),
        (api.Unauthorized("x"), PermissionDeniedError),
        (api.TooManyRequests("x"), TransientServiceError),
        (api.ServiceUnavailable("x"), TransientServiceError),
        (api.GatewayTimeout("x"), TransientServiceError),
        (api.RetryError("x", requests.ConnectionError("refused")), TransientServiceError),
        (api.RetryError("x", api.ServiceUnavailable("y")), TransientServiceError),
        (api.BadRequest("x"), StagingError),
        (api.PreconditionFailed("x"), StagingError),
        (requests.Timeout("x"), TransientServiceError),
        (ConnectionResetError("x"), TransientServiceError),
        (auth.TransportError("x"), TransientServiceError),
        (auth.RefreshError("x"), PermissionDeniedError),
        (auth.RefreshError("x", retryable=True), TransientServiceError),
        (auth.DefaultCredentialsError("x"), PermissionDeniedError),
        (ZeroDivisionError("a defect"), ZeroDivisionError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else repr(value)[:40],
)
def test_every_error_is_told_in_this_packages_words(
    error: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as told, storage._told("Listing gs://b/x/"):
        raise error
    assert type(told.value) is expected
    if expected is not ZeroDivisionError:
        assert str(told.value).startswith("Listing gs://b/x/")


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("gs://b", ("b", "")),
        ("gs://b/", ("b", "")),
        ("gs://b/a", ("b", "a/")),
        ("gs://b/a/c//", ("b", "a/c/")),
    ],
)
def test_a_folder_is_read_with_and_without_its_slash(uri: str, folder: tuple[str, str]) -> None:
    assert storage.parse_folder(uri, "job_dir") == folder


@pytest.mark.parametrize("uri", ["", "gs://", "gs:///x", "/tmp/x", "s3://b/x", "b/x"])
def test_what_is_no_uri_is_told(uri: str) -> None:
    with pytest.raises(StagingError, match=r"job_dir is .*; it must be gs://BUCKET/PATH"):
        storage.parse_folder(uri, "job_dir")
