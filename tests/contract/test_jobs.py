"""ML v1 jobs of the embedded service, judged by Google's API client and by trainers themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from embedded import Service, start_service
from googleapiclient.errors import HttpError
from training_client import PROJECT, TrainingClient, eventually, sdist, wheel

QUICK = "print('done')"
# An own backend: hangs, fails or counts without any registry.
BACKEND = {
    "pyproject.toml": """
        [build-system]
        requires = []
        build-backend = "backend"
        backend-path = ["."]
        [project]
        name = "trainer"
        version = "0.1"
    """,
}
SETUP_PY = {
    "setup.py": """
        from setuptools import setup
        setup(name="trainer", version="0.1", packages=["trainer"])
    """,
    "trainer/__init__.py": "",
    "trainer/task.py": QUICK,
}
SDIST = "trainer-0.1.tar.gz"


@pytest.fixture(scope="module")
def client(service: Service) -> TrainingClient:
    return TrainingClient(service)


@pytest.fixture(scope="module")
def quick(client: TrainingClient) -> str:
    """URI of a trainer that ends at once."""
    return client.upload(wheel(QUICK))


def error_of(call: Any) -> dict[str, Any]:
    """Return the error body that a call is answered with."""
    with pytest.raises(HttpError) as caught:
        call.execute()
    error: dict[str, Any] = json.loads(caught.value.content)["error"]
    assert error["code"] == caught.value.status_code
    return error


def create_error(client: TrainingClient, body: dict[str, Any]) -> dict[str, Any]:
    return error_of(client.jobs.create(parent=f"projects/{PROJECT}", body=body))


# --- a job runs ----------------------------------------------------------------------------------


def test_trainer_gets_its_arguments_then_job_dir(client: TrainingClient) -> None:
    job_dir = f"gs://{client.bucket}/out"
    job_id = client.submit(
        """
        import json, os, sys
        assert sys.argv[1:] == ["--epochs", "3", "", "a b", "--job-dir", os.environ["EXPECTED"]]
        """.replace('os.environ["EXPECTED"]', repr(job_dir)),
        "--epochs", "3", "", "a b",
        jobDir=job_dir,
    )  # fmt: skip

    job = client.wait(job_id)

    assert job["state"] == "SUCCEEDED", job
    assert job["createTime"] <= job["startTime"] <= job["endTime"]
    assert job["trainingOutput"]["consumedMLUnits"] >= 0
    assert "jobPosition" not in job


def test_without_job_dir_there_is_no_flag(client: TrainingClient) -> None:
    job_id = client.submit("import sys; assert sys.argv[1:] == ['x'], sys.argv", "x")

    assert client.wait(job_id)["state"] == "SUCCEEDED"


def test_replica_has_its_job_and_the_storage_and_nobodys_credentials(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    secrets = {
        "GOOGLE_APPLICATION_CREDENTIALS": "/somebodys/key.json",
        "AIRFLOW_CONN_GOOGLE": "secret",
        "CLOUDSDK_AUTH_ACCESS_TOKEN": "secret",
        "HTTPS_PROXY": "http://user:secret@proxy.invalid:1",
    }
    client = TrainingClient(start_with(env=secrets | {"NO_PROXY": "*"}))
    job_id = client.submit(
        """
        import json, os, pathlib, sys
        print(json.dumps(dict(os.environ)))
        assert list(pathlib.Path.home().iterdir()) == []
        assert list(pathlib.Path.cwd().iterdir()) == []
        assert list(pathlib.Path(os.environ["CLOUDSDK_CONFIG"]).iterdir()) == []
        """
    )

    assert client.wait(job_id)["state"] == "SUCCEEDED"
    (env,) = (json.loads(line) for line in client.lines(job_id) if line.startswith("{"))

    assert not [name for name in secrets if name in env and name != "NO_PROXY"]
    assert "secret" not in json.dumps(env)
    assert env["HOME"] != os.environ["HOME"]
    assert env["STORAGE_EMULATOR_HOST"] == client.service.storage
    assert env["CLOUD_ML_JOB_ID"] == job_id
    assert env["CLOUD_ML_PROJECT_ID"] == env["GOOGLE_CLOUD_PROJECT"] == PROJECT
    assert env["NO_GCE_CHECK"] == "true"
    assert env["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] == "false"
    tf_config = json.loads(env["TF_CONFIG"])
    assert tf_config["task"] == {"type": "chief", "index": 0, "cloud": tf_config["task"]["cloud"]}
    (address,) = tf_config["cluster"]["chief"]
    assert address.startswith("127.0.0.1:")
    assert tf_config["job"]["pythonModule"] == "trainer.task"
    assert tf_config["environment"] == "cloud"


def test_job_may_leave_the_runtime_to_the_service(client: TrainingClient) -> None:
    job_id = client.submit("", runtimeVersion=None, pythonVersion=None)

    assert client.wait(job_id)["state"] == "SUCCEEDED"


def test_job_that_no_process_can_be_given_fails_and_says_so(
    client: TrainingClient, quick: str
) -> None:
    # The project becomes a variable of the trainer's environment.
    parent = "projects/a\0b"
    body = client.body(quick)
    client.jobs.create(parent=parent, body=body).execute()

    def ended() -> dict[str, Any] | None:
        job: dict[str, Any] = client.jobs.get(name=f"{parent}/jobs/{body['jobId']}").execute()
        return job if "endTime" in job else None

    job = eventually(ended)
    assert job["state"] == "FAILED"
    assert "could not be started: embedded null byte" in job["errorMessage"]


def test_failed_trainers_traceback_is_in_the_error_message(client: TrainingClient) -> None:
    job_id = client.submit("raise ValueError('no such column: age')")

    job = client.wait(job_id)

    assert job["state"] == "FAILED"
    message = job["errorMessage"]
    assert message.startswith(
        "The replica master 0 exited with a non-zero status of 1. Termination reason: Error. \n"
        "Traceback (most recent call last):\n"
    )
    assert "ValueError: no such column: age\n\nTo find out more about why" in message
    address = message.rpartition(" ")[2]
    assert "no such column" in urllib.request.urlopen(address).read().decode()


def test_killed_trainer_is_told_as_out_of_memory(client: TrainingClient) -> None:
    job_id = client.submit("import os; os.kill(os.getpid(), 9)")

    message = client.wait(job_id)["errorMessage"]

    assert message.startswith(
        "The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL)"
    )


def test_trainer_that_does_not_know_job_dir_fails_with_its_usage(client: TrainingClient) -> None:
    job_id = client.submit(
        "import argparse; argparse.ArgumentParser().parse_args()", jobDir=f"gs://{client.bucket}/o"
    )

    job = client.wait(job_id)

    assert job["state"] == "FAILED"
    assert "status of 2" in job["errorMessage"]
    assert "unrecognized arguments: --job-dir" in job["errorMessage"]


def test_left_over_processes_end_with_the_trainer(client: TrainingClient) -> None:
    job_id = client.submit(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                 start_new_session=True)
        print("child", child.pid)
        """
    )

    assert client.wait(job_id)["state"] == "SUCCEEDED"

    assert not is_alive(child_of(client, job_id))


def child_of(client: TrainingClient, job_id: str) -> int:
    """Return the pid that a trainer printed."""

    def find() -> int | None:
        pids = [line.split()[1] for line in client.lines(job_id) if line.startswith("child ")]
        return int(pids[0]) if pids else None

    return eventually(find)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_cancelled_job_leaves_no_process(client: TrainingClient) -> None:
    job_id = client.submit(
        """
        import subprocess, sys, time
        code = ("import subprocess, sys, time;"
                "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
                " start_new_session=True, stdout=subprocess.DEVNULL);"
                "print('child', p.pid, flush=True)")
        subprocess.run([sys.executable, "-c", code])
        time.sleep(600)
        """
    )
    grandchild = child_of(client, job_id)
    assert is_alive(grandchild)

    assert client.cancel(job_id) == {}
    assert client.get(job_id)["state"] in {"CANCELLING", "CANCELLED"}
    job = client.wait(job_id)

    assert job["state"] == "CANCELLED"
    assert job["errorMessage"] == "The job was cancelled by the user."
    assert not is_alive(grandchild)


def test_job_is_cancelled_when_max_running_time_is_over(client: TrainingClient) -> None:
    job_id = client.submit("import time; time.sleep(600)", scheduling={"maxRunningTime": "1s"})

    job = client.wait(job_id)

    assert job["state"] == "CANCELLED"
    assert "scheduling.maxRunningTime of 1s passed" in job["errorMessage"]


def test_known_packages_start_within_a_second(client: TrainingClient) -> None:
    uri = client.upload(wheel("import time; print(time.time())"))
    client.wait(client.create(client.body(uri)))
    delays = []
    for _ in range(5):
        before = time.time()
        job_id = client.create(client.body(uri))
        assert client.wait(job_id)["state"] == "SUCCEEDED"
        (first,) = [line for line in client.lines(job_id) if line.startswith("1")]
        delays.append(float(first) - before)

    print("create to first line, s:", sorted(round(delay, 3) for delay in delays))
    assert statistics.median(delays) < 1


# --- create refuses ------------------------------------------------------------------------------


def test_id_that_exists_is_refused_as_by_google(client: TrainingClient, quick: str) -> None:
    job_id = client.create(client.body(quick))

    error = create_error(client, client.body(quick, job_id=job_id))

    assert error == {
        "code": 409,
        "message": "Field: job.job_id Error: A job with this id already exists.",
        "status": "ALREADY_EXISTS",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [
                    {
                        "field": "job.job_id",
                        "description": "A job with this id already exists.",
                    }
                ],
            }
        ],
    }


def test_same_id_in_another_project_is_another_job(client: TrainingClient, quick: str) -> None:
    body = client.body(quick)
    client.create(body)

    made = client.jobs.create(parent="projects/other", body=body).execute()

    assert made["state"] == "QUEUED"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"job_id": "1a"}, "job.job_id"),
        ({"job_id": "a-b"}, "job.job_id"),
        ({"scaleTier": "HUGE"}, "scale_tier"),
        ({"region": None}, "region"),
        ({"pythonModule": None}, "python_module"),
        ({"workerCoun": "1"}, "worker_coun"),
        ({"jobDir": "/tmp"}, "job_dir"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_bad_field_is_named_in_snake_case(
    client: TrainingClient, quick: str, change: dict[str, Any], field: str
) -> None:
    error = create_error(client, client.body(quick, **change))

    assert error["status"] == "INVALID_ARGUMENT"
    assert f"Field: {field} Error: " in error["message"]
    assert field in [each["field"] for each in error["details"][0]["fieldViolations"]]


def test_snake_case_bodies_are_accepted(client: TrainingClient, quick: str) -> None:
    body = client.body(quick)
    snake = {
        "job_id": body["jobId"],
        "training_input": {
            "package_uris": [quick],
            "python_module": "trainer.task",
            "region": "us-central1",
            "runtime_version": "2.11",
            "python_version": "3.7",
            "scale_tier": "BASIC",
        },
    }
    assert client.create(snake) == body["jobId"]
    assert client.get(body["jobId"])["trainingInput"]["packageUris"] == [quick]


def test_storage_that_a_job_needs_is_checked_at_create(client: TrainingClient) -> None:
    bucket = client.bucket
    broken = client.upload(b"no archive", "broken-0.1.tar.gz")
    body = client.body(f"gs://{bucket}/none.tar.gz", broken, jobDir="gs://no-such-bucket/out")

    error = create_error(client, body)

    assert error["status"] == "FAILED_PRECONDITION"
    found = {each["field"]: each["description"] for each in error["details"][0]["fieldViolations"]}
    assert found["package_uris[0]"].startswith("The provided GCS paths cannot be read")
    assert "not a readable archive" in found["package_uris[1]"]
    assert "no-such-bucket" in found["job_dir"]
    error = error_of(client.jobs.get(name=client.name(body["jobId"])))
    assert error["code"] == 404


@pytest.mark.parametrize(
    "change",
    [
        {"scaleTier": "BASIC_TPU"},
        {"masterType": "standard", "workerCount": "1", "workerType": "cloud_tpu"},
        {"workerConfig": {"imageUri": "gcr.io/a/b"}},
        {"hyperparameters": {"params": []}},
        {"masterConfig": {"imageUri": "gcr.io/a/b"}},
    ],
    ids=lambda change: next(reversed(change)),
)
def test_what_would_not_run_as_meant_is_unimplemented(
    client: TrainingClient, quick: str, change: dict[str, Any]
) -> None:
    error = create_error(client, client.body(quick, **change))

    assert (error["code"], error["status"]) == (501, "UNIMPLEMENTED")
    assert re.search(r"; it does not support [a-zA-Z_1 ]+ yet\.$", error["message"])


def test_body_that_nests_too_deep_is_told(client: TrainingClient) -> None:
    request = urllib.request.Request(
        f"{client.service.ml}/v1/projects/{PROJECT}/jobs",
        b"[" * 200_000,
        {"Content-Type": "application/json"},
    )

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)

    error = json.load(caught.value)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


# --- get, list, patch, cancel --------------------------------------------------------------------


def test_unknown_job_is_not_found(client: TrainingClient) -> None:
    name = client.name("no_such_job")
    for call in (
        client.jobs.get(name=name),
        client.jobs.cancel(name=name, body={}),
        client.jobs.patch(name=name, updateMask="labels", body={}),
    ):
        assert error_of(call)["status"] == "NOT_FOUND"


def test_finished_job_cannot_be_cancelled(client: TrainingClient, quick: str) -> None:
    job_id = client.create(client.body(quick))
    client.wait(job_id)

    error = error_of(client.jobs.cancel(name=client.name(job_id), body={}))

    assert (error["code"], error["status"]) == (400, "FAILED_PRECONDITION")


def test_job_that_is_being_cancelled_may_be_cancelled_again(client: TrainingClient) -> None:
    job_id = client.submit("import time; time.sleep(600)")
    client.wait(job_id, "RUNNING")

    assert client.cancel(job_id) == client.cancel(job_id) == {}
    assert client.wait(job_id)["state"] == "CANCELLED"


def test_list_of_nothing_is_an_empty_object(client: TrainingClient) -> None:
    assert client.jobs.list(parent="projects/nobody").execute() == {}


def test_list_pages_stay_true_while_jobs_come(client: TrainingClient, quick: str) -> None:
    project = "projects/pages"

    def create(number: int) -> None:
        body = client.body(quick, job_id=f"page_{number:03d}")
        client.jobs.create(parent=project, body=body).execute()

    for number in range(23):
        create(number)
    first = client.jobs.list(parent=project).execute()
    create(23)
    second = client.jobs.list(parent=project, pageToken=first["nextPageToken"]).execute()

    assert len(first["jobs"]) == 20
    ids = [job["jobId"] for job in first["jobs"] + second["jobs"]]
    assert ids == [f"page_{number:03d}" for number in reversed(range(23))]
    assert "nextPageToken" not in second
    error = error_of(
        client.jobs.list(parent=project, pageToken=first["nextPageToken"], filter="state:FAILED")
    )
    assert error["status"] == "INVALID_ARGUMENT"


def test_list_filters_as_documented(client: TrainingClient, quick: str) -> None:
    project = "projects/filters"
    for job_id, labels in (("rnn_1", {"team": "a"}), ("rnn_2", {"team": "b"}), ("cnn_1", {})):
        body = client.body(quick, job_id=job_id) | {"labels": labels}
        client.jobs.create(parent=project, body=body).execute()

    def ids(text: str) -> list[str]:
        found = client.jobs.list(parent=project, filter=text).execute()
        return [job["jobId"] for job in found.get("jobs", [])]

    eventually(lambda: len(ids("state=SUCCEEDED")) == 3)
    assert ids("jobId:rnn*") == ["rnn_2", "rnn_1"]
    assert ids("jobId:rnn* AND state:FAILED") == []
    assert ids("jobId=rnn_1 OR labels.team=b") == ["rnn_2", "rnn_1"]
    assert ids("NOT labels.team=b") == ["cnn_1", "rnn_1"]
    assert ids("labels.team:*") == ["rnn_2", "rnn_1"]
    assert ids("state!=SUCCEEDED") == []
    assert ids("createTime>2020-01-01T00:00:00Z AND (jobId:c*)") == ["cnn_1"]
    assert ids("trainingInput.pythonModule=trainer.task") == ["cnn_1", "rnn_2", "rnn_1"]
    error = error_of(client.jobs.list(parent=project, filter="state=("))
    assert error["message"].startswith("Field: filter Error: ")
    assert ids("createTime>0001-01-02T00:00:00Z") == ["cnn_1", "rnn_2", "rnn_1"]
    no_time = 'createTime>"0001-01-01T00:00:00+14:00"'
    error = error_of(client.jobs.list(parent=project, filter=no_time))
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


def test_patch_replaces_all_labels(client: TrainingClient, quick: str) -> None:
    job_id = client.create(client.body(quick) | {"labels": {"a": "1", "b": "2"}})
    before = client.get(job_id)

    patch = {"labels": {"c": "3"}, "etag": before["etag"]}
    changed = client.jobs.patch(
        name=client.name(job_id), updateMask="labels,etag", body=patch
    ).execute()

    assert changed["labels"] == {"c": "3"}
    assert changed["etag"] != before["etag"]
    error = error_of(
        client.jobs.patch(name=client.name(job_id), updateMask="labels,etag", body=patch)
    )
    assert (error["code"], error["status"]) == (409, "ABORTED")
    cleared = client.jobs.patch(
        name=client.name(job_id), updateMask="labels", body={"labels": {}}
    ).execute()
    assert "labels" not in cleared


@pytest.mark.parametrize("mask", ["", "state", "labels,trainingInput"])
def test_only_labels_can_be_patched(client: TrainingClient, quick: str, mask: str) -> None:
    job_id = client.create(client.body(quick))

    error = error_of(client.jobs.patch(name=client.name(job_id), updateMask=mask, body={}))

    assert error["status"] == "INVALID_ARGUMENT"


def test_rest_of_ml_v1_is_unimplemented_and_says_so(client: TrainingClient) -> None:
    projects = client.ml.projects()
    name = client.name("a")
    for call in (
        projects.models().list(parent="projects/p"),
        projects.models().versions().create(parent="projects/p/models/m", body={}),
        projects.predict(name="projects/p/models/m", body={}),
        projects.operations().list(name="projects/p"),
        projects.locations().studies().list(parent="projects/p/locations/l"),
        client.jobs.getIamPolicy(resource=name),
        client.jobs.setIamPolicy(resource=name, body={}),
        client.jobs.testIamPermissions(resource=name, body={}),
    ):
        error = error_of(call)
        assert (error["code"], error["status"]) == (501, "UNIMPLEMENTED")
        assert "embedded service" in error["message"]


def test_project_has_a_config(client: TrainingClient) -> None:
    assert "serviceAccount" in client.ml.projects().getConfig(name="projects/p").execute()


# --- installing ----------------------------------------------------------------------------------


def test_package_that_cannot_be_built_fails_the_job_with_the_reason(
    client: TrainingClient,
) -> None:
    files = BACKEND | {"backend.py": "raise SystemExit('this backend gives up')"}
    job_id = client.create(client.body(client.upload(sdist(files), SDIST)))

    job = client.wait(job_id)

    assert job["state"] == "FAILED"
    assert "The replica master 0 could not install its packages." in job["errorMessage"]
    assert "this backend gives up" in job["errorMessage"]
    assert any("this backend gives up" in line for line in client.lines(job_id))


def test_package_that_is_built_sees_nobodys_credentials_and_no_home(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    seen = tmp_path / "seen.json"
    backend = f"""
        import json, os, pathlib
        found = {{"env": dict(os.environ), "home": os.listdir(pathlib.Path.home())}}
        pathlib.Path({str(seen)!r}).write_text(json.dumps(found))
        raise SystemExit("seen")
    """
    names = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "GITHUB_TOKEN", "DATABASE_URL")
    client = TrainingClient(start_with(env=dict.fromkeys(names, "a-secret")))
    job_id = client.create(
        client.body(client.upload(sdist(BACKEND | {"backend.py": backend}), SDIST))
    )
    client.wait(job_id)

    found = json.loads(seen.read_text())
    assert "a-secret" not in found["env"].values()
    assert found["home"] == []
    assert found["env"]["HOME"].startswith(str(tmp_path / "data"))


def test_users_settings_of_uv_hold_for_installs(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    wheels, settings = tmp_path / "wheels", tmp_path / "home/.config/uv/uv.toml"
    wheels.mkdir()
    (wheels / "only_here-0.1-py3-none-any.whl").write_bytes(wheel("", "only_here"))
    settings.parent.mkdir(parents=True)
    settings.write_text(f"no-index = true\nfind-links = [{json.dumps(str(wheels))}]\n")
    env = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": "", "PIP_FIND_LINKS": ""}
    client = TrainingClient(start_with(env=env))

    archive = wheel("import only_here.task", requires="only_here")
    job_id = client.create(client.body(client.upload(archive)))

    assert client.wait(job_id)["state"] == "SUCCEEDED", client.lines(job_id)


def test_cancel_ends_an_install_that_hangs(client: TrainingClient, service: Service) -> None:
    files = BACKEND | {
        "backend.py": "import time\ndef get_requires_for_build_wheel(c=None): time.sleep(600)"
    }
    job_id = client.create(client.body(client.upload(sdist(files), SDIST)))
    environments = service.data / "environments"
    eventually(lambda: list(environments.glob(".*/output")))
    assert client.get(job_id)["state"] == "PREPARING"

    client.cancel(job_id)

    assert client.wait(job_id)["state"] == "CANCELLED"
    assert not list(environments.glob(".*"))


def test_jobs_with_the_same_packages_build_them_once(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    count = tmp_path / "builds"
    backend = f"""
        import time, zipfile
        NAME = "trainer-0.1-py3-none-any.whl"
        def build_wheel(folder, config=None, metadata=None):
            with open({str(count)!r}, "a") as file:
                file.write("built\\n")
            time.sleep(0.5)
            with zipfile.ZipFile(folder + "/" + NAME, "w") as z:
                z.writestr("trainer/__init__.py", "")
                z.writestr("trainer/task.py", "")
                z.writestr("trainer-0.1.dist-info/METADATA", "Name: trainer\\nVersion: 0.1\\n")
                z.writestr("trainer-0.1.dist-info/WHEEL",
                    "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
                z.writestr("trainer-0.1.dist-info/RECORD", "")
            return NAME
    """
    client = TrainingClient(start_with("--capacity", "3"))
    uri = client.upload(sdist(BACKEND | {"backend.py": backend}), SDIST)

    ids = [client.create(client.body(uri)) for _ in range(3)]

    assert [client.wait(job_id)["state"] for job_id in ids] == ["SUCCEEDED"] * 3
    assert count.read_text() == "built\n"


def test_plain_setup_py_is_built_without_a_registry(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    nothing = {
        "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_HTTP_RETRIES": "0",
    }
    client = TrainingClient(start_with(env=nothing))
    job_id = client.create(client.body(client.upload(sdist(SETUP_PY), SDIST)))

    assert client.wait(job_id)["state"] == "SUCCEEDED", client.lines(job_id)


# --- the queue, the service's own life -----------------------------------------------------------


@pytest.fixture
def start_with(tmp_path: Path) -> Any:
    """Start services over one data folder; all end with the test, and their replicas too."""
    started: list[Service] = []

    def start(*options: str, env: dict[str, str] | None = None) -> Service:
        started.append(start_service(tmp_path / "data", *options, env=env))
        return started[-1]

    yield start
    for each in started:
        each.stop()
    start_service(tmp_path / "data", "--stop-jobs").stop()


def test_queue_goes_by_priority_then_age(start_with: Callable[..., Service]) -> None:
    client = TrainingClient(start_with("--capacity", "1"))
    blocker = client.submit("import time; time.sleep(600)")
    client.wait(blocker, "RUNNING")
    uri = client.upload(wheel(QUICK))
    low_1, low_2 = (client.create(client.body(uri)) for _ in range(2))
    high = client.create(client.body(uri, scheduling={"priority": 5}))

    assert [client.get(job)["jobPosition"] for job in (high, low_1, low_2)] == ["1", "2", "3"]
    client.cancel(low_2)
    assert client.wait(low_2)["state"] == "CANCELLED"
    assert client.get(blocker)["state"] == "RUNNING"
    client.cancel(blocker)
    for job in (high, low_1):
        client.wait(job)

    first, second = (client.entries(job, "severity>=INFO") for job in (high, low_1))
    ran = [entries[-1]["timestamp"] for entries in (first, second)]
    assert ran == sorted(ran)


def test_replica_outlives_a_killed_service_and_is_adopted(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    service = start_with()
    client = TrainingClient(service)
    job_id = client.submit(
        f"""
        import pathlib, sys, time
        with open({str(runs)!r}, "a") as file:
            file.write("run\\n")
        number = 0
        while not pathlib.Path({str(go)!r}).exists():
            print("line", number); number += 1
            time.sleep(0.01)
        print("last", number)
        sys.exit(7)
        """
    )
    eventually(lambda: "line 5" in client.lines(job_id))

    service.kill()
    again = start_with()
    assert again.ml == service.ml
    client.connect()
    eventually(lambda: client.get(job_id)["state"] == "RUNNING")
    go.touch()
    job = client.wait(job_id)

    assert job["state"] == "FAILED"
    assert "non-zero status of 7" in job["errorMessage"]
    assert runs.read_text() == "run\n"
    printed = [line for line in client.lines(job_id) if line.startswith(("line", "last"))]
    count = int(printed[-1].split()[1])
    assert printed == [*(f"line {number}" for number in range(count)), f"last {count}"]


def test_trainer_that_ends_while_the_service_is_down_is_told(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    service = start_with()
    client = TrainingClient(service)
    job_id = client.submit(
        f"""
        import pathlib, time
        while not pathlib.Path({str(go)!r}).exists():
            time.sleep(0.01)
        """
    )
    client.wait(job_id, "RUNNING")

    service.kill()
    go.touch()
    eventually(lambda: list((tmp_path / "data/jobs").glob("*/replicas/*/exit.json")))
    start_with()
    client.connect()

    assert client.wait(job_id)["state"] == "SUCCEEDED"


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05, 0.1, 0.15])
def test_service_killed_at_any_moment_runs_the_job_once(
    start_with: Callable[..., Service], tmp_path: Path, moment: float
) -> None:
    runs = tmp_path / "runs"
    service = start_with()
    client = TrainingClient(service)
    uri = client.upload(wheel(f"open({str(runs)!r}, 'a').write('run\\n')"))
    job_id = client.create(client.body(uri))
    threading.Event().wait(moment)

    service.kill()
    start_with()
    client.connect()

    assert client.wait(job_id)["state"] == "SUCCEEDED"
    assert runs.read_text() == "run\n"


def test_lost_wrapper_fails_the_job_and_ends_its_trainer(client: TrainingClient) -> None:
    job_id = client.submit("import os, time; print('child', os.getpid()); time.sleep(600)")
    trainer = child_of(client, job_id)
    wrapper = psutil.Process(trainer).ppid()

    os.kill(wrapper, signal.SIGKILL)

    job = client.wait(job_id)
    assert job["state"] == "FAILED"
    assert "was lost" in job["errorMessage"]
    assert not is_alive(trainer)


def test_stopped_service_leaves_replicas_unless_told_otherwise(
    start_with: Callable[..., Service],
) -> None:
    service = start_with()
    client = TrainingClient(service)
    job_id = client.submit("import os, time; print('child', os.getpid()); time.sleep(600)")
    trainer = child_of(client, job_id)

    service.stop()
    assert service.process.returncode == 0
    assert is_alive(trainer)
    second = start_with("--stop-jobs")
    second.stop()

    assert second.process.returncode == 0
    assert not is_alive(trainer)
    start_with()
    client.connect()
    assert client.get(job_id)["state"] == "CANCELLED"


def test_second_service_on_a_data_folder_names_the_first(
    start_with: Callable[..., Service],
) -> None:
    service = start_with()

    second = subprocess.run(
        [sys.executable, "-m", "airflow_aiptraining.cli", "serve", "--data", str(service.data)],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert second.returncode == 1
    assert f"running already, as process {service.process.pid}" in second.stderr


@pytest.mark.parametrize("name", ["jobs.sqlite", "storage/objects.db"])
def test_damaged_database_is_named_with_the_cure(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"garbage " * 1000)
    command = [sys.executable, "-m", "airflow_aiptraining.cli", "serve", "--data", str(tmp_path)]

    refused = subprocess.run(command, capture_output=True, text=True, timeout=30)

    assert refused.returncode == 1
    assert f"{path} is damaged" in refused.stderr
    assert "move it away" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_other_hosts_need_a_token(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "airflow_aiptraining.cli", "serve", "--host", "0.0.0.0"]

    refused = subprocess.run(
        [*command, "--data", str(tmp_path)], capture_output=True, text=True, timeout=30
    )

    assert refused.returncode == 1
    assert "--token-file" in refused.stderr


def test_replicas_reach_storage_of_a_service_that_asks_for_a_token(
    start_with: Callable[..., Service], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-of-some-length\n")
    service = start_with("--host", "0.0.0.0", "--token-file", str(token))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{service.ml}/v1/projects/p/jobs")

    def call(path: str, body: bytes | None, kind: str = "application/json") -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token.read_text().strip()}", "Content-Type": kind}
        request = urllib.request.Request(f"{service.ml}{path}", body, headers)
        found: dict[str, Any] = json.load(urllib.request.urlopen(request))
        return found

    task = """
        import os, urllib.request
        print(urllib.request.urlopen(os.environ["STORAGE_EMULATOR_HOST"] + "/storage/v1/b/bkt"))
    """
    name = "trainer-0.1-py3-none-any.whl"
    call("/storage/v1/b?project=p", b'{"name": "bkt"}')
    upload = f"/upload/storage/v1/b/bkt/o?uploadType=media&name={name}"
    call(upload, wheel(task), "application/octet-stream")
    training_input = {
        "packageUris": [f"gs://bkt/{name}"],
        "pythonModule": "trainer.task",
        "region": "us-central1",
        "runtimeVersion": "2.11",
        "pythonVersion": "3.7",
        "scaleTier": "BASIC",
    }
    body = json.dumps({"jobId": "a", "trainingInput": training_input}).encode()
    call("/v1/projects/p/jobs", body)

    def ended() -> dict[str, Any] | None:
        job = call("/v1/projects/p/jobs/a", None)
        return job if "endTime" in job else None

    job = eventually(ended)
    assert job["state"] == "SUCCEEDED", job
