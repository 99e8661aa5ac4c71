"""Jobs of several replicas: real processes that reach each other at the addresses they are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from embedded import Service, start_service
from googleapiclient.errors import HttpError
from training_client import PROJECT, TrainingClient, eventually, wheel

from airflow_aiptraining.core.machines import consumed_ml_units
from airflow_aiptraining.core.states import JobState
from airflow_aiptraining.local.job_folder import JobFolder
from airflow_aiptraining.local.job_store import JobStore
from airflow_aiptraining.local.ports import Ports
from airflow_aiptraining.local.replica_set import ReplicaSet

TASK = """
import json, os, pathlib, signal, socket, socketserver, sys, threading, time

config = json.loads(os.environ["TF_CONFIG"])
cluster, kind, index = config["cluster"], config["task"]["type"], config["task"]["index"]
me = f"{kind} {index}"
print("pid", os.getpid())

def forever():
    time.sleep(600)
"""
TALKING = (
    TASK
    + """
done = set()

class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        name = self.rfile.readline().decode().strip()
        if name:
            done.add(name)
        self.wfile.write(me.encode())

def ask(address, text=""):
    host, port = address.split(":")
    until = time.monotonic() + 40
    while True:
        try:
            with socket.create_connection((host, int(port)), 5) as link:
                link.sendall(text.encode() + b"\\n")
                return link.makefile().read()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)

if kind in cluster:
    host, port = cluster[kind][index].split(":")
    server = socketserver.ThreadingTCPServer((host, int(port)), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
names = [f"{role} {n}" for role, hosts in cluster.items() for n in range(len(hosts))]
answers = [ask(address) for hosts in cluster.values() for address in hosts]
assert answers == names, answers
print("saw", json.dumps([me, cluster]))
if kind != "chief":
    ask(cluster["chief"][0], me)
    forever()
others = set(names) - {me} | {f"evaluator {n}" for n in range(int(sys.argv[1]))}
while done != others:
    time.sleep(0.02)
"""
)
CUSTOM = {
    "scaleTier": "CUSTOM",
    "masterType": "complex_model_l_gpu",
    "workerType": "complex_model_l_gpu",
    "workerCount": "2",
    "parameterServerType": "large_model",
    "parameterServerCount": "1",
    "evaluatorType": "standard",
    "evaluatorCount": "1",
}
TASKS = (
    "master-replica-0",
    "worker-replica-0",
    "worker-replica-1",
    "ps-replica-0",
    "evaluator-replica-0",
)
WORKERS = {
    "scaleTier": "CUSTOM",
    "masterType": "standard",
    "workerType": "standard",
    "workerCount": "2",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    data = tmp_path_factory.mktemp("clusters") / "data"
    service = start_service(data, "--capacity", "40", "--max-replicas", "8")
    yield TrainingClient(service)
    service.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Service]]:
    """Start services over one data folder; all end with the test, and their replicas too."""
    started: list[Service] = []

    def start_again() -> Service:
        started.append(start_service(tmp_path / "data", "--stop-jobs"))
        return started[-1]

    yield start_again
    for each in started:
        each.stop()


def told(client: TrainingClient, job_id: str, task: str, word: str) -> list[str]:
    """Return what a replica printed after *word*, line by line."""
    lines = client.lines(job_id, task)
    return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]


def pids(client: TrainingClient, job_id: str, *tasks: str) -> list[int]:
    """Return the process of each task, once all have told theirs."""

    def find() -> list[int] | None:
        found = [told(client, job_id, task, "pid") for task in tasks]
        return [int(each[-1]) for each in found] if all(found) else None

    return eventually(find)


def alive(numbers: list[int]) -> list[int]:
    return [
        pid
        for pid in numbers
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def test_replicas_of_two_jobs_reach_their_own_cluster(client: TrainingClient) -> None:
    ids = [client.submit(TALKING, "1", **CUSTOM) for _ in range(2)]

    jobs = [client.wait(job_id) for job_id in ids]

    assert [job["state"] for job in jobs] == ["SUCCEEDED"] * 2, client.entries(ids[0])
    addresses: list[str] = []
    for job_id in ids:
        seen = [json.loads(told(client, job_id, task, "saw")[0]) for task in TASKS]
        assert [name for name, _ in seen] == [
            "chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0",
        ]  # fmt: skip
        (cluster,) = {json.dumps(cluster) for _, cluster in seen}
        assert {role: len(hosts) for role, hosts in json.loads(cluster).items()} == {
            "chief": 1,
            "worker": 2,
            "ps": 1,
        }
        addresses += [each for hosts in json.loads(cluster).values() for each in hosts]
        # The others would have run for ever.
        assert not alive(pids(client, job_id, *TASKS))
        assert client.lines(job_id, "service")[-2:] == [
            f"master-replica-0 has ended; stopped: {', '.join(TASKS[1:])}.",
            "Job completed successfully.",
        ]
    assert len(set(addresses)) == len(addresses) == 8


def test_standard_1_runs_eight_replicas(client: TrainingClient) -> None:
    job_id = client.submit(TALKING, "0", scaleTier="STANDARD_1")

    assert client.wait(job_id)["state"] == "SUCCEEDED", client.entries(job_id)

    tasks = ["master-replica-0", *(f"worker-replica-{n}" for n in range(4))]
    tasks += [f"ps-replica-{n}" for n in range(3)]
    assert [len(told(client, job_id, task, "saw")) for task in tasks] == [1] * 8
    assert "All 8 replicas of the job run on this machine." in client.lines(job_id)
    installs = [e for e in client.entries(job_id) if "Installing" in e["jsonPayload"]["message"]]
    assert len(installs) == 1


def test_failing_worker_fails_the_job_and_is_named(client: TrainingClient) -> None:
    job_id = client.submit(
        TASK
        + """
if me == "worker 1":
    time.sleep(0.5)
    raise ValueError("no such shard")
forever()
""",
        **WORKERS,
    )
    running = pids(client, job_id, "master-replica-0", "worker-replica-0")

    job = client.wait(job_id)

    assert job["state"] == "FAILED"
    assert job["errorMessage"].startswith(
        "The replica worker 1 exited with a non-zero status of 1. Termination reason: Error. \n"
        "Traceback (most recent call last):\n"
    )
    assert "ValueError: no such shard" in job["errorMessage"]
    assert not alive(running)


def test_worker_may_end_before_its_master(client: TrainingClient, tmp_path: Path) -> None:
    job_id = client.submit(
        TASK
        + f"""
ended = pathlib.Path({str(tmp_path)!r})
if kind == "worker":
    (ended / me).touch()
    sys.exit()
while len(list(ended.iterdir())) < 2:
    time.sleep(0.02)
time.sleep(0.5)
""",
        **WORKERS,
    )

    assert client.wait(job_id)["state"] == "SUCCEEDED"


def test_workers_that_fail_because_their_master_is_done_do_not_count(
    client: TrainingClient,
) -> None:
    job_id = client.submit(
        TASK
        + """
host, port = cluster["chief"][0].split(":")
if kind == "chief":
    with socket.create_server((host, int(port))) as server:
        links = [server.accept() for _ in range(2)]
    os._exit(0)
while True:
    try:
        link = socket.create_connection((host, int(port)))
        break
    except OSError:
        time.sleep(0.02)
link.recv(1)
os._exit(1)
""",
        **WORKERS,
    )

    job = client.wait(job_id)

    assert job["state"] == "SUCCEEDED", job


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(134)"])
def test_crashed_replica_is_restarted_at_its_address(
    client: TrainingClient, tmp_path: Path, ending: str
) -> None:
    job_id = client.submit(
        TASK
        + f"""
runs = pathlib.Path({str(tmp_path)!r})
if me == "worker 0":
    print("at", cluster[kind][index])
    (runs / str(os.getpid())).touch()
    if len(list(runs.iterdir())) < 3:
        {ending}
if kind == "chief":
    while len(list(runs.iterdir())) < 3:
        time.sleep(0.02)
    sys.exit()
forever()
""",
        **WORKERS,
    )

    job = client.wait(job_id)

    assert job["state"] == "SUCCEEDED", job
    at = told(client, job_id, "worker-replica-0", "at")
    assert (len(at), len(set(at))) == (3, 1)
    assert len(told(client, job_id, "worker-replica-1", "pid")) == 1
    restarts = [line for line in client.lines(job_id, "service") if "started again" in line]
    assert [line.rpartition(", ")[2] for line in restarts] == ["restart 1 of 5.", "restart 2 of 5."]


def test_replica_that_keeps_crashing_fails_the_job(client: TrainingClient) -> None:
    job_id = client.submit(
        TASK + "if me == 'worker 1': os.kill(os.getpid(), signal.SIGSEGV)\nforever()", **WORKERS
    )

    job = client.wait(job_id)

    assert job["state"] == "FAILED"
    assert job["errorMessage"].startswith(
        "The replica worker 1 exited with a non-zero status of 11(SIGSEGV)."
    )
    assert "It was restarted 5 times before." in job["errorMessage"]
    assert len(told(client, job_id, "worker-replica-1", "pid")) == 6


def test_cancel_ends_all_replicas(client: TrainingClient) -> None:
    job_id = client.submit(TASK + "forever()", **CUSTOM)
    running = pids(client, job_id, *TASKS)
    assert alive(running) == running

    client.cancel(job_id)

    assert client.wait(job_id)["state"] == "CANCELLED"
    assert not alive(running)


def test_time_limit_ends_all_replicas_which_have_cost_units(client: TrainingClient) -> None:
    job_id = client.submit(TASK + "forever()", **CUSTOM, scheduling={"maxRunningTime": "2s"})
    running = pids(client, job_id, *TASKS)

    job = client.wait(job_id)

    assert job["state"] == "CANCELLED"
    assert not alive(running)
    # Two seconds of the master alone are 0.00.
    units = consumed_ml_units(job["trainingInput"], 2)
    assert units == 0.01
    assert job["trainingOutput"]["consumedMLUnits"] >= units


def test_service_that_was_killed_takes_up_every_replica(
    start: Callable[[], Service], tmp_path: Path
) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    runs.mkdir()
    service = start()
    client = TrainingClient(service)
    job_id = client.submit(
        TASK
        + f"""
(pathlib.Path({str(runs)!r}) / f"{{me}} {{os.getpid()}}").touch()
while not pathlib.Path({str(go)!r}).exists():
    time.sleep(0.02)
if kind != "chief":
    forever()
""",
        **CUSTOM,
    )
    running = pids(client, job_id, *TASKS)
    client.wait(job_id, "RUNNING")

    service.kill()
    start()
    client.connect()
    assert client.get(job_id)["state"] == "RUNNING"
    assert alive(running) == running
    go.touch()

    assert client.wait(job_id)["state"] == "SUCCEEDED"
    assert not alive(running)
    assert len(list(runs.iterdir())) == 5


async def test_replicas_that_a_killed_service_had_not_started_are_started(
    start: Callable[[], Service], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    task = f"""
(pathlib.Path({str(runs)!r}) / f"{{me}} {{os.getpid()}}").touch()
while len(list(pathlib.Path({str(runs)!r}).iterdir())) < 3:
    time.sleep(0.02)
"""
    service = start()
    client = TrainingClient(service)
    first = client.submit(TASK + task, **WORKERS)
    assert client.wait(first)["state"] == "SUCCEEDED"
    service.kill()
    for each in runs.iterdir():
        each.unlink()
    # Where a service is that is killed after it has started the first of three.
    store = JobStore(service.data / "jobs.sqlite")
    known = store.get(PROJECT, first)
    assert known is not None
    job = store.create(PROJECT, "second", labels={}, training_input=known.input)
    job = store.advance(job.uid, JobState.PREPARING)
    folder = JobFolder(service.data / "jobs" / job.uid)
    (python,) = (service.data / "environments").glob("*/bin/python")
    await ReplicaSet(
        job, store=store, folder=folder, ports=Ports(store.ports), service_url=service.url
    ).plan(python)
    folder.process(store.replicas(job.uid)[0].uid).start()
    store.close()
    eventually(lambda: list(runs.iterdir()))

    start()
    client.connect()

    assert client.wait("second")["state"] == "SUCCEEDED"
    assert sorted(each.name.rpartition(" ")[0] for each in runs.iterdir()) == [
        "chief 0", "worker 0", "worker 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field", "asked"),
    [
        (WORKERS | {"workerCount": "40"}, "worker_count", 41),
        ({"scaleTier": "PREMIUM_1"}, "scale_tier", 31),
    ],
    ids=["count", "tier"],
)
def test_too_many_replicas_are_refused(
    client: TrainingClient, change: dict[str, Any], field: str, asked: int
) -> None:
    body = client.body(client.upload(wheel("")), **change)

    with pytest.raises(HttpError) as caught:
        client.create(body)

    error = json.loads(caught.value.content)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["message"].startswith(f"Field: {field} Error: The job has {asked} replicas (1 ")
    assert f"'--max-replicas {asked}'" in error["message"]
