"""What the hook says of credentials that can't be used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_aiptraining.exceptions import AIPTrainingError
from airflow_aiptraining.hooks.settings import ConnectionSettingsError
from airflow_aiptraining.hooks.training import AIPTrainingHook


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        pytest.param({}, "credentials were not accepted", id="none, and none on this machine"),
        pytest.param({"keyfile_dict": "{nope"}, "Invalid key JSON", id="key that is no JSON"),
        pytest.param({"keyfile_dict": {"type": "x"}}, "credentials", id="key without its parts"),
        pytest.param({"key_path": "/no/such/key.json"}, "key.json", id="no such file"),
    ],
)
def test_credentials_that_cannot_be_used_are_told_with_their_connection(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], words: str
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_G",
        json.dumps({"conn_type": "google_cloud_platform", "extra": {"project": "p", **extra}}),
    )
    monkeypatch.setenv("HOME", "/nonexistent")

    with pytest.raises(AIPTrainingError, match=f"'g'.*{words}"):
        AIPTrainingHook("g").get_service()


def test_token_does_not_go_to_where_a_job_was_sent_by_another_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job's ledger may name an endpoint that the connection had before it got credentials."""
    extra = {"service": "ml_v1", "api_endpoint": "https://ml.example.com", "project": "p"}
    connection = json.dumps({"conn_type": "aiptraining", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_EDITED", connection)

    with pytest.raises(ConnectionSettingsError, match="api_endpoint is plain http"):
        AIPTrainingHook("edited").get_service(api_endpoint="http://192.0.2.1:8085")
