"""Run one replica's process and put down, on disk, all that the service needs to know about it.

Started as ``python -S -E replica_wrapper.py spec.json`` in a session of its own, so it and the
trainer outlive the service: kill -9 of the service loses neither output nor exit code.  A service
that starts later finds the replica by its files alone.  Standard library only.

Files, beside ``spec.json``:

``claim``
    Made by link(2), so that one spec is run once at most; locked (flock) as long as the wrapper
    lives, so "claim exists and can be locked" means "the wrapper died".
``pid.json``
    ``{"wrapper": pid, "trainer": pid}``; written when the trainer has started.
``output.log``
    One record a line: ``<timestamp> <I|E> <text>``.  The timestamp is RFC 3339 with nine decimals
    (30 characters) and grows strictly, so the file can be searched by bisection.  I is stdout, E is
    stderr.  The order between the two is that of arrival.
``exit.json``
    ``{"returncode": …, "started": s, "ended": s, "stderr_tail": […], "error": …}``, written
    atomically and fsynced, last of all.

Spec: ``argv``, ``env``, ``cwd``, ``output_limit`` (bytes), ``line_limit`` (bytes).
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

# Lines kept for the error message, and printed after a cut output: a traceback fits.
TAIL_LINES = 60
# After the trainer has ended, how long a left-over child may hold its pipes open.
DRAIN_SECONDS = 1.0
READ_BYTES = 1 << 16


def write_atomically(path: Path, document: dict[str, Any]) -> None:
    """Write JSON so that a reader sees all of it or nothing, also after a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@functools.lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def timestamp(nanoseconds: int) -> str:
    """Return *nanoseconds* since the epoch as ``2026-11-21T10:56:00.123456789Z``."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{_second(seconds)}.{rest:09d}Z"


class Output:
    """The bounded record file of one replica.

    :param limit: bytes after which lines are counted instead of kept.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._size = 0
        self._limit = limit
        self._last = 0
        self._left_out = 0
        self._tail: collections.deque[tuple[str, bytes]] = collections.deque(maxlen=TAIL_LINES)
        self._stderr_tail: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)

    def lines(self, stream: str, lines: list[bytes]) -> None:
        """Add complete lines of one stream (``I`` or ``E``), without their line ends."""
        records = []
        for text in lines:
            if stream == "E":
                self._stderr_tail.append(text)
            if self._left_out:
                self._left_out += 1
                self._tail.append((stream, text))
                continue
            record = self._record(stream, text)
            self._size += len(record)
            records.append(record)
            if self._size >= self._limit:
                notice = (
                    f"The output of this replica has reached {self._limit} bytes; what it prints "
                    f"from here on isn't kept, except for the last {TAIL_LINES} lines."
                )
                records.append(self._record("E", notice.encode()))
                self._left_out = 1  # counted from one, so that zero means "not cut"
        if records:
            self._write(b"".join(records))

    def close(self) -> None:
        """Add the last lines of a cut output and make the file durable."""
        if self._tail:
            missing = self._left_out - 1 - len(self._tail)
            notice = f"{missing} lines were left out here. The last lines were:"
            records = [self._record("E", notice.encode())]
            records += [self._record(stream, text) for stream, text in self._tail]
            self._write(b"".join(records))
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    @property
    def stderr_tail(self) -> list[str]:
        """Return the last lines of stderr, oldest first."""
        return [line.decode("utf-8", "replace") for line in self._stderr_tail]

    def _record(self, stream: str, text: bytes) -> bytes:
        # A clock that is set back must not break the order of the file.
        self._last = max(time.time_ns(), self._last + 1)
        return f"{timestamp(self._last)} {stream} ".encode() + text + b"\n"

    def _write(self, data: bytes) -> None:
        # A full disk must not stop the trainer: what can't be written is lost.
        with contextlib.suppress(OSError):
            self._file.write(data)


class Stream:
    """One pipe of the trainer, cut into lines.

    :param tag: ``I`` for stdout, ``E`` for stderr.
    :param line_limit: bytes of one line that are kept.
    """

    def __init__(self, pipe: IO[bytes], tag: str, line_limit: int) -> None:
        self.pipe = pipe
        self.tag = tag
        self._rest = bytearray()
        self._length = 0
        self._limit = line_limit

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that *data* completes."""
        *complete, rest = data.split(b"\n")
        lines = []
        for part in complete:
            self._add(part)
            lines.append(self._take())
        self._add(rest)
        return lines

    def end(self) -> list[bytes]:
        """Return the last line if it had no line end."""
        return [self._take()] if self._length else []

    def _add(self, part: bytes) -> None:
        # A line without an end must not fill the memory.
        self._length += len(part)
        self._rest += part[: max(0, self._limit - len(self._rest))]

    def _take(self) -> bytes:
        line, length = bytes(self._rest), self._length
        self._rest.clear()
        self._length = 0
        if length > len(line):
            return line + f" … [cut: this line had {length} bytes]".encode()
        return line.removesuffix(b"\r")


def pump(trainer: subprocess.Popen[bytes], output: Output, line_limit: int) -> None:
    """Copy both pipes to *output* until they end, or the trainer has ended and the rest is late."""
    assert trainer.stdout is not None
    assert trainer.stderr is not None
    selector = selectors.DefaultSelector()
    for pipe, tag in ((trainer.stdout, "I"), (trainer.stderr, "E")):
        selector.register(pipe, selectors.EVENT_READ, Stream(pipe, tag, line_limit))
    until: float | None = None
    while selector.get_map():
        ready = selector.select(0.2)
        for key, _ in ready:
            stream: Stream = key.data
            data = os.read(key.fd, READ_BYTES)
            if data:
                output.lines(stream.tag, stream.feed(data))
            else:
                output.lines(stream.tag, stream.end())
                selector.unregister(stream.pipe)
        if until is None and trainer.poll() is not None:
            until = time.monotonic() + DRAIN_SECONDS
            # The replica's result is its main process's; what it left behind ends with it.
            with contextlib.suppress(OSError):
                os.killpg(trainer.pid, signal.SIGKILL)
        if until is not None and time.monotonic() > until:
            break
    for key in list(selector.get_map().values()):
        output.lines(key.data.tag, key.data.end())


def run(folder: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """Run the trainer of *spec* to its end.

    :return: the content of ``exit.json``.
    """
    output = Output(folder / "output.log", spec["output_limit"])
    started = time.time()
    try:
        trainer = subprocess.Popen(
            spec["argv"],
            env=spec["env"],
            cwd=spec["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    # ValueError: an argument or a variable holds a NUL, or half of a surrogate pair.
    except (OSError, ValueError) as error:
        output.close()
        return {
            "returncode": None,
            "started": started,
            "ended": time.time(),
            "stderr_tail": [],
            "error": f"{spec['argv'][0]} could not be started: {error}",
        }
    write_atomically(folder / "pid.json", {"wrapper": os.getpid(), "trainer": trainer.pid})
    pump(trainer, output, spec["line_limit"])
    returncode = trainer.wait()
    ended = time.time()
    output.close()
    return {
        "returncode": returncode,
        "started": started,
        "ended": ended,
        "stderr_tail": output.stderr_tail,
        "error": None,
    }


def main(path: str) -> int:
    """Claim and run the spec at *path*.

    :return: 0, or 3 if another wrapper has claimed it.
    """
    spec_path = Path(path)
    folder = spec_path.parent
    # Locked before it gets its name: whoever sees the claim may trust its lock.
    mine = folder / f"claim.{os.getpid()}"
    lock = os.open(mine, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        os.link(mine, folder / "claim")
    except FileExistsError:
        return 3
    finally:
        mine.unlink()
    # What comes for the service (a closed terminal, Ctrl-C) isn't meant for its replicas.
    # Handlers, not SIG_IGN: the trainer would inherit that.
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    spec = json.loads(spec_path.read_text(encoding="utf-8"))
    write_atomically(folder / "exit.json", run(folder, spec))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
