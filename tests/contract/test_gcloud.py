"""ML v1 jobs of the embedded service, judged by the gcloud CLI where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded import Service
from training_client import PROJECT, TrainingClient, wheel

pytestmark = pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")

Gcloud = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def client(service: Service) -> TrainingClient:
    return TrainingClient(service)


@pytest.fixture(scope="module")
def gcloud(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    """Run ``gcloud ai-platform jobs …`` against the service, without credentials."""
    env = os.environ | {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_ML": f"{service.ml}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": f"{service.logging}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{service.storage}/storage/v1/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CONFIG": str(tmp_path_factory.mktemp("gcloud")),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["gcloud", "ai-platform", "jobs", *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_describe_and_list_show_a_job(client: TrainingClient, gcloud: Gcloud) -> None:
    job_id = client.submit("print('hello')")
    job = client.wait(job_id)

    described = gcloud("describe", job_id, "--format=json")
    listed = gcloud("list", "--format=json")

    # gcloud prints bytes in the URL-safe alphabet.
    as_printed = job | {"etag": job["etag"].replace("+", "-").replace("/", "_")}
    assert json.loads(described.stdout) == as_printed
    assert as_printed in json.loads(listed.stdout)


def test_cancel_is_silent_and_cancels(client: TrainingClient, gcloud: Gcloud) -> None:
    job_id = client.submit("import time; time.sleep(600)")

    done = gcloud("cancel", job_id)

    assert done.returncode == 0, done.stderr
    assert client.wait(job_id)["state"] == "CANCELLED"


def test_errors_are_told_in_googles_words(client: TrainingClient, gcloud: Gcloud) -> None:
    unknown = gcloud("describe", "no_such_job")

    assert unknown.returncode == 1
    assert "NOT_FOUND: Field: name Error:" in unknown.stderr


def test_labels_are_updated(client: TrainingClient, gcloud: Gcloud) -> None:
    job_id = client.submit("print('hello')")

    done = gcloud("update", job_id, "--update-labels=team=a")

    assert done.returncode == 0, done.stderr
    assert client.get(job_id)["labels"] == {"team": "a"}


def test_stream_logs_gives_every_line_once_and_ends(client: TrainingClient, gcloud: Gcloud) -> None:
    job_id = client.submit(
        "import time\nfor number in range(40): print('number', number); time.sleep(0.1)"
    )

    done = gcloud("stream-logs", job_id, "--polling-interval=1")

    assert done.returncode == 0, done.stderr
    printed = [line.split("\t") for line in done.stdout.splitlines()]
    numbers = [cells[-1].strip() for cells in printed if "number" in cells[-1]]
    assert numbers == [f"number {number}" for number in range(40)]
    assert "master-replica-0" in done.stdout
    assert "Job completed successfully." in done.stdout


def test_submit_packages_uploads_and_runs(
    client: TrainingClient, gcloud: Gcloud, tmp_path: Path
) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text("import sys; print('args', sys.argv[1:])")

    done = gcloud(
        "submit", "training", "by_gcloud",
        f"--package-path={package}", "--module-name=trainer.task",
        f"--staging-bucket=gs://{client.bucket}", "--region=us-central1",
        "--runtime-version=2.11", "--python-version=3.7", "--", "--epochs", "3",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert client.wait("by_gcloud")["state"] == "SUCCEEDED", client.lines("by_gcloud")
    assert "args ['--epochs', '3']" in client.lines("by_gcloud")


def test_custom_cluster_of_a_config_file_runs(
    client: TrainingClient, gcloud: Gcloud, tmp_path: Path
) -> None:
    uri = client.upload(wheel("import os; print(os.environ['TF_CONFIG'])"))
    config = tmp_path / "config.yaml"
    config.write_text(
        "trainingInput:\n"
        "  scaleTier: CUSTOM\n"
        "  masterType: complex_model_m\n"
        "  workerType: complex_model_m\n"
        "  workerCount: 2\n"
        "  parameterServerType: large_model\n"
        "  parameterServerCount: 1\n"
        "  runtimeVersion: '2.11'\n"
        "  pythonVersion: '3.7'\n"
    )

    done = gcloud(
        "submit", "training", "cluster_by_gcloud", f"--config={config}", f"--packages={uri}",
        "--module-name=trainer.task", "--region=us-central1",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert client.wait("cluster_by_gcloud")["state"] == "SUCCEEDED"
    (line,) = [line for line in client.lines("cluster_by_gcloud") if line.startswith('{"cluster"')]
    cluster = json.loads(line)["cluster"]
    counts = {role: len(hosts) for role, hosts in cluster.items()}
    assert counts == {"chief": 1, "worker": 2, "ps": 1}
    streamed = gcloud(
        "stream-logs", "cluster_by_gcloud", "--task-name=worker-replica-1", "--polling-interval=1"
    )
    assert "Running command: python3 -m trainer.task" in streamed.stdout, streamed.stderr
    assert "master-replica-0" not in streamed.stdout
