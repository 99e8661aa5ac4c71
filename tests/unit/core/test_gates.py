"""Which models pass the gate, and what is said of the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_aiptraining.core.gates import (
    MAX_MODEL_OBJECTS,
    FoundModel,
    ModelObject,
    check_verdict,
    find_model,
    parse_time,
    wait_until_stable,
    written_since,
)
from airflow_aiptraining.exceptions import GateNotPassedError

CREATED = datetime(2026, 11, 14, 10, 0, tzinfo=UTC)
EARLIER = CREATED - timedelta(days=1)
LATER = CREATED + timedelta(minutes=5)
SAVED = ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001")


def written(*names: str, at: datetime = LATER, size: int = 10) -> list[ModelObject]:
    return [ModelObject(name, 1, size, at) for name in names]


def look(objects: list[ModelObject], *model_files: str) -> tuple[str | None, list[str], str]:
    """Return the folder found, its parts, and the reasons against."""
    model, reasons = find_model(objects, since=CREATED, model_files=model_files)
    if model is None:
        return None, [], "; ".join(reasons)
    return model.folder, [part.name for part in model.objects], ""


@pytest.mark.parametrize(
    ("names", "folder", "parts"),
    [
        (SAVED, "", sorted(SAVED)),
        ([f"model/{name}" for name in SAVED], "model/", sorted(SAVED)),
        (["model.joblib"], "", ["model.joblib"]),
        (["model.pkl", "metrics.json"], "", ["model.pkl"]),
        (["out/model.bst"], "out/", ["model.bst"]),
        (["model.joblib", "archive/model.joblib"], "", ["model.joblib"]),
        ([*SAVED, "assets/vocab.txt", "ckpt-1.index", "events.out"], "",
         sorted([*SAVED, "assets/vocab.txt"])),
        (["model/", "model/model.joblib"], "model/", ["model.joblib"]),
        (
            [f"export/exporter/{ts}/{name}" for ts in (1700000000, 1700009999) for name in SAVED],
            "export/exporter/1700009999/",
            sorted(SAVED),
        ),
        (
            [f"export/exporter/{ts}/{name}" for ts in ("1700000000", "temp-1700009999")
             for name in SAVED],
            "export/exporter/1700000000/",
            sorted(SAVED),
        ),
    ],
    ids=["SavedModel", "SavedModel below", "joblib", "pickle", "XGBoost", "the nearest",
         "assets without checkpoints", "a folder marker", "the newest estimator export",
         "no unfinished export"],
)  # fmt: skip
def test_the_model_is_found(names: list[str], folder: str, parts: list[str]) -> None:
    assert look(written(*names)) == (folder, parts, "")


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([], "no object at all"),
        (written("ckpt-1.index"), "but 1 other objects"),
        (written("saved_model.pb"), "without its variables (variables/variables.index is missing)"),
        (written(*SAVED[:2]), "without its variables (shards variables.data-*: none)"),
        (written(*SAVED[:2], "variables/variables.data-00000-of-00002"), "1 of 2"),
        (written(*SAVED[1:]) + written("saved_model.pb", size=0), "saved_model.pb is empty"),
        (written("model.joblib", size=0), "model.joblib is empty"),
        (written("temp-1700000000/saved_model.pb"), "but 1 other objects"),
    ],
)
def test_what_is_not_whole_is_told(objects: list[ModelObject], reason: str) -> None:
    folder, _, reasons = look(objects)
    assert folder is None
    assert reason in reasons


def test_an_earlier_attempts_model_never_passes() -> None:
    folder, _, reasons = look(written(*SAVED, at=EARLIER))
    assert folder is None
    assert "written before the job was created (2026-11-13T10:00:00Z, the job: " in reasons


def test_one_old_part_is_enough_to_refuse() -> None:
    objects = written(*SAVED) + written("assets/vocab.txt", at=EARLIER)
    assert look(objects)[2].startswith("assets/vocab.txt: written before the job was created")


@pytest.mark.parametrize(
    ("created", "started", "expected"),
    [
        (CREATED, None, 0.0),
        (CREATED, CREATED, 0.0),
        (CREATED, CREATED + timedelta(seconds=54), 1.0),
        (CREATED.replace(microsecond=5), CREATED + timedelta(seconds=54), 0.000005),
    ],
    ids=["not told", "a quick local job", "times cut to seconds", "whole times"],
)
def test_the_second_of_creation_is_the_jobs_only_if_it_started_in_it(
    created: datetime, started: datetime | None, expected: float
) -> None:
    assert (written_since(created, started) - CREATED).total_seconds() == expected


def test_an_old_model_of_another_shape_beside_the_new_one_does_no_harm() -> None:
    assert look(written("model.joblib") + written("model.pkl", at=EARLIER))[1] == ["model.joblib"]


def test_an_old_export_beside_the_new_one_does_no_harm() -> None:
    old = written(*(f"export/e/1700000000/{name}" for name in SAVED), at=EARLIER)
    new = written(*(f"export/e/1700009999/{name}" for name in SAVED))
    assert look(old + new)[0] == "export/e/1700009999/"


@pytest.mark.parametrize(
    "names",
    [("model.bst", "model.joblib"), ("a/model.joblib", "b/model.joblib")],
)
def test_two_models_are_not_chosen_between(names: tuple[str, ...]) -> None:
    with pytest.raises(GateNotPassedError, match=f"several models.*{names[0]}.*{names[1]}"):
        look(written(*names))


@pytest.mark.parametrize(
    ("model_files", "parts"),
    [
        (["net.onnx"], ["net.onnx"]),
        (["*.onnx"], ["net.onnx"]),
        (["**/*.onnx"], ["deep/net.onnx", "net.onnx"]),
        (["deep/"], ["deep/net.onnx", "deep/vocab.txt"]),
        (["net.onnx", "*/vocab.txt"], ["deep/vocab.txt", "net.onnx"]),
    ],
)
def test_authors_name_their_files(model_files: list[str], parts: list[str]) -> None:
    objects = written("net.onnx", "deep/net.onnx", "deep/vocab.txt", "model.joblib")
    assert look(objects, *model_files) == ("", parts, "")


def test_every_name_must_match() -> None:
    assert look(written("net.onnx"), "net.onnx", "*.txt")[2] == "there is no *.txt"


def test_a_named_file_of_an_earlier_attempt_is_refused() -> None:
    objects = written("a.onnx") + written("b.onnx", at=EARLIER)
    assert "b.onnx: written before the job" in look(objects, "*.onnx")[2]


def test_too_many_files_are_refused() -> None:
    names = [f"part-{number}" for number in range(MAX_MODEL_OBJECTS + 1)]
    with pytest.raises(GateNotPassedError, match="at most 1,000"):
        look(written(*names), "part-*")


@pytest.mark.parametrize(
    ("written_at", "now", "is_stable"),
    [
        (LATER, LATER, True),
        (LATER + timedelta(seconds=0.9), LATER, True),
        (LATER + timedelta(seconds=1), LATER + timedelta(seconds=10), False),
        (LATER + timedelta(seconds=1), LATER + timedelta(seconds=40), True),
    ],
    ids=["at the job's end", "in the second of its end", "just now", "at rest"],
)
def test_a_model_at_rest_is_stable(written_at: datetime, now: datetime, is_stable: bool) -> None:
    model = FoundModel("", tuple(written("model.joblib", at=written_at)))
    reason = wait_until_stable(model, ended=LATER, now=now, quiet=timedelta(seconds=30))
    assert (reason == "") is is_stable


def test_model_written_in_the_second_of_the_jobs_end_is_at_rest() -> None:
    """The service's endTime has whole seconds, the object's time has not."""
    parts = written("model.joblib", at=LATER + timedelta(milliseconds=700))
    model, _ = find_model(parts, since=CREATED, model_files=())
    now = LATER + timedelta(seconds=1)

    assert model is not None
    assert wait_until_stable(model, ended=LATER, now=now, quiet=timedelta(seconds=30)) == ""


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2026-11-14T10:00:00Z", 0),
        ("2026-11-14T10:00:00.123Z", 123000),
        ("2026-11-14T10:00:00.123456789Z", 123456),
        ("2026-11-14T11:00:00.5+01:00", 500000),
        ("2026-11-14T10:00:00", 0),
    ],
)
def test_the_apis_times_are_read(text: str, microsecond: int) -> None:
    assert parse_time(text) == CREATED.replace(microsecond=microsecond)


GOOD = {
    "job_id": "a_1",
    "model_uri": "gs://b/a/",
    "create_time": "2026-11-14T10:00:00Z",
    "objects": [{"name": "model.joblib", "generation": 1, "size": 2}],
}


def test_a_verdict_is_recognised() -> None:
    assert check_verdict(GOOD) is GOOD


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (None, "gave NoneType"),
        ("None", "gave str 'None'"),
        ({}, "job_id, model_uri, objects, create_time"),
        ({**GOOD, "objects": [{"name": "x"}]}, "usable objects"),
        ({**GOOD, "model_uri": "/tmp/x"}, "usable model_uri"),
    ],
)
def test_what_is_no_verdict_is_told(verdict: object, message: str) -> None:
    with pytest.raises(GateNotPassedError, match=message):
        check_verdict(verdict)
