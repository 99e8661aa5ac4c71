"""What a connection's extras may say."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_aiptraining.hooks.settings import (
    ConnectionSettings,
    ConnectionSettingsError,
    check_project,
)

LOCAL = {"api_endpoint": "http://127.0.0.1:8085/"}


def _settings(extras: dict[str, Any], conn_type: str = "aiptraining") -> ConnectionSettings:
    return ConnectionSettings.of(extras, conn_id="c", conn_type=conn_type)


def test_aiptraining_connection_means_the_embedded_service() -> None:
    settings = _settings(LOCAL)

    assert settings.service == "local"
    assert settings.api_endpoint == "http://127.0.0.1:8085"
    assert settings.storage_endpoint == settings.logging_endpoint == settings.api_endpoint


def test_google_connection_means_google() -> None:
    assert _settings({"project": "p"}, "google_cloud_platform") == ConnectionSettings("ml_v1")


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        pytest.param({}, "aiptraining serve", id="local without endpoint"),
        pytest.param({"service": "sagemaker"}, "'local', 'ml_v1'", id="unknown service"),
        pytest.param({**LOCAL, "runtime_version": 2.1}, "in quotes", id="number for text"),
        pytest.param({"api_endpoint": "127.0.0.1:80"}, "must be an address", id="no scheme"),
        pytest.param({"api_endpoint": "ftp://h"}, "must be an address", id="ftp"),
        pytest.param({"api_endpoint": "http://h:99999"}, "65535", id="no such port"),
        pytest.param({"api_endpoint": "http://h?x=1"}, "must be an address", id="query"),
        pytest.param({"api_endpoint": "http://u:secret@h"}, "user name", id="password in URL"),
    ],
)
def test_bad_extra_is_named_with_its_cure(extras: dict[str, Any], words: str) -> None:
    with pytest.raises(ConnectionSettingsError, match=r"'c'.*" + words) as error:
        _settings(extras)

    assert "secret" not in str(error.value)


def test_connection_of_another_type_is_named() -> None:
    with pytest.raises(ConnectionSettingsError, match="of type 'http'"):
        _settings(LOCAL, "http")


@pytest.mark.parametrize("project", ["../x", "a/b", "", " ", "p?x=1"])
def test_project_that_would_become_another_url_is_refused(project: str) -> None:
    with pytest.raises(ConnectionSettingsError, match="no project id"):
        check_project(project, "c")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"])
def test_token_may_go_to_loopback(url: str) -> None:
    _settings({"service": "ml_v1", "api_endpoint": url}).check_no_cleartext_tokens("c")


def test_token_may_not_cross_a_network_in_the_clear() -> None:
    settings = _settings({"service": "ml_v1", "api_endpoint": "http://ml.example.com"})

    with pytest.raises(ConnectionSettingsError, match="api_endpoint is plain http"):
        settings.check_no_cleartext_tokens("c")
