from __future__ import annotations

import json
from pathlib import Path

from airflow_aiptraining.local.replica_env import command, environment

INPUT = {"pythonModule": "trainer.task", "args": ["--a", "--job-dir=x"], "jobDir": "gs://b/o"}


def test_job_dir_comes_last_even_if_the_user_gave_one() -> None:
    assert command(Path("/e/bin/python"), INPUT) == [
        "/e/bin/python", "-m", "trainer.task", "--a", "--job-dir=x", "--job-dir", "gs://b/o",
    ]  # fmt: skip


def made_from(base: dict[str, str]) -> dict[str, str]:
    return environment(
        Path("/r"),
        uid="u",
        python=Path("/e/bin/python"),
        project="p",
        job_id="j",
        service_url="http://127.0.0.1:1",
        tf_config={"a": 1},
        base=base,
    )


def test_environment_is_built_from_nothing() -> None:
    base = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "GOOGLE_APPLICATION_CREDENTIALS": "/k.json",
        "HOME": "/home/me",
        "PYTHONPATH": "/mine",
        "PATH": "/mine/bin",
        "HTTPS_PROXY": "http://me:pw@proxy:1",
    }

    made = made_from(base)

    assert not {value for value in base.values() if value in made.values()}
    assert made["PATH"].startswith("/e/bin:")
    assert json.loads(made["TF_CONFIG"]) == {"a": 1}
    assert made["CLOUDSDK_CONFIG"] == "/r/gcloud"


def test_roots_of_trust_and_open_proxies_pass() -> None:
    base = {"SSL_CERT_FILE": "/ca.pem", "https_proxy": "http://proxy:1", "CUDA_HOME": "/cuda"}

    made = made_from(base)

    assert base.items() <= made.items()
    assert "127.0.0.1" in made["NO_PROXY"]
