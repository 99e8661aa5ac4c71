"""Kills, drains and freezes processes of a cluster and its service, and brings them back."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil
from cluster import AirflowCluster
from processes import Component
from records import count_queued
from service import EmbeddedService

KILL = "kill -9"
DRAIN = "SIGTERM"
FREEZE = "freeze"
#: How often each kind is drawn, relative to the others: what is done, and to whom.
WEIGHTS = {
    (KILL, "task runner"): 8,
    (KILL, "task supervisor"): 4,
    (KILL, "triggerer"): 3,
    (KILL, "scheduler and its workers"): 1,
    (KILL, "scheduler alone"): 1,
    (KILL, "api-server"): 2,
    (KILL, "dag-processor"): 1,
    (KILL, "training service"): 3,
    (DRAIN, "task runner"): 2,
    (DRAIN, "task supervisor"): 2,
    (FREEZE, "task supervisor"): 2,
    (FREEZE, "triggerer"): 2,
    (FREEZE, "scheduler and its workers"): 1,
    (FREEZE, "api-server"): 1,
    (FREEZE, "training service"): 1,
}
#: Seconds that something stays frozen, at least and at most: beyond the thresholds at which Airflow
#: takes it for lost (chaos.LOWERED).
FREEZES = {
    "task supervisor": (18.0, 26.0),
    "triggerer": (18.0, 26.0),
    "scheduler and its workers": (17.0, 24.0),
    "api-server": (10.0, 20.0),
    "training service": (5.0, 20.0),
}
SUBSTITUTE = "triggerer substitute"
#: Seconds that a task may be queued: a worker takes it at once, unless it is frozen, and a new
#: scheduler takes back what the one before had queued.
QUEUED_LIMIT = 75.0
#: So many kills more than pieces of work done: on a slow machine nothing would get done otherwise.
KILLS_AHEAD = 10


@dataclass
class Chaos:
    """What happens to processes at random moments.

    :param seed: the same one draws the same kinds and pauses; which processes there are to kill
        depends on the moment.
    :param pauses: seconds between two kills, at least and at most.
    :param downtimes: seconds until a killed component is started again, at least and at most.
    :param most: so many kills at most.
    :param count_running: how many jobs run now.
    :param count_done: how many pieces of work are done.
    """

    airflow: AirflowCluster
    service: EmbeddedService
    seed: int
    pauses: tuple[float, float]
    downtimes: tuple[float, float]
    most: int
    count_running: Callable[[], int]
    count_done: Callable[[], int]
    kills: list[dict[str, Any]] = field(default_factory=list)
    #: How often a scheduler was started anew to find lost tasks.
    rescues: int = 0
    is_over: bool = False

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._began = self._next = time.monotonic()
        #: What is down or frozen → when it is due to be brought back, and how.
        self._down: dict[str, tuple[float, Callable[[], None]]] = {}
        self._substitute: Component | None = None
        self._left_over: list[psutil.Process] = []
        self._seen: set[psutil.Process] = set()
        self._looked = self._rescued = 0.0

    def begin(self) -> None:
        """Let the time count from now."""
        self._began = self._rescued = time.monotonic()
        self._next = self._began + self._random.uniform(*self.pauses)

    def go_on(self) -> None:
        """Do what is due: bring back what was killed, kill the next; returns soon."""
        now = time.monotonic()
        for name, (due, bring_back) in list(self._down.items()):
            if due <= now:
                del self._down[name]
                bring_back()
        self._end_idle_left_overs()
        if now - self._looked > 0.5:
            self._look(now)
        if now - self._rescued > QUEUED_LIMIT and "scheduler" not in self._down:
            self._rescue_lost_tasks(now)
        if now >= self._next and len(self.kills) < self.most and not self.is_over:
            if len(self.kills) >= KILLS_AHEAD + self.count_done():
                self._next = now + 1
                return
            self._next = time.monotonic() + self._random.uniform(*self.pauses)
            self._kill_one()

    def settle(self) -> None:
        """Bring back everything that is down or frozen; nothing is killed any more."""
        self.is_over = True
        for _, bring_back in self._down.values():
            bring_back()
        self._down.clear()

    def end_orphans(self) -> list[str]:
        """End what outlived the process that started it; call it when all components have ended.

        Airflow's executor, task runners and api-server write their titles over their environment,
        so nothing but their ancestry tells that they are ours.

        :return: what had to be ended.
        """
        told = []
        for process in self._seen:
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    title = " ".join(process.cmdline())[:100]
                    process.kill()
                    told.append(f"pid {process.pid} ({title})")
            except psutil.Error:
                pass
        return told

    def is_away(self, name: str) -> bool:
        """Tell whether a component is down or frozen."""
        return name in self._down

    def by_kind(self) -> dict[str, int]:
        """Return how many of each kind there were."""
        return dict(Counter(kill["kind"] for kill in self.kills))

    def _kill_one(self) -> None:
        # Drawn before it is known what there is to kill, so that the seed means the same.
        order = sorted(WEIGHTS, key=lambda kind: -(self._random.random() ** (1 / WEIGHTS[kind])))
        downtime = self._random.uniform(*self.downtimes)
        pick = self._random.random()
        for what, target in order:
            self._look(time.monotonic())
            running = self.count_running()
            if told := self._try(what, target, downtime, pick):
                at = round(time.monotonic() - self._began, 1)
                kind = f"{what} {target}"
                clock = time.strftime("%H:%M:%S", time.gmtime())
                kill = {"at": at, "utc": clock, "kind": kind, "what": told, "running": running}
                self.kills.append(kill)
                print(f"  {at:6.1f} s  {kind}: {told}", flush=True)
                return

    def _try(self, what: str, target: str, downtime: float, pick: float) -> str:
        """Do this to such a process; return which it was, empty where there is none."""
        if what == FREEZE:
            shortest, longest = FREEZES[target]
            downtime = shortest + pick * (longest - shortest)
        if target in ("task runner", "task supervisor"):
            return self._end_worker(what, target, downtime, pick)
        component = self._component(target)
        if not component.is_running() or component.name in self._down:
            return ""
        told = f"pid {component.pid}, away for {downtime:.1f} s"
        if what == FREEZE:
            return told if self._freeze(component, downtime, overlap=3 + 5 * pick) else ""
        assert component.process is not None
        if target == "scheduler alone":
            self._left_over += psutil.Process(component.pid).children()
            component.process.kill()
        else:
            component.send(signal.SIGKILL)
        component.process.wait(30)
        start = self.service.start if target == "training service" else component.start
        self._down[component.name] = (time.monotonic() + downtime, start)
        return told

    def _component(self, target: str) -> Component:
        if target == "training service":
            return self.service.component
        name = "scheduler" if target.startswith("scheduler") else target
        return self.airflow.components[name]

    def _freeze(self, component: Component, seconds: float, overlap: float) -> bool:
        until = time.monotonic() + seconds
        if component.name == "triggerer":
            if SUBSTITUTE in self._down:
                return False
            # Airflow gives a lost triggerer's work to another, and then the lost one comes back.
            self._substitute = Component(
                SUBSTITUTE, component.argv, env=component.env, log=component.log, cwd=component.cwd
            )
            self._substitute.start()
            end = partial(self._substitute.send, signal.SIGTERM)
            self._down[SUBSTITUTE] = (until + overlap, end)
        component.send(signal.SIGSTOP)
        self._down[component.name] = (until, partial(component.send, signal.SIGCONT))
        return True

    def _end_worker(self, what: str, target: str, downtime: float, pick: float) -> str:
        """Hit a process that executes a task, or the one that watches over such a process."""
        scheduler = self.airflow.components["scheduler"]
        if not scheduler.is_running():
            return ""
        pairs: list[tuple[psutil.Process, psutil.Process]] = []
        try:
            for supervisor in psutil.Process(scheduler.pid).children():
                # Forks of the scheduler that serve other purposes have no child.
                pairs += [(supervisor, runner) for runner in supervisor.children()]
            if not pairs:
                return ""
            supervisor, runner = pairs[int(pick * len(pairs))]
            victim = runner if target == "task runner" else supervisor
            told = f"pid {victim.pid} ({' '.join(supervisor.cmdline())[:150]})"
            if what == KILL:
                victim.kill()
            elif what == DRAIN:
                victim.terminate()
            elif f"pid {victim.pid}" in self._down or "scheduler" in self._down:
                return ""  # frozen already
            else:
                victim.suspend()
                thaw = (time.monotonic() + downtime, partial(_resume, victim))
                self._down[f"pid {victim.pid}"] = thaw
                told += f", away for {downtime:.1f} s"
        except psutil.Error:
            return ""  # it has just ended
        return told

    def _rescue_lost_tasks(self, now: float) -> None:
        """Do what a person does about tasks that stay queued: start the scheduler anew.

        LocalExecutor has no revoke_task, so Airflow never takes back a task whose worker died
        between taking it and telling that it runs; a new scheduler does.
        """
        self._rescued = now - QUEUED_LIMIT + 5
        if count_queued(self.airflow, QUEUED_LIMIT):
            self._rescued = now
            self.rescues += 1
            told = self._try(KILL, "scheduler and its workers", 0.0, 0.0)
            print(f"  {now - self._began:6.1f} s  a task is lost in the queue, so: {told}")

    def _look(self, now: float) -> None:
        """Remember all processes below the cluster's components."""
        self._looked = now
        others = [] if self._substitute is None else [self._substitute]
        for component in [*self.airflow.components.values(), *others]:
            if component.is_running():
                with contextlib.suppress(psutil.Error):
                    self._seen.update(psutil.Process(component.pid).children(recursive=True))

    def _end_idle_left_overs(self) -> None:
        """End executor processes that outlived their scheduler once their task has ended."""
        for process in list(self._left_over):
            try:
                if process.children():
                    continue
                process.kill()
            except psutil.Error:
                pass
            self._left_over.remove(process)


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.resume()
