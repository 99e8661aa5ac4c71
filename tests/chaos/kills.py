"""Kills processes of a cluster and its service, and starts them again."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
from cluster import AirflowCluster
from processes import Component
from service import EmbeddedService

#: How often each kind is drawn, relative to the others.
WEIGHTS = {
    "task runner": 4,
    "task supervisor": 3,
    "triggerer": 3,
    "scheduler and its workers": 1,
    "scheduler alone": 1,
    "api-server": 2,
    "training service": 3,
}


@dataclass
class Chaos:
    """Kill -9, at random moments.

    :param seed: the same one draws the same kinds and pauses; which processes there are to kill
        depends on the moment.
    :param pauses: seconds between two kills, at least and at most.
    :param downtimes: seconds until a killed component is started again, at least and at most.
    :param most: so many kills at most.
    """

    airflow: AirflowCluster
    service: EmbeddedService
    seed: int
    pauses: tuple[float, float]
    downtimes: tuple[float, float]
    most: int
    kills: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._began = self._next = time.monotonic()
        self._down: dict[str, tuple[float, Callable[[], None]]] = {}
        self._left_over: list[psutil.Process] = []
        self._seen: set[psutil.Process] = set()
        self._looked = 0.0

    def begin(self) -> None:
        """Let the time count from now."""
        self._began = time.monotonic()
        self._next = self._began + self._random.uniform(*self.pauses)

    def go_on(self) -> None:
        """Do what is due: start what was killed, kill the next; returns soon."""
        now = time.monotonic()
        for name, (due, start) in list(self._down.items()):
            if due <= now:
                del self._down[name]
                start()
        self._end_idle_left_overs()
        if now - self._looked > 0.5:
            self._look(now)
        if now >= self._next and len(self.kills) < self.most:
            self._next = time.monotonic() + self._random.uniform(*self.pauses)
            self._kill_one()

    def settle(self) -> None:
        """Start everything that is down; nothing is killed any more."""
        self.most = 0
        for _, start in self._down.values():
            start()
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

    def by_kind(self) -> dict[str, int]:
        """Return how many of each kind were killed."""
        return dict(Counter(kill["kind"] for kill in self.kills))

    def _kill_one(self) -> None:
        kinds = list(WEIGHTS)
        # Drawn before it is known what there is to kill, so that the seed means the same.
        order = sorted(kinds, key=lambda kind: self._random.random() ** (1 / WEIGHTS[kind]))
        downtime = self._random.uniform(*self.downtimes)
        pick = self._random.random()
        for kind in reversed(order):
            self._look(time.monotonic())
            if told := self._try(kind, downtime, pick):
                at = round(time.monotonic() - self._began, 1)
                clock = time.strftime("%H:%M:%S", time.gmtime())
                self.kills.append({"at": at, "utc": clock, "kind": kind, "what": told})
                print(f"  {at:6.1f} s  kill -9 {kind}: {told}", flush=True)
                return

    def _try(self, kind: str, downtime: float, pick: float) -> str:
        """Kill one of this kind; return what it was, empty where there is none."""
        if kind in ("task runner", "task supervisor"):
            return self._kill_worker(kind, pick)
        component = self._component(kind)
        if not component.is_running() or component.name in self._down:
            return ""
        told = f"pid {component.pid}, away for {downtime:.1f} s"
        if kind == "scheduler alone":
            self._left_over += psutil.Process(component.pid).children()
            assert component.process is not None
            component.process.kill()
        else:
            component.send(signal.SIGKILL)
        assert component.process is not None
        component.process.wait(30)
        start = self.service.start if kind == "training service" else component.start
        self._down[component.name] = (time.monotonic() + downtime, start)
        return told

    def _component(self, kind: str) -> Component:
        if kind == "training service":
            return self.service.component
        name = "scheduler" if kind.startswith("scheduler") else kind
        return self.airflow.components[name]

    def _kill_worker(self, kind: str, pick: float) -> str:
        """Kill a process that executes a task, or the one that watches over such a process."""
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
            victim = runner if kind == "task runner" else supervisor
            title = " ".join(supervisor.cmdline())[:150]
            victim.kill()
        except psutil.Error:
            return ""  # it has just ended
        return f"pid {victim.pid} ({title})"

    def _look(self, now: float) -> None:
        """Remember all processes below the cluster's components."""
        self._looked = now
        for component in self.airflow.components.values():
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
