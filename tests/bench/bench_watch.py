"""What waiting costs: ``AIPTrainingJobTrigger`` by the thousand in Airflow's own ``TriggerRunner``.

Each line is one process with so many triggers, created at once, against a stand-in that answers as
the embedded service does, in a process on the other core.  Nothing is scaled: intervals and budget
are those of production, and jobs end evenly over a minute.  Beside it, in the same run: a trigger
that does nothing, and one that asks for its own job each time.

Lag is what the event loop's users feel, and takes in whatever else the machine does; what of it is
the triggers' own is told by ``long_turns_percent``: the part of the time that the loop was busy, by
its thread's CPU clock, in turns longer than 2 ms.

Run alone (about four minutes) it prints one JSON object a line; so does :func:`bench_watch`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "bench")]

from airflow.triggers.base import BaseTrigger, TriggerEvent  # noqa: E402
from ml_stand_in import ends  # noqa: E402

POLL_INTERVAL = 60.0
CONN = "aiptraining_bench"
#: Seconds from the start of all processes to the first and to the last end of a job.
FIRST_END, LAST_END = 60.0, 120.0
#: ... and to the end of the measurement: one interval and a half after the last end.
MEASURED = 210.0
ASKING_MEASURED = 35.0
SHARED = (10, 100, 1_000, 10_000)
COMPARED = (1_000, 10_000)
#: What this may cost.  Lag also is at most so many times that of a trigger that does nothing.
BUDGET = 240
LATEST = 1.5 * POLL_INTERVAL
LONGEST_LAG, LAG_TO_NO_OP = 50.0, 2.0
BYTES_OVER_NO_OP = 5_000
#: A turn of the event loop that is long, in seconds of CPU.
LONG_TURN = 0.002


class NoOpTrigger(BaseTrigger):
    """Waits for nothing."""

    def __init__(self, job_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_id = job_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and its argument."""
        return "bench_watch.NoOpTrigger", {"job_id": self.job_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for ever."""
        await asyncio.get_running_loop().create_future()
        yield TriggerEvent(self.job_id)  # type: ignore[no-untyped-call]


class AskingTrigger(NoOpTrigger):
    """Asks for its own job at each interval, through the same verbs, threads and connections."""

    shared: Any = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and its argument."""
        return "bench_watch.AskingTrigger", {"job_id": self.job_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the job's end."""
        from airflow_aiptraining.triggers.service_calls import ServiceCalls, WatchKey

        cls = type(self)
        if cls.shared is None:
            key = WatchKey(CONN, (), "ml_v1", os.environ["BENCH_URL"], "p")
            cls.shared = ServiceCalls(key, request_budget=1_000_000)
        await asyncio.sleep(random.random() * POLL_INTERVAL)
        while True:
            job = await cls.shared.call(lambda service: service.get_job(self.job_id))
            if job["state"] == "SUCCEEDED":
                break
            await asyncio.sleep(POLL_INTERVAL)
        yield TriggerEvent({"job_id": self.job_id})  # type: ignore[no-untyped-call]


class Arrivals(deque[Any]):
    """Events, with the times at which the runner got them."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, float] = {}

    def append(self, entry: Any) -> None:
        """Note when a job's event came."""
        payload = entry.event.payload
        assert payload.get("state", "SUCCEEDED") == "SUCCEEDED", payload
        self.at[payload["job_id"]] = time.time()


def trigger_of(kind: str, job_id: str) -> BaseTrigger:
    """Return one trigger of a kind."""
    if kind == "asking":
        return AskingTrigger(job_id)
    if kind == "no-op":
        return NoOpTrigger(job_id)
    from airflow_aiptraining.triggers.training_job import AIPTrainingJobTrigger

    return AIPTrainingJobTrigger(
        job_id=job_id,
        project_id="p",
        service="ml_v1",
        api_endpoint=os.environ["BENCH_URL"],
        gcp_conn_id=CONN,
        poll_interval=POLL_INTERVAL,
        deadline=time.time() + 86_400,
    )


def workload(kind: str, number: int) -> Any:
    """Return what the triggerer's supervisor sends for one trigger."""
    from airflow.executors.workloads.trigger import RunTrigger
    from airflow.models.trigger import Trigger

    path, arguments = trigger_of(kind, f"job_{number}").serialize()
    encrypted = Trigger.encrypt_kwargs(arguments)
    return RunTrigger(id=number, classpath=path, encrypted_kwargs=encrypted)


def rss() -> int:
    """Return this process's own resident bytes."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


class MeasuredLoop(asyncio.SelectorEventLoop):
    """Adds up the CPU time of its long turns."""

    long_turns = 0.0

    def _run_once(self) -> None:
        before = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        turn = time.thread_time() - before
        if turn > LONG_TURN:
            self.long_turns += turn


async def measure(kind: str, count: int, until: float) -> dict[str, Any]:
    """Run triggers until a moment, and return what was seen."""
    from airflow.jobs.triggerer_job_runner import TriggerRunner

    runner = TriggerRunner()  # type: ignore[no-untyped-call]
    runner.events = arrivals = Arrivals()
    # What the first of them all pays isn't the price of one more: imports, threads, credentials.
    if kind != "no-op":
        from airflow_aiptraining.triggers.service_calls import ServiceCalls, WatchKey

        calls = ServiceCalls(WatchKey(CONN, (), "ml_v1", os.environ["BENCH_URL"], "p"))
        await calls.call(lambda service: service.list_page("state:QUEUED"))
        calls.close()
    runner.to_create.append(workload(kind, 0))
    await runner.create_triggers()
    await asyncio.sleep(6.0)
    before = rss()
    runner.to_create.extend(workload(kind, number) for number in range(1, count))
    began = time.time()
    await runner.create_triggers()
    created = time.time()
    lags: list[float] = []
    sampler = asyncio.ensure_future(sample(lags))
    memory, cpu = 0, time.process_time()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MeasuredLoop)
    loop.long_turns = 0.0
    while time.time() < until and len(arrivals.at) < count:
        await asyncio.sleep(1.0)
        # Memory at rest: all have had their first look, none has ended.
        if not memory and time.time() > created + 0.6 * (FIRST_END - 10):
            # Without the pause that this is.
            lags_before, long_turns = list(lags), loop.long_turns
            memory = rss() - before
            await asyncio.sleep(0.1)
            lags[:], loop.long_turns = lags_before, long_turns
        await runner.cleanup_finished_triggers()
    cpu, long_turns = time.process_time() - cpu, loop.long_turns
    sampler.cancel()
    for details in runner.triggers.values():
        details["task"].cancel()
    await asyncio.gather(
        *(each["task"] for each in runner.triggers.values()), return_exceptions=True
    )
    lags.sort()
    return {
        "triggers": count,
        "created_s": round(created - began, 2),
        "bytes_a_trigger": round(memory / (count - 1)),
        "lag_p99_ms": round(lags[len(lags) * 99 // 100] * 1e3, 2),
        "lag_max_ms": round(lags[-1] * 1e3, 2),
        "long_turns_percent": round(100 * long_turns / (time.time() - created), 2),
        "cpu_percent": round(100 * cpu / (time.time() - created), 1),
        "arrivals": arrivals.at,
    }


async def sample(lags: list[float]) -> None:
    """Note how much later than asked the event loop wakes somebody up."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.01)
        lags.append(time.perf_counter() - before - 0.01)


class Child:
    """A process with triggers, and its stand-in on the other core.

    :param count: of triggers, and of jobs.
    :param started: epoch seconds from which the jobs' ends count.
    """

    def __init__(self, kind: str, count: int, started: float, measured: float) -> None:
        self.kind, self.count, self.started = kind, count, started
        self.first, self.last = started + FIRST_END, started + LAST_END
        arguments = [str(count), str(self.first), str(self.last)]
        self.stand_in = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "ml_stand_in.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.stand_in.stdout is not None
        url = self.stand_in.stdout.readline().strip()
        extra = {"service": "ml_v1", "api_endpoint": url, "project": "p", "is_anonymous": True}
        self.home = tempfile.TemporaryDirectory(prefix="aiptraining-bench-")
        environment = os.environ | {
            "AIRFLOW_HOME": self.home.name,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "BENCH_URL": url,
            f"AIRFLOW_CONN_{CONN.upper()}": json.dumps(
                {"conn_type": "aiptraining", "extra": extra}
            ),
        }
        self.result = Path(self.home.name) / "result.json"
        self.errors = Path(self.home.name) / "errors.txt"
        until = str(started + measured)
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, kind, str(count), until, str(self.result)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        _pin(self.process.pid, 0)
        _pin(self.stand_in.pid, -1)

    def figures(self) -> dict[str, Any]:
        """Return what was measured, once it is."""
        self.process.wait()
        asked, _ = self.stand_in.communicate("how many?\n", timeout=60)
        times = [(verb, at) for verb, at in json.loads(asked.splitlines()[-1])]
        if not self.result.exists():
            told = self.errors.read_text()[-2_000:]
            raise RuntimeError(f"The process with {self.count} {self.kind} triggers failed: {told}")
        found: dict[str, Any] = json.loads(self.result.read_text())
        self.home.cleanup()
        arrivals = found.pop("arrivals")
        figures = {"figure": "waiting", "kind": self.kind, **found}
        if self.kind == "no-op":
            return figures
        # The first is made before the measurement.
        stamps = [at for _, at in times][1:]
        seconds = stamps[-1] - stamps[0] if len(stamps) > 1 else 1.0
        figures["requests"] = len(stamps)
        figures["lists"] = sum(verb == "list" for verb, _ in times) - 1
        figures["requests_a_minute"] = round(len(stamps) * 60 / max(seconds, 30.0), 1)
        figures["busiest_minute"] = busiest(stamps)
        if self.kind == "shared":
            by_clock = dict(ends(self.count, self.first, self.last))
            late = sorted(at - by_clock[job_id] for job_id, at in arrivals.items())
            figures["events"] = len(late)
            figures["early_events"] = sum(each < 0 for each in late)
            # Events that didn't come in time count among the latest.
            late += [MEASURED] * (self.count - len(late))
            figures["end_to_event_p50_s"] = round(statistics.median(late), 1)
            figures["end_to_event_p95_s"] = round(late[self.count * 95 // 100], 1)
            figures["poll_interval_s"] = POLL_INTERVAL
        return figures


def busiest(stamps: list[float]) -> int:
    """Return the most requests within any minute."""
    most = start = 0
    for end, at in enumerate(stamps):
        while stamps[start] <= at - 60:
            start += 1
        most = max(most, end - start + 1)
    return most


def _pin(pid: int, core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {cores[core]})


def judge(shared: dict[str, Any], no_op: dict[str, Any] | None) -> None:
    """Add to the figures what they may be at most, and which of them are more.

    :param no_op: the figures of as many triggers that do nothing.
    """
    bounds = {
        "busiest_minute": float(BUDGET),
        "requests_a_minute": float(BUDGET),
        "end_to_event_p95_s": LATEST,
        "early_events": 0.0,
        "lag_p99_ms": LONGEST_LAG,
    }
    if no_op is not None:
        shared["lag_to_no_op"] = round(shared["lag_p99_ms"] / no_op["lag_p99_ms"], 2)
        shared["bytes_over_no_op"] = shared["bytes_a_trigger"] - no_op["bytes_a_trigger"]
        bounds |= {"lag_to_no_op": LAG_TO_NO_OP, "bytes_over_no_op": float(BYTES_OVER_NO_OP)}
    shared["bounds"] = bounds
    shared["over_bounds"] = [name for name, most in bounds.items() if shared[name] > most]
    shared["within_bounds"] = not shared["over_bounds"]


def bench_watch() -> Iterator[dict[str, Any]]:
    """Yield the figures."""
    started = time.time() + 15
    children = [Child("shared", count, started, MEASURED) for count in SHARED]
    children += [Child("no-op", count, started, MEASURED) for count in COMPARED]
    found = {(child.kind, child.count): child.figures() for child in children}
    shared = [found["shared", count] for count in SHARED]
    for figures in shared:
        judge(figures, found.get(("no-op", figures["triggers"])))
    yield from found.values()
    asking = []
    for count in COMPARED:
        started = time.time() + 10
        asking.append(Child("asking", count, started, ASKING_MEASURED).figures())
        yield asking[-1]
    names = ("triggers", "requests_a_minute", "end_to_event_p95_s", "lag_p99_ms", "cpu_percent")
    yield {
        "figure": "how the cost of waiting grows",
        **{name: [each[name] for each in shared] for name in names},
        "requests_a_minute_of_asking_each": {
            each["triggers"]: each["requests_a_minute"] for each in asking
        },
        "within_bounds": all(each["within_bounds"] for each in shared),
    }


def main() -> None:
    """Measure, or be one of the measured processes."""
    if len(sys.argv) == 1:
        for figures in bench_watch():
            print(json.dumps(figures), flush=True)
        return
    kind, count, until, result = sys.argv[1:]
    from airflow.sdk.execution_time import task_runner  # noqa: F401 - what a triggerer has loaded

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        figures = runner.run(measure(kind, int(count), float(until)))
    Path(result).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
