"""``aiptraining jobs``, run as people run it, against an embedded service, without an Airflow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
from embedded import Service, start_service
from faults import FaultProxy
from trainer_trees import make_tree
from training_client import PROJECT, TrainingClient, eventually, wheel

CLI = str(Path(sys.executable).with_name("aiptraining"))
CONFIG = """\
trainingInput:
  scaleTier: BASIC
  region: us-central1
  runtimeVersion: 2.11
  pythonVersion: 3.7
  args: [from, the, file]
labels:
  team: ads
"""
#: Ends as it is told: "end" at once, "fail" at once, "wait" when the bucket has an object "go".
TASK = """\
import os, sys, time, urllib.request

print("arguments:", *sys.argv[1:], flush=True)
if "fail" in sys.argv:
    sys.exit("it can't be learned")
while "wait" in sys.argv:
    time.sleep(0.05)
    url = os.environ["STORAGE_EMULATOR_HOST"] + "/storage/v1/b/" + sys.argv[2] + "/o/go"
    try:
        urllib.request.urlopen(url)
        break
    except OSError:
        pass
print("the last line", flush=True)
"""
SUBMIT = ("--config", "config.yaml", "--module-name", "trainer.task", "--package-path", "trainer")


class Cli:
    """The console script, in a folder with a trainer and a config, and where no Airflow is."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = make_tree(
            folder / "work",
            {"trainer/__init__.py": "", "trainer/task.py": TASK, "config.yaml": CONFIG},
        )
        self.airflow_home = folder / "no-airflow"
        self.env = os.environ | {
            "AIPTRAINING_URL": url,
            "AIRFLOW_HOME": str(self.airflow_home),
            "TZ": "UTC",
        }

    def start(self, *arguments: str, **further: Any) -> subprocess.Popen[str]:
        """Start a command; its output goes where ``further`` says."""
        return subprocess.Popen(
            [CLI, "jobs", *arguments],
            cwd=self.folder,
            env=self.env,
            text=True,
            # A background job of a shell ignores Ctrl-C, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            **further,
        )

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def job(self, job_id: str) -> dict[str, Any]:
        """Describe a job."""
        described: dict[str, Any] = json.loads(self("describe", job_id, "--format", "json").stdout)
        return described


@pytest.fixture(scope="module")
def client(service: Service) -> TrainingClient:
    return TrainingClient(service)


@pytest.fixture
def cli(service: Service, tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path, service.url)
    yield made
    assert not made.airflow_home.exists(), "a command has made an Airflow home"


@pytest.fixture
def job_id() -> str:
    return f"cli_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def staging(client: TrainingClient) -> tuple[str, str]:
    """A bucket of the test's own, as flags."""
    bucket = f"staging-{uuid.uuid4().hex[:12]}"
    client.storage.create_bucket(bucket)
    return ("--staging-bucket", f"gs://{bucket}")


def objects(client: TrainingClient, staging: tuple[str, str]) -> list[str]:
    bucket = staging[1].removeprefix("gs://")
    return [blob.name for blob in client.storage.list_blobs(bucket)]


def messages(log: str) -> list[str]:
    """Return the texts of the replica's lines."""
    lines = [line.split("\t") for line in log.splitlines()]
    return [line[3] for line in lines if line[2] == "master-replica-0"]


def test_submitted_job_has_what_file_flags_and_arguments_say(
    client: TrainingClient, cli: Cli, job_id: str, staging: tuple[str, str]
) -> None:
    flags = ("--labels", "cost=low,owner=me", "--job-dir", f"{staging[1]}/{{job_id}}")
    trainer_args = ("--", "--epochs", "3", "two words", "--", "-x")
    done = cli("submit", job_id, *SUBMIT, *staging, *flags, "--region=europe-west1", *trainer_args)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"jobId: {job_id}"
    assert f"aiptraining jobs logs {job_id} --follow" in done.stderr
    job = cli.job(job_id)
    assert job["labels"] == {"team": "ads", "cost": "low", "owner": "me"}
    sent = job["trainingInput"]
    assert sent["args"] == ["--epochs", "3", "two words", "--", "-x"]
    assert (sent["region"], sent["scaleTier"]) == ("europe-west1", "BASIC")
    assert (sent["runtimeVersion"], sent["pythonVersion"]) == ("2.11", "3.7")
    assert sent["jobDir"].rstrip("/") == f"{staging[1]}/{job_id}"
    assert [uri.split("/", 3)[3] for uri in sent["packageUris"]] == objects(client, staging)
    assert client.wait(job_id)["state"] == "SUCCEEDED"
    said = f"arguments: --epochs 3 two words -- -x --job-dir {sent['jobDir']}"
    assert said in messages(cli("logs", job_id).stdout)

    again = cli("submit", job_id, *SUBMIT, *staging)
    assert again.returncode == 1
    assert f"There is a job '{job_id}' already" in again.stderr
    assert len(again.stderr.splitlines()) == 1


def test_streamed_failure_ends_with_exit_code_1_and_the_reason(
    cli: Cli, job_id: str, staging: tuple[str, str]
) -> None:
    done = cli("submit", job_id, *SUBMIT, *staging, "--stream-logs", "--", "fail")

    assert done.returncode == 1
    assert "state: FAILED" in done.stdout
    assert "\tmaster-replica-0\tit can't be learned" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"aiptraining: error: Job '{job_id}' has ended as FAILED: ")


def test_lost_answers_cost_neither_a_second_job_nor_a_line(
    service: Service, cli: Cli, job_id: str, staging: tuple[str, str]
) -> None:
    with FaultProxy(service.url) as proxy:
        cli.env["AIPTRAINING_URL"] = proxy.url
        proxy.script("POST", "/jobs", [faults.RESET.done_first()])
        proxy.script("POST", "entries:list", [faults.RESET.done_first(), faults.UNAVAILABLE])
        done = cli("submit", job_id, *SUBMIT, *staging, "--stream-logs", "--", "end")
        assert proxy.count("POST", "/jobs") == 2

    assert done.returncode == 0, done.stderr
    assert "state: SUCCEEDED" in done.stdout
    log = [line for line in done.stderr.splitlines() if line.count("\t") == 3]
    assert sorted(log) == sorted(cli("logs", job_id, "--url", service.url).stdout.splitlines())


def test_followed_log_comes_while_the_job_runs_and_ends_with_it(
    client: TrainingClient, cli: Cli, job_id: str, staging: tuple[str, str], tmp_path: Path
) -> None:
    bucket = staging[1].removeprefix("gs://")
    submitted = cli("submit", job_id, *SUBMIT, *staging, "--", "wait", bucket)
    assert submitted.returncode == 0, submitted.stderr
    follow = ("logs", job_id, "--follow", "--polling-interval", "1")
    log, notes = tmp_path / "log", tmp_path / "notes"
    with log.open("w") as out, notes.open("w") as err:
        following = cli.start(*follow, stdout=out, stderr=err)
        leaving = cli.start(*follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        eventually(lambda: f"arguments: wait {bucket}" in log.read_text())
        leaving.send_signal(signal.SIGINT)
        _, said = leaving.communicate(timeout=60)
        assert (leaving.returncode, said) == (130, "")
        assert client.get(job_id)["state"] == "RUNNING"
        assert following.poll() is None

        client.storage.bucket(bucket).blob("go").upload_from_string("")
        assert following.wait(timeout=60) == 0
    finally:
        for process in (following, leaving):
            process.kill()
            process.wait()
    assert notes.read_text() == f"Job '{job_id}' has ended: SUCCEEDED.\n"
    whole = cli("logs", job_id).stdout
    assert "the last line" in messages(whole)
    # Lines of service and replica may come in another order while they are written.
    assert sorted(log.read_text().splitlines()) == sorted(whole.splitlines())
    of_service = cli("logs", job_id, "--task-name", "service", "--format", "json").stdout
    assert {json.loads(line)["task_name"] for line in of_service.splitlines()} == {"service"}


def test_cancelled_job_ends_and_an_ended_one_is_left(
    client: TrainingClient, cli: Cli, job_id: str
) -> None:
    client.create(client.body(client.upload(wheel("")), job_id=job_id))
    ended = client.wait(job_id)
    left = cli("cancel", job_id)
    assert left.returncode == 0
    told = f"Job '{job_id}' has ended already, {ended['state']}: there is nothing to cancel.\n"
    assert left.stderr == told

    running = client.submit("import time; time.sleep(600)")
    done = cli("cancel", running)
    assert done.returncode == 0, done.stderr
    assert client.wait(running)["state"] == "CANCELLED"
    assert "state: CANCELLED\n" in cli("describe", running).stdout


def test_list_is_a_table_and_json(client: TrainingClient, cli: Cli, job_id: str) -> None:
    uri = client.upload(wheel(""))
    names = [f"{job_id}_{number}" for number in (1, 2, 3)]
    for name in names:
        client.create(client.body(uri, job_id=name))
        client.wait(name)

    table = cli("list", "--filter", f"jobId:{job_id}*", "--limit", "2").stdout.splitlines()
    assert table[0].split()[:4] == ["JOB_ID", "STATE", "CREATED", "ENDED"]
    assert [line.split()[:2] for line in table[1:]] == [
        [n, "SUCCEEDED"] for n in (names[2], names[1])
    ]
    assert len({line.index("2") for line in (row.split(" ", 1)[1] for row in table[1:])}) == 1

    listed = json.loads(cli("list", "--filter", f"jobId:{job_id}*", "--format", "json").stdout)
    assert [job["jobId"] for job in listed] == names[::-1]
    one_a_line = cli("list", "--filter", f"jobId:{names[0]}", "--json").stdout
    assert json.loads(one_a_line) == client.get(names[0])
    assert not [name for name in names if name in cli("list").stdout]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ("--config", "bad.yaml", "--scale-tier", "hugh"),
            [
                "bad.yaml:3: trainingInput.scaleTeir: unknown field",
                "--scale-tier: trainingInput.scaleTier: 'hugh' is not a value",
                "bad.yaml:4: trainingInput.args[1]: '{{ ds }}' is a template",
            ],
            id="values of file and flags",
        ),
        pytest.param(("--config", "none.yaml"), ["--config: the config file"], id="no file"),
        pytest.param(("--module-name", "trainer.tsak"), ["trainer.tsak"], id="no module"),
        pytest.param(("--job-dir", "gs://no-such-bucket/x"), ["no-such-bucket"], id="no bucket"),
    ],
)
def test_bad_input_is_told_and_nothing_is_uploaded(
    client: TrainingClient,
    cli: Cli,
    job_id: str,
    staging: tuple[str, str],
    arguments: tuple[str, ...],
    words: list[str],
) -> None:
    make_tree(
        cli.folder,
        {
            "bad.yaml": """\
                trainingInput:
                  region: us-central1
                  scaleTeir: BASIC
                  args: [--day, "{{ ds }}"]
                """
        },
    )

    done = cli("submit", job_id, *SUBMIT, *staging, *arguments)

    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    for line, word in zip(done.stderr.splitlines(), words, strict=True):
        assert word in line
    assert objects(client, staging) == []
    jobs = client.jobs.list(parent=f"projects/{PROJECT}", filter=f"jobId:{job_id}").execute()
    assert jobs == {}


def test_trainer_without_a_bucket_and_unknown_jobs_are_told(cli: Cli, job_id: str) -> None:
    done = cli("submit", job_id, *SUBMIT)
    assert done.returncode == 1
    assert "give --staging-bucket or --job-dir" in done.stderr
    for command in (("cancel",), ("logs", "--follow")):
        unknown = cli(*command, job_id)
        assert unknown.returncode == 1
        assert f"{job_id} was not found" in unknown.stderr
        assert len(unknown.stderr.splitlines()) == 1


def test_service_that_wants_a_token_gets_it(tmp_path: Path, job_id: str) -> None:
    (tmp_path / "token").write_text("a-secret-of-some-length\n")
    (tmp_path / "wrong").write_text("another-of-that-length\n")
    service = start_service(tmp_path / "data", "--token-file", str(tmp_path / "token"))
    try:
        cli = Cli(tmp_path, service.url)
        assert cli("list", "--token-file", str(tmp_path / "token")).returncode == 0
        for flags, word in (
            ((), "--token-file"),
            (("--token-file", str(tmp_path / "wrong")), "refuses"),
        ):
            refused = cli("list", *flags)
            assert refused.returncode == 1
            assert word in refused.stderr
        # Storage is asked with it, too: it says that there is no such bucket.
        flags = ("--token-file", str(tmp_path / "token"), "--staging-bucket", "gs://no-such-bucket")
        submitted = cli("submit", job_id, *SUBMIT, *flags)
        assert "Bucket 'no-such-bucket' doesn't exist" in submitted.stderr
    finally:
        service.stop()


def test_connection_gives_place_bucket_and_region(
    client: TrainingClient, service: Service, tmp_path: Path, job_id: str, staging: tuple[str, str]
) -> None:
    cli = Cli(tmp_path, "http://127.0.0.1:1")
    extra = {"api_endpoint": service.url, "region": "us-east1", "staging_bucket": staging[1]}
    cli.env["AIRFLOW_CONN_MINE"] = json.dumps({"conn_type": "aiptraining", "extra": extra})
    (cli.folder / "config.yaml").write_text(CONFIG.replace("  region: us-central1\n", ""))

    done = cli("submit", job_id, *SUBMIT, "--conn-id", "mine", "--format", "json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trainingInput"]["region"] == "us-east1"
    assert len(objects(client, staging)) == 1
