"""What the hook says of credentials that can't be used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_aiptraining.exceptions import AIPTrainingError
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
