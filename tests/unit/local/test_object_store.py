"""The object store as other modules of the service use it, in process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from airflow_aiptraining.local.errors import ApiError
from airflow_aiptraining.local.object_store import ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    made = ObjectStore(tmp_path / "storage")
    made.create_bucket("bucket")
    yield made
    made.close()


def test_object_is_found_with_its_bytes(store: ObjectStore) -> None:
    put = store.put_bytes("bucket", "p/x", b"hello")

    found = store.get("bucket", "p/x")

    assert found == put
    assert (found.bucket, found.name, found.size) == ("bucket", "p/x", 5)
    assert found.path.read_bytes() == b"hello"
    assert found.updated.tzinfo is not None
    assert (found.md5, found.crc32c) == ("XUFAKrxLKna5cZ2REBfFkg==", "mnG7TA==")


def test_what_is_not_there_is_none(store: ObjectStore) -> None:
    put = store.put_bytes("bucket", "x", b"1")

    assert store.get_bucket("none") is None
    assert store.get("none", "x") is None
    assert store.get("bucket", "none") is None
    assert store.get("bucket", "x", put.generation - 1) is None


def test_list_is_sorted_and_longer_than_a_page(store: ObjectStore) -> None:
    store.put_bytes("bucket", "q", b"")
    with store.database.write() as db:
        columns = "generation, metageneration, size, md5, crc32c, blob, component_count"
        for number in range(2500):
            db.execute(
                f"INSERT INTO objects SELECT bucket, ?, {columns}, created, updated, attributes "
                "FROM objects WHERE name = 'q'",
                (f"p/{number:04}",),
            )

    names = [each.name for each in store.list("bucket", "p/")]

    assert names == [f"p/{number:04}" for number in range(2500)]
    with pytest.raises(ApiError, match="bucket does not exist"):
        store.list("none")


def test_create_once_refuses_the_second(store: ObjectStore) -> None:
    store.put_bytes("bucket", "x", b"1", if_generation_match=0)

    with pytest.raises(ApiError) as refused:
        store.put_bytes("bucket", "x", b"2", if_generation_match=0)
    assert (refused.value.status, refused.value.reason) == (412, "conditionNotMet")
    assert store.get("bucket", "x").path.read_bytes() == b"1"


def test_generations_grow_even_if_the_clock_is_set_back(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "storage")
    store.create_bucket("bucket")
    future = 2**62
    with store.database.write() as db:
        db.execute("UPDATE counter SET last = ?", (future,))
    store.put_bytes("bucket", "x", b"1")
    store.close()
    store = ObjectStore(tmp_path / "storage")

    assert store.get("bucket", "x").generation == future + 1
    assert store.put_bytes("bucket", "x", b"2").generation == future + 2
    store.close()


def test_copy_shares_no_fate_with_its_source(store: ObjectStore) -> None:
    source = store.put_bytes("bucket", "x", b"1")
    copy = store.copy(source, "bucket", "y")
    store.put_bytes("bucket", "x", b"overwritten")

    assert copy.path.read_bytes() == b"1"
    with pytest.raises(ApiError, match="No such object"):
        store.copy(source, "bucket", "z")


def test_orphans_are_swept_at_the_start_and_nothing_else(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "storage")
    store.create_bucket("bucket")
    kept = store.put_bytes("bucket", "x", b"1")
    (kept.path.parent / ("0" * 32)).write_bytes(b"orphan")
    (tmp_path / "storage/uploads/half").write_bytes(b"orphan")
    store.close()

    store = ObjectStore(tmp_path / "storage")

    assert [path.name for path in (tmp_path / "storage/blobs").glob("*/*")] == [kept.blob]
    assert list((tmp_path / "storage/uploads").iterdir()) == []
    store.close()


def test_connections_are_shared_by_threads_that_come_and_go(store: ObjectStore) -> None:
    store.put_bytes("bucket", "x", b"1")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        reader = Thread(target=store.get, args=("bucket", "x"))
        reader.start()
        reader.join()

    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3
