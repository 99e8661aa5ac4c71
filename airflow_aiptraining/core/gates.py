"""Is this model whole, and did this job write it?

What lies in a job's folder isn't a model yet: an upload may have been cut off, and a job that
shares its ``job_dir`` with an earlier attempt may have written nothing and yet find a model there.
So a model is taken only if all its parts are there and each was written after the job was created.

Source of the shapes: ML v1 ``Version.deploymentUri`` (TensorFlow SavedModel directory;
``model.joblib`` or ``model.pkl`` of scikit-learn; ``model.bst`` of XGBoost), TensorFlow's
SavedModel and checkpoint formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_aiptraining.exceptions import GateNotPassedError

#: Files that a model may have.  Source: ML v1 ``Version`` (at most 1,000 files).
MAX_MODEL_OBJECTS = 1_000

_SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
_SINGLE_FILES = ("model.joblib", "model.pkl", "model.bst")
#: What belongs to a SavedModel; checkpoints and event files beside it don't.
_SAVED_MODEL_PART = re.compile(
    r"(?:saved_model\.pb(?:txt)?|fingerprint\.pb|keras_metadata\.pb"
    r"|(?:variables|assets|assets\.extra)/.+)\Z"
)
_SHARD = re.compile(r"variables/variables\.data-(?P<number>\d+)-of-(?P<count>\d+)\Z")
#: Estimators write to ``temp-<timestamp>`` and rename; what is left of one is no model.
_UNFINISHED = re.compile(r"(?:^|/)temp-\d+/")
_EXPORT_FOLDER = re.compile(r"(?P<parent>.*/|)(?P<stamp>\d{9,})/\Z")
_SHOWN = 5
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class ModelObject:
    """One generation of one object in a bucket.

    :param name: relative to the folder that is looked at.
    :param size: bytes.
    :param created: when this generation was written; aware.
    :param crc32c: base64, as Cloud Storage gives it.
    """

    name: str
    generation: int
    size: int
    created: datetime
    crc32c: str = ""

    def under(self, folder: str) -> ModelObject:
        """Return the object with its name relative to ``folder``, which it lies in."""
        return ModelObject(
            self.name.removeprefix(folder), self.generation, self.size, self.created, self.crc32c
        )


@dataclass(frozen=True)
class FoundModel:
    """A whole model of the job in question.

    :param folder: where it lies, relative to where it was looked for; empty or ending in ``/``.
    :param objects: its parts, names relative to ``folder``, sorted.
    """

    folder: str
    objects: tuple[ModelObject, ...]

    @property
    def written(self) -> datetime:
        """When its last part was written."""
        return max(part.created for part in self.objects)


@dataclass(frozen=True)
class Candidate:
    """A folder that seems to hold a model.

    :param problems: why it isn't one that can be taken; none for a good one.
    """

    folder: str
    objects: tuple[ModelObject, ...]
    problems: tuple[str, ...]


def find_model(
    objects: Sequence[ModelObject], *, since: datetime, model_files: Sequence[str] = ()
) -> tuple[FoundModel | None, tuple[str, ...]]:
    """Look for the model that a job wrote.

    :param objects: all that lies in the job's folder, names relative to it.
    :param since: see :func:`written_since`; every part must be at least as new.
    :param model_files: names or patterns (``*`` within a folder, ``**`` across folders, a final
        ``/`` for all that lies beneath) that together make the model.  Empty: the shapes that
        ML v1 serves are looked for: in the folder itself, then in the nearest folder below; of
        time-stamped exports beside each other (``export/<name>/<timestamp>/``) the newest.
    :return: the model, or ``None`` and every reason.  All reasons may pass while the job's last
        writes arrive.
    :raises GateNotPassedError: there are several models, or a model has too many files; waiting
        won't help.
    """
    files = [part for part in objects if not part.name.endswith("/")]
    if model_files:
        candidates = [_of_names(files, since, model_files)]
    else:
        candidates = [*_saved_models(files, since), *_single_files(files, since)]
    good = [candidate for candidate in candidates if not candidate.problems]
    if good:
        chosen = _choose(good)
        if len(chosen.objects) > MAX_MODEL_OBJECTS:
            raise GateNotPassedError(
                f"the model in {_place(chosen.folder)} has {len(chosen.objects):,} files; at most "
                f"{MAX_MODEL_OBJECTS:,} are taken. Name those that make the model with model_files."
            )
        return FoundModel(chosen.folder, chosen.objects), ()
    if candidates:
        return None, tuple(problem for each in candidates[-_SHOWN:] for problem in each.problems)
    what = "no object at all" if not files else f"{len(files):,} other objects"
    return None, (
        f"there is no saved_model.pb, {', '.join(_SINGLE_FILES[:-1])} or {_SINGLE_FILES[-1]}, "
        f"but {what}. A model of another shape is named with model_files.",
    )


def _of_names(
    files: Sequence[ModelObject], since: datetime, model_files: Sequence[str]
) -> Candidate:
    taken: dict[str, ModelObject] = {}
    problems = []
    for pattern in model_files:
        matches = [part for part in files if _pattern(pattern).match(part.name)]
        if not matches:
            problems.append(f"there is no {pattern}")
        taken |= {part.name: part for part in matches}
    parts = tuple(taken[name] for name in sorted(taken))
    return Candidate("", parts, (*problems, *_stale(parts, since)))


def _saved_models(files: Sequence[ModelObject], since: datetime) -> Iterable[Candidate]:
    folders = sorted(
        {
            part.name.removesuffix(name)
            for part in files
            for name in _SAVED_MODEL_FILES
            if part.name == name or part.name.endswith(f"/{name}")
        }
    )
    for folder in folders:
        if _UNFINISHED.search(folder):
            continue
        parts = tuple(
            part.under(folder)
            for part in sorted(files, key=lambda part: part.name)
            if part.name.startswith(folder)
            and _SAVED_MODEL_PART.match(part.name.removeprefix(folder))
        )
        problems = [f"{_place(folder)}: {problem}" for problem in _missing_variables(parts)]
        yield Candidate(folder, parts, (*problems, *_stale(parts, since, folder)))


def _missing_variables(parts: Sequence[ModelObject]) -> Iterable[str]:
    """Tell what a SavedModel lacks; a saver writes its index last, when all shards are there."""
    sizes = {part.name: part.size for part in parts}
    if not any(sizes.get(name) for name in _SAVED_MODEL_FILES):
        yield "its saved_model.pb is empty"
    if not sizes.get("variables/variables.index"):
        yield (
            "a SavedModel without its variables (variables/variables.index is "
            f"{'empty' if 'variables/variables.index' in sizes else 'missing'})"
        )
        return
    shards: dict[int, set[int]] = {}
    for name in sizes:
        if match := _SHARD.match(name):
            shards.setdefault(int(match["count"]), set()).add(int(match["number"]))
    if not any(len(there) == count for count, there in shards.items()):
        have = ", ".join(f"{len(there)} of {count}" for count, there in shards.items()) or "none"
        yield f"a SavedModel without its variables (shards variables.data-*: {have})"


def _single_files(files: Sequence[ModelObject], since: datetime) -> Iterable[Candidate]:
    for part in sorted(files, key=lambda part: part.name):
        folder, _, name = part.name.rpartition("/")
        if name not in _SINGLE_FILES:
            continue
        folder = f"{folder}/" if folder else ""
        parts = (part.under(folder),)
        problems = () if part.size else (f"{part.name} is empty",)
        yield Candidate(folder, parts, (*problems, *_stale(parts, since, folder)))


def _stale(parts: Sequence[ModelObject], since: datetime, folder: str = "") -> tuple[str, ...]:
    """Tell which parts are older than the job: an earlier attempt's, which never pass."""
    old = [part for part in parts if part.created < since]
    if not old:
        return ()
    newest = max(part.created for part in old)
    names = _listed([folder + part.name for part in old])
    return (
        f"{names}: written before the job was created ({utc(newest)}, the job: {utc(since)}), "
        "so not by this job. If the trainer keeps such a file, delete it or put {job_id} into "
        "job_dir",
    )


def _choose(good: Sequence[Candidate]) -> Candidate:
    """Return the model that is meant: the nearest; of time-stamped exports the newest."""
    newest: dict[str, tuple[int, Candidate]] = {}
    others = []
    for candidate in good:
        match = _EXPORT_FOLDER.match(candidate.folder)
        if match is None:
            others.append(candidate)
            continue
        stamp = int(match["stamp"])
        if match["parent"] not in newest or stamp > newest[match["parent"]][0]:
            newest[match["parent"]] = (stamp, candidate)
    rest = [*others, *(candidate for _, candidate in newest.values())]
    depth = min(candidate.folder.count("/") for candidate in rest)
    nearest = [candidate for candidate in rest if candidate.folder.count("/") == depth]
    if len(nearest) > 1:
        names = _listed([candidate.folder + candidate.objects[0].name for candidate in nearest])
        raise GateNotPassedError(
            f"there are several models ({names}) and nothing says which is meant. "
            "Name one with model_uri or model_files."
        )
    return nearest[0]


def _pattern(pattern: str) -> re.Pattern[str]:
    """Translate a name or pattern; unlike fnmatch's, its ``*`` stays within a folder."""
    pattern = pattern.removeprefix("./").removeprefix("/")
    if pattern.endswith("/"):
        pattern += "**"
    parts = re.split(r"(\*\*/?|\*|\?)", pattern)
    translated = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(translated.get(part, re.escape(part)) for part in parts) + r"\Z")


def parse_time(text: str) -> datetime:
    """Read one of the API's RFC 3339 times, with up to nine decimals.

    :raises ValueError: it isn't one.
    """
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def written_since(created: datetime, started: datetime | None) -> datetime:
    """Return the earliest moment at which a job can have written something.

    The API's times are cut to whole seconds.  What was written in the very second of creation is
    an earlier attempt's, unless the job also started in it (which only a quick local one does).

    :param created: the job's createTime.
    :param started: its startTime, where it has one.
    """
    cut = created.microsecond == 0
    later = started is not None and started - created >= _SECOND
    return created + _SECOND if cut and later else created


def wait_until_stable(
    model: FoundModel, *, ended: datetime | None, now: datetime, quiet: timedelta
) -> str:
    """Tell why a whole model may still be changing; empty if it is at rest.

    A generation never changes, so a model whose last part is older than ``quiet`` has had the same
    generations and sizes at two looks ``quiet`` apart: nothing needs to be remembered in between.

    :param ended: the job's endTime; what was written before it is at rest at once.
    :param quiet: how long nothing may have been written after the end.
    """
    # ML v1 cuts its times to whole seconds; storage doesn't.
    if ended is not None and model.written < _end_of_second(ended):
        return ""
    if now - model.written >= quiet:
        return ""
    return (
        f"its last part was written at {utc(model.written)}, after the job's end; "
        f"{quiet.total_seconds():g} s without another write are waited for"
    )


def _end_of_second(time: datetime) -> datetime:
    return time if time.microsecond else time + timedelta(seconds=1)


def check_verdict(verdict: Any) -> Mapping[str, Any]:
    """Return what a gate pushed, if it is a verdict that an export can rely on.

    :raises GateNotPassedError: it isn't one; the text says what is missing.
    """
    if not isinstance(verdict, Mapping):
        raise GateNotPassedError(
            f"the gate gave {type(verdict).__name__} {str(verdict)[:80]!r}, not a verdict. Was the "
            "gate skipped, or is gate/gate_task_id another task's?"
        )
    shapes: dict[str, Callable[[Any], bool]] = {
        "job_id": lambda value: isinstance(value, str) and bool(value),
        "model_uri": lambda value: isinstance(value, str) and value.startswith("gs://"),
        "objects": lambda value: isinstance(value, list) and bool(value),
        "create_time": lambda value: isinstance(value, str) and bool(value),
    }
    wrong = [key for key, fits in shapes.items() if not fits(verdict.get(key))]
    if not wrong and not all(
        isinstance(part, Mapping)
        and isinstance(part.get("name"), str)
        and all(type(part.get(key)) is int for key in ("generation", "size"))
        for part in verdict["objects"]
    ):
        wrong = ["objects"]
    if wrong:
        raise GateNotPassedError(
            f"the gate's verdict lacks a usable {', '.join(wrong)}: pass what AIPModelExportSensor "
            "returns."
        )
    return verdict


def utc(time: datetime) -> str:
    """Return a time as the API writes it."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _place(folder: str) -> str:
    return folder or "the folder itself"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
