"""Runtime versions of the embedded service: what is installed, what runs, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded import Service, start_service
from googleapiclient.errors import HttpError
from training_client import PROJECT, TrainingClient, wheel

from airflow_aiptraining.local.interpreters import OWN, inspect

OFFLINE = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of a library; nothing else has it."""
    folder = tmp_path_factory.mktemp("wheels")
    (folder / "in_the_image-0.1-py3-none-any.whl").write_bytes(wheel("", "in_the_image"))
    return folder


@pytest.fixture(scope="module")
def client(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    """A service that reaches no registry, with a table of its own."""
    folder = tmp_path_factory.mktemp("runtimes")
    table = folder / "own.toml"
    library = (wheels / "in_the_image-0.1-py3-none-any.whl").as_uri()
    table.write_text(
        f"""
        [runtimes."2.11"]
        requirements = ["in_the_image @ {library}"]
        [runtimes."2.10"]
        requirements = ["no-such-library-anywhere==1"]
        [runtimes."9.1"]
        python = "{sys.executable}"
        [on_import]
        in_the_image = "in_the_image @ {library}"
        lost = "no-such-library-anywhere"
        """
    )
    options = ("--runtimes", str(table))
    service = start_service(folder / "data", *options, env=OFFLINE)
    yield TrainingClient(service)
    service.stop()


def create_error(client: TrainingClient, body: dict[str, Any]) -> dict[str, Any]:
    with pytest.raises(HttpError) as caught:
        client.jobs.create(parent=f"projects/{PROJECT}", body=body).execute()
    error: dict[str, Any] = json.loads(caught.value.content)["error"]
    assert error["code"] == caught.value.status_code
    return error


# --- what is installed ---------------------------------------------------------------------------


def test_trainer_finds_what_its_runtime_has_and_the_next_job_reuses_it(
    client: TrainingClient,
) -> None:
    # Not a source that says so: the table's list is installed for every job of the runtime.
    uri = client.upload(wheel("__import__('in_the_image.task')"))
    first, second = (client.create(client.body(uri)) for _ in range(2))

    assert client.wait(first)["state"] == "SUCCEEDED", client.lines(first)
    assert client.wait(second)["state"] == "SUCCEEDED", client.lines(second)

    third = client.create(client.body(uri))
    assert client.wait(third)["state"] == "SUCCEEDED"
    installed = [line for line in client.lines(first) if line.startswith("Installing for")]
    assert len(installed) == 1
    assert "in_the_image @ file://" in installed[0]
    assert any("is used again" in line for line in client.lines(third))
    assert not [line for line in client.lines(third) if line.startswith("Installing for")]


def test_undeclared_library_is_there_for_the_trainer_that_imports_it(
    client: TrainingClient,
) -> None:
    job_id = client.submit("from in_the_image import task", runtimeVersion="2.9")

    assert client.wait(job_id)["state"] == "SUCCEEDED", client.lines(job_id)


def test_library_that_the_packages_bring_is_not_installed_from_the_table(
    client: TrainingClient,
) -> None:
    body = client.body(
        client.upload(wheel("import lost.task")),
        client.upload(wheel("", "lost"), "lost-0.1-py3-none-any.whl"),
        runtimeVersion="2.9",
    )

    job_id = client.create(body)

    assert client.wait(job_id)["state"] == "SUCCEEDED", client.lines(job_id)


@pytest.mark.parametrize(
    ("runtime", "task", "key"),
    [
        ("2.10", "", 'own.toml, runtimes."2.10".requirements'),
        ("2.9", "import lost", 'own.toml, on_import."lost"'),
    ],
)
def test_requirement_that_cannot_be_installed_fails_the_job_and_names_its_key(
    client: TrainingClient, runtime: str, task: str, key: str
) -> None:
    job_id = client.submit(task, runtimeVersion=runtime)

    job = client.wait(job_id)

    assert job["state"] == "FAILED"
    assert key in job["errorMessage"]
    assert "no-such-library-anywhere" in job["errorMessage"].split(key)[1]


def test_module_that_nothing_brings_fails_the_job_with_the_cure(client: TrainingClient) -> None:
    job_id = client.submit("import unheard_of")

    message = client.wait(job_id)["errorMessage"]

    assert "ModuleNotFoundError: No module named 'unheard_of'\n\nNothing that was" in message
    assert "install_requires" in message
    assert "--runtimes" in message


# --- what it runs on -----------------------------------------------------------------------------


def test_log_says_first_what_the_job_runs_on(client: TrainingClient) -> None:
    job_id = client.submit("", runtimeVersion=None, pythonVersion=None)
    client.wait(job_id)

    lines = client.lines(job_id)
    assert lines[:2] == [
        "Running module trainer.task.",
        "No runtimeVersion is given: the default, 2.11, is used.",
    ]
    assert lines[2].startswith("Runtime 2.11, as own.toml has it: in_the_image @ file://")
    assert lines[3] == (
        f"No pythonVersion is given: the job runs on the service's own, {OWN.version}."
    )


def another_python() -> Path | None:
    """Return an interpreter of another version than the service's own, if there is one."""
    for minor in range(13, 7, -1):
        name = f"python3.{minor}"
        installed = sorted(Path.home().glob(f".pyenv/versions/*/bin/{name}"))
        for path in [*installed, *filter(None, [shutil.which(name)])]:
            found = inspect(str(path))
            if found and name == f"python{found.version}" != f"python{OWN.version}":
                return Path(found.path)
    return None


def test_python_version_picks_that_interpreter_where_it_is(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    other, folder = another_python(), tmp_path / "bin"
    folder.mkdir()
    version, told = OWN.version, "3.99 isn't on this machine: the job runs on the service's own, "
    if other:
        (folder / other.name).symlink_to(other)
        version = other.name.removeprefix("python")
        told = f"The job runs on Python {version}, {folder / other.name}."
    (tmp_path / "any.toml").write_text('[runtimes."2.11"]\n')
    client = TrainingClient(
        start_with(
            *("--runtimes", str(tmp_path / "any.toml")),
            env={"PATH": f"{folder}:{os.environ['PATH']}"},
        )
    )
    job_id = client.submit(
        "import sys; print('on', sys.version)", pythonVersion=version if other else "3.99"
    )

    assert client.wait(job_id)["state"] == "SUCCEEDED", client.lines(job_id)

    lines = client.lines(job_id)
    assert any(line.startswith(f"on {version}.") for line in lines), lines
    assert any(told in line for line in lines[:4])


def test_interpreter_of_the_table_is_used(client: TrainingClient) -> None:
    job_id = client.submit("", runtimeVersion="9.1", pythonVersion="3.7")

    assert client.wait(job_id)["state"] == "SUCCEEDED"
    line = client.lines(job_id)[2]
    assert line.startswith(f"Not pythonVersion 3.7: the job runs on Python {OWN.version}, ")


# --- create refuses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runtime", "python"),
    [("1.9", None), ("2.9", "2.7"), ("1.14", "3.7"), ("2.9", "3.5"), ("2.12", "3.7")],
)
def test_pair_that_never_was_is_refused_as_by_google(
    client: TrainingClient, runtime: str, python: str | None
) -> None:
    uri = client.upload(wheel(""))
    error = create_error(client, client.body(uri, runtimeVersion=runtime, pythonVersion=python))

    description = error["details"][0]["fieldViolations"][0]["description"]
    assert description.startswith(
        f"The specified runtime version '{runtime}' with the Python version '{python or ''}' is "
        "not supported or is deprecated. "
    )
    assert error == {
        "code": 400,
        "message": f"Field: runtime_version Error: {description}",
        "status": "INVALID_ARGUMENT",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{"field": "runtime_version", "description": description}],
            }
        ],
    }


def test_wrong_pair_is_told_with_whatever_else_is_wrong(client: TrainingClient) -> None:
    body = client.body("/tmp/a.tar.gz", runtimeVersion="1.14", region=None)
    body["trainingInput"]["python_version"] = body["trainingInput"].pop("pythonVersion")

    error = create_error(client, body)

    found = [each["field"] for each in error["details"][0]["fieldViolations"]]
    assert found == ["runtime_version", "region", "package_uris[0]"]


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[runtimes."2.11"]\nrequirements = [', "is not a TOML file: "),
        ('[runtimes."2.11"]\nrequirements = ["a b"]', 'runtimes."2.11".requirements[0]: '),
    ],
)
def test_service_does_not_start_with_a_bad_table(tmp_path: Path, text: str, told: str) -> None:
    table, data = tmp_path / "own.toml", tmp_path / "data"
    table.write_text(text)
    command = [sys.executable, "-m", "airflow_aiptraining.cli", "serve", "--data", str(data)]

    refused = subprocess.run(
        [*command, "--runtimes", str(table)], capture_output=True, text=True, timeout=30
    )

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"aiptraining: error: {table}")
    assert told in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not data.exists()


@pytest.fixture
def start_with(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start a service; it ends with the test."""
    started: list[Service] = []

    def start(*options: str, env: dict[str, str] | None = None) -> Service:
        started.append(start_service(tmp_path / "data", *options, env=env))
        return started[-1]

    yield start
    for each in started:
        each.stop()
