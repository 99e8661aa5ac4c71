"""What tells exported versions apart, and in which order they are."""

from __future__ import annotations

import random

import pytest

from airflow_aiptraining.core import exports

FILE = {"name": "model.joblib", "size": 3, "crc32c": "AAAA==", "source_generation": 7}


def version(job_id: str, **facts: object) -> dict[str, object]:
    return {"job_id": job_id, "create_time": "2026-11-20T00:00:00Z", "attempt": 1, **facts}


def manifest(**facts: object) -> dict[str, object]:
    verdict = {**version("a_1"), "project_id": "p", "model_uri": "gs://b/job/", **facts}
    return exports.manifest(verdict, facts.get("files", [FILE]), "gs://b/out/a_1/")  # type: ignore[arg-type]


def test_versions_go_by_date_then_attempt_then_creation() -> None:
    in_order = [
        version("january", logical_date="2026-01-01T00:00:00Z"),
        version("january_a002", logical_date="2026-01-01T00:00:00Z", attempt=2),
        version("by_hand", logical_date=None, create_time="2026-06-01T00:00:00Z"),
        version("november", logical_date="2026-11-01T00:00:00+00:00"),
        version("november_a010", logical_date="2026-11-01T00:00:00Z", attempt=10),
        version("later", logical_date="2026-11-01T00:00:00Z", attempt=10,
                create_time="2026-11-21T00:00:00Z"),
    ]  # fmt: skip
    shuffled = random.Random(1).sample(in_order, len(in_order))
    assert sorted(shuffled, key=exports.order) == in_order


@pytest.mark.parametrize("broken", [{}, {"job_id": "a"}, version("a", create_time="yesterday")])
def test_a_version_without_times_has_no_place_in_the_order(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        exports.order(broken)


def test_the_same_export_has_the_same_bytes() -> None:
    assert exports.to_bytes(manifest()) == exports.to_bytes(manifest())
    assert exports.from_bytes(exports.to_bytes(manifest())) == manifest()


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({}, []),
        ({"metrics": {"accuracy": 1}}, []),
        ({"files": [{**FILE, "source_generation": 8}]}, []),
        ({"files": [{**FILE, "crc32c": None}]}, []),
        ({"files": [{**FILE, "crc32c": "BBBB=="}]}, ["model.joblib has other contents"]),
        ({"files": [{**FILE, "size": 4}]}, ["model.joblib has other contents"]),
        ({"files": [{**FILE, "name": "model.pkl"}]},
         ["model.joblib is not in this model", "model.pkl is not in that export"]),
        ({"project_id": "q"}, ["project_id is 'p', not 'q'"]),
    ],
)  # fmt: skip
def test_a_version_is_its_job_and_its_bytes(
    other: dict[str, object], difference: list[str]
) -> None:
    assert exports.differences(manifest(), manifest(**other)) == difference


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 99}', b"\xff"])
def test_what_this_operator_did_not_write_is_not_read(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        exports.from_bytes(data)
