"""Processes that the demo and the tests start, and their sure end.

Each process gets a session of its own, so that Ctrl-C in the terminal reaches only us and we end
the others in order.  Whatever a process leaves behind (forked workers, replicas of a training job)
is found by its environment: everything started here names a directory in it that nothing else on
this machine knows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

#: Names whose value follows a person's shell around: no sign that we started the process.
_SHELL_NAMES = frozenset({"PWD", "OLDPWD", "_"})
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class ProcessEndedError(RuntimeError):
    """A process ended that should be running; the text has the end of its log."""


class Component:
    """One long-lived process and its log file.

    :param name: for messages.
    :param argv: program and arguments.
    :param env: its whole environment.
    :param log: file that gets stdout and stderr; appended to when it is started again.
    :param cwd: its working directory.
    """

    def __init__(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.env = dict(env)
        self.log = log
        self.cwd = cwd
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id; the component must have been started."""
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def start(self) -> None:
        """Start it; a no-op while it runs."""
        if self.is_running():
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Return whether it was started and hasn't ended."""
        return self.process is not None and self.process.poll() is None

    def check(self) -> None:
        """Raise :class:`ProcessEndedError` if it has ended."""
        if not self.is_running():
            code = self.process.returncode if self.process else None
            raise ProcessEndedError(f"{self.name} ended with code {code}. {self.tail()}")

    def tail(self, lines: int = 25) -> str:
        """Return the end of its log, with the file's name."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        end = "\n".join(f"  | {line}" for line in text.splitlines()[-lines:])
        return f"The end of {self.log}:\n{end}"

    def send(self, signum: int) -> None:
        """Send a signal to its process group; nothing if it has ended."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signum)


def stop(components: Sequence[Component], *, grace: float = 5.0) -> None:
    """End components together: SIGTERM, then SIGKILL for what is left after ``grace`` seconds."""
    for component in components:
        component.send(signal.SIGTERM)
        component.send(signal.SIGCONT)  # a stopped process can't act on SIGTERM
    deadline = time.monotonic() + grace
    for component in components:
        if component.process is None:
            continue
        try:
            component.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            component.send(signal.SIGKILL)
            component.process.wait(10)


def processes_of(directory: Path) -> list[psutil.Process]:
    """Return the running processes that were started for ``directory``, ourselves left out.

    Their environment names it.  Airflow's processes write their title over their environment, but
    they work in that directory; a person's shell in it isn't ours.
    """
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            environ = process.environ()
            title = " ".join(process.cmdline())
            works_there = title.startswith("airflow ") and _is_within(process.cwd(), directory)
        except (psutil.Error, OSError):
            continue  # ended, or another user's
        if works_there or any(
            str(directory) in value for name, value in environ.items() if name not in _SHELL_NAMES
        ):
            found.append(process)
    return found


def _is_within(path: str, directory: Path) -> bool:
    return Path(path.removesuffix(" (deleted)")).is_relative_to(directory.resolve())


def end_processes_of(directory: Path, *, grace: float = 3.0) -> list[str]:
    """End every process whose environment names ``directory``.

    :return: what could not be ended, as text; empty is good.
    """
    deadline = time.monotonic() + grace + 10
    polite_until = time.monotonic() + grace
    while left := processes_of(directory):
        if time.monotonic() > deadline:
            return [_describe(process) for process in left]
        polite = time.monotonic() < polite_until
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.terminate() if polite else process.kill()
        psutil.wait_procs(left, timeout=0.5)
    return []


class Guard:
    """Ends what was started for a directory if we are killed and can't do it ourselves.

    A process of its own, which waits for the end of a pipe that only we hold open.

    :param directory: see :func:`processes_of`.
    :param remove: remove the directory as well.
    """

    def __init__(self, directory: Path, *, remove: bool) -> None:
        argv = [sys.executable, str(Path(__file__).resolve()), str(directory)]
        self._process = subprocess.Popen(
            argv + ["--remove"] * remove,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Send the guard home; call it when everything has ended."""
        self._process.kill()
        self._process.communicate()


def _guard(directory: Path, remove: bool) -> None:
    sys.stdin.read()
    end_processes_of(directory)
    if remove:
        shutil.rmtree(directory, ignore_errors=True)


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)


def wait_for(
    condition: Callable[[], T | None],
    *,
    timeout: float,
    what: str | Callable[[], str],
    components: Sequence[Component] = (),
    interval: float = 0.25,
) -> T:
    """Return the first true answer of ``condition``.

    :param timeout: seconds.
    :param what: what is waited for, for the error; a callable is asked only then.
    :param components: must go on running meanwhile.
    :raises TimeoutError: no true answer came in time.
    :raises ProcessEndedError: one of ``components`` ended.
    """
    deadline = time.monotonic() + timeout
    while True:
        if answer := condition():
            return answer
        for component in components:
            component.check()
        if time.monotonic() > deadline:
            text = what if isinstance(what, str) else what()
            raise TimeoutError(f"waited {timeout:.0f} s in vain for {text}")
        time.sleep(interval)


@contextlib.contextmanager
def signals_unwind() -> Iterator[None]:
    """Make SIGTERM and a closed terminal unwind the stack, as Ctrl-C does, so that we clean up."""

    def leave(signum: int, _frame: object) -> None:
        raise SystemExit(128 + signum)

    before = {signum: signal.signal(signum, leave) for signum in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def signals_held_off() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM while we clean up: a second Ctrl-C must not leave half of it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may change handlers, and only it is interrupted
        return
    before = {
        signum: signal.signal(signum, signal.SIG_IGN)
        for signum in (signal.SIGINT, *_ENDING_SIGNALS)
    }
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), remove="--remove" in sys.argv[2:])
