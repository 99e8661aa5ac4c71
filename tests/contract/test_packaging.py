"""Trainers staged in the embedded service's Cloud Storage by Google's own client."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded import Service
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Bucket, Client
from trainer_trees import make_tree, run_installed

from airflow_aiptraining.exceptions import InvalidTrainerError, StagingError
from airflow_aiptraining.packaging import (
    build_package,
    check_staging,
    package_trainer,
    stage_archives,
    staging,
)

TRAINER = {
    "trainer/__init__.py": "",
    "trainer/task.py": """
        import pathlib
        from trainer.models.net import NAME
        print(NAME, (pathlib.Path(__file__).parent / "data/a.csv").read_text())
    """,
    "trainer/models/net.py": "NAME = 'net'",
    "trainer/data/a.csv": "1,2",
}
SETUP_PY = """
    from setuptools import setup
    setup(name="census", version="2.5", packages=["trainer"])
"""


@pytest.fixture
def endpoint(service: Service) -> str:
    return service.storage


@pytest.fixture
def client(endpoint: str) -> Iterator[Client]:
    yield connect(endpoint)


def connect(endpoint: str) -> Client:
    options = ClientOptions(api_endpoint=endpoint)
    return Client("local", AnonymousCredentials(), client_options=options)


@pytest.fixture
def bucket(client: Client) -> Bucket:
    return client.create_bucket(f"staging-{uuid.uuid4().hex}")


@pytest.fixture
def root(bucket: Bucket) -> str:
    return f"gs://{bucket.name}/team a"


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "dags", TRAINER) / "trainer"


def generations(bucket: Bucket) -> dict[str, int]:
    return {blob.name: blob.generation for blob in bucket.list_blobs()}


def test_staged_trainer_runs_with_its_sub_packages_and_data(
    client: Client, bucket: Bucket, root: str, trainer: Path, tmp_path: Path
) -> None:
    staged = package_trainer(trainer, staging=root, client=client, module_name="trainer.task")
    name = f"team a/packages/{staged.tree_hash}/trainer-0.0.0-py3-none-any.whl"
    assert staged.uri == f"gs://{bucket.name}/{name}"
    assert (staged.built, staged.uploaded) == (True, True)
    archive = tmp_path / name.rsplit("/", 1)[-1]
    bucket.blob(name).download_to_filename(archive)
    assert archive.stat().st_size == staged.size
    assert run_installed(archive, tmp_path, "trainer.task") == "net 1,2\n"


def test_unchanged_tree_is_neither_built_nor_uploaded_again(
    client: Client, bucket: Bucket, root: str, trainer: Path, tmp_path: Path
) -> None:
    first = package_trainer(trainer, staging=root, client=client, module_name="trainer.task")
    before = generations(bucket)
    again = package_trainer(trainer, staging=root + "/", client=client, module_name="trainer.task")
    copy = make_tree(tmp_path / "another worker", TRAINER) / "trainer"
    elsewhere = package_trainer(copy, staging=root, client=client)
    for later in (again, elsewhere):
        assert (later.uri, later.tree_hash, later.size) == (first.uri, first.tree_hash, first.size)
        assert (later.built, later.uploaded) == (False, False)
    assert generations(bucket) == before


def test_changed_tree_gets_an_object_of_its_own(
    client: Client, bucket: Bucket, root: str, trainer: Path
) -> None:
    first = package_trainer(trainer, staging=root, client=client)
    (trainer / "data/a.csv").write_text("3,4")
    second = package_trainer(trainer, staging=root, client=client)
    assert second.built
    assert second.uri != first.uri
    assert len(generations(bucket)) == 2


def test_setup_py_keeps_its_name_and_version(
    client: Client, bucket: Bucket, root: str, trainer: Path
) -> None:
    make_tree(trainer.parent, {"setup.py": SETUP_PY})
    staged = package_trainer(trainer, staging=root, client=client, module_name="trainer.task")
    assert staged.uri.endswith("/census-2.5-py3-none-any.whl")


@pytest.mark.parametrize("listed", [True, False])
def test_module_is_checked_in_an_archive_that_is_found_too(
    client: Client, root: str, trainer: Path, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the object's metadata, or, where the list was too long for it, from the archive."""
    if not listed:
        monkeypatch.setattr(staging, "_MAX_MODULES_TEXT", 0)
    make_tree(trainer.parent, {"setup.py": SETUP_PY})
    package_trainer(trainer, staging=root, client=client)
    found = package_trainer(trainer, staging=root, client=client, module_name="trainer.task")
    assert not found.built
    with pytest.raises(InvalidTrainerError, match=r"Did you mean 'trainer\.task'"):
        package_trainer(trainer, staging=root, client=client, module_name="trainer.tasks")


RACER = """
import json, pathlib, sys, time
from airflow_aiptraining.packaging import build, package_trainer, staging
sys.path.insert(0, sys.argv[5])
from test_packaging import connect
package_path, root, endpoint, meet = sys.argv[1:5]
build_snapshot = staging.build_snapshot
def build_and_meet(*args, **options):
    built = build_snapshot(*args, **options)
    pathlib.Path(meet, str(time.monotonic_ns())).touch()
    while len(list(pathlib.Path(meet).iterdir())) < 2:
        time.sleep(0.005)
    return built
staging.build_snapshot = build_and_meet
staged = package_trainer(package_path, staging=root, client=connect(endpoint))
print(json.dumps([staged.uri, staged.built, staged.uploaded]))
"""


@pytest.mark.parametrize("setup_py", [None, "the same name", "a name of its own"])
def test_two_processes_that_race_share_one_object(
    bucket: Bucket,
    root: str,
    endpoint: str,
    trainer: Path,
    tmp_path: Path,
    setup_py: str | None,
) -> None:
    """Both have built before either uploads; a version may even differ (made of the time)."""
    if setup_py == "the same name":
        make_tree(trainer.parent, {"setup.py": SETUP_PY})
    elif setup_py is not None:
        timed = SETUP_PY.replace("setup(", "import time; setup(").replace(
            '"2.5"', 'f"2.{time.time_ns()}"'
        )
        make_tree(trainer.parent, {"setup.py": timed})
    meet = tmp_path / "meet"
    meet.mkdir()
    command = [sys.executable, "-c", RACER, trainer, root, endpoint, meet, Path(__file__).parent]
    racers = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={
                "PYTHONPATH": ":".join(path for path in sys.path if path),
                "PATH": "/usr/bin:/bin",
            },
        )
        for _ in range(2)
    ]
    results = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
    (uri, _, _), (other_uri, _, _) = results
    assert uri == other_uri
    assert [built for _, built, _ in results] == [True, True]
    assert sorted(uploaded for _, _, uploaded in results) == [False, True]
    assert ("/census-2.5-" in uri) == (setup_py == "the same name")
    if setup_py != "a name of its own":
        assert len(generations(bucket)) == 1


def test_stranger_in_the_objects_place_is_refused(
    client: Client, bucket: Bucket, root: str, trainer: Path
) -> None:
    staged = package_trainer(trainer, staging=root, client=client)
    blob = bucket.blob(staged.uri.removeprefix(f"gs://{bucket.name}/"))
    blob.upload_from_string(b"something else")
    with pytest.raises(StagingError, match="wasn't put there by this package"):
        package_trainer(trainer, staging=root, client=client)


def test_nothing_is_uploaded_when_something_is_wrong(
    client: Client, bucket: Bucket, root: str, trainer: Path
) -> None:
    with pytest.raises(InvalidTrainerError):
        package_trainer(trainer, staging=root, client=client, module_name="trainer.nothing")
    (trainer / "link").symlink_to("/etc/hostname")
    with pytest.raises(InvalidTrainerError):
        package_trainer(trainer, staging=root, client=client)
    (trainer / "link").unlink()
    make_tree(trainer.parent, {"setup.py": "raise SystemExit('broken')"})
    with pytest.raises(InvalidTrainerError):
        package_trainer(trainer, staging=root, client=client)
    assert generations(bucket) == {}


def test_missing_bucket_is_told_with_the_cure(client: Client, trainer: Path) -> None:
    for call in (
        lambda: check_staging("gs://no-such-bucket/x", client),
        lambda: package_trainer(trainer, staging="gs://no-such-bucket/x", client=client),
    ):
        with pytest.raises(
            StagingError, match=r"'no-such-bucket' doesn't exist.*storage/v1/b.project=local"
        ):
            call()


def test_checking_a_bucket_leaves_nothing_in_it(client: Client, bucket: Bucket, root: str) -> None:
    check_staging(root, client)
    assert generations(bucket) == {}


# --- ready archives


@pytest.fixture
def archive(trainer: Path, tmp_path: Path) -> Path:
    return build_package(trainer, tmp_path / "ready")


def test_ready_archive_is_uploaded_once_by_its_bytes(
    client: Client, bucket: Bucket, root: str, archive: Path
) -> None:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    name = f"team a/packages/{digest}/{archive.name}"
    options = {"staging": root, "client": client, "module_name": "trainer.task"}
    assert stage_archives([str(archive)], **options) == [f"gs://{bucket.name}/{name}"]
    before = generations(bucket)
    assert stage_archives([str(archive)], **options) == [f"gs://{bucket.name}/{name}"]
    assert generations(bucket) == before
    assert bucket.blob(name).download_as_bytes() == archive.read_bytes()


def test_archives_in_a_bucket_pass_through_in_the_given_order(
    client: Client, bucket: Bucket, root: str, archive: Path
) -> None:
    bucket.blob("lib/dep-1.0.tar.gz").upload_from_string(b"looked at only if the module is missing")
    there = f"gs://{bucket.name}/lib/dep-1.0.tar.gz"
    options = {"staging": root, "client": client, "module_name": "trainer.task"}
    uris = stage_archives([there, str(archive)], **options)
    assert uris[0] == there
    assert uris[1].endswith(archive.name)
    assert stage_archives([uris[1], there], **options) == [uris[1], there]


def test_module_is_looked_for_in_archives_that_lie_in_a_bucket(
    client: Client, bucket: Bucket, root: str, archive: Path
) -> None:
    bucket.blob(archive.name).upload_from_filename(archive)
    uri = f"gs://{bucket.name}/{archive.name}"
    options = {"staging": root, "client": client}
    assert stage_archives([uri], **options, module_name="trainer.task") == [uri]
    with pytest.raises(InvalidTrainerError, match=r"Did you mean 'trainer\.task'"):
        stage_archives([uri], **options, module_name="trainer.tusk")


def test_missing_ready_archive_is_refused_before_any_upload(
    client: Client, bucket: Bucket, root: str, archive: Path
) -> None:
    missing = [f"gs://{bucket.name}/no-1.0.tar.gz", "gs://no-such-bucket/no-1.0.tar.gz"]
    for uri in missing:
        with pytest.raises(StagingError, match=f"{uri} doesn't exist"):
            stage_archives([str(archive), uri], staging=root, client=client)
    with pytest.raises(InvalidTrainerError, match="doesn't exist"):
        stage_archives([str(archive), "/nowhere/t-1.tar.gz"], staging=root, client=client)
    assert generations(bucket) == {}


def test_two_archives_of_one_name_are_refused(client: Client, root: str, archive: Path) -> None:
    with pytest.raises(InvalidTrainerError, match="same file name"):
        stage_archives([str(archive), f"gs://b/x/{archive.name}"], staging=root, client=client)


def test_damaged_ready_archive_is_refused_before_any_upload(
    client: Client, bucket: Bucket, root: str, archive: Path
) -> None:
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(InvalidTrainerError, match="damaged"):
        stage_archives([str(archive)], staging=root, client=client)
    assert generations(bucket) == {}


def test_log_says_what_was_done(
    client: Client, root: str, trainer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        staged = package_trainer(trainer, staging=root, client=client)
        package_trainer(trainer, staging=root, client=client)
    assert f"is staged: {staged.uri}" in caplog.text
    assert f"is unchanged: {staged.uri}" in caplog.text
