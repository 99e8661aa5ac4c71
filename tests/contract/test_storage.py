"""The embedded Cloud Storage, judged by google-cloud-storage."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import google_crc32c
import pytest
from embedded import Service
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.retry import ConditionalRetryPolicy

ODD_NAMES = [
    pytest.param("dir/", id="folder marker"),
    pytest.param("a//b", id="empty folder"),
    pytest.param("/a", id="slash first"),
    pytest.param("../../etc/passwd", id="dots"),
    pytest.param("a/../b", id="dots inside"),
    pytest.param("n" * 1024, id="1024 bytes"),
    pytest.param("模型/ü é", id="unicode"),
    pytest.param("a b+c%2Fd?e#f&g=h;i", id="reserved characters"),
    pytest.param("x/copyTo/b/y/o/z", id="looks like another address"),
    pytest.param("'quoted\" \\ back", id="quotes"),
]


def client_of(service: Service) -> storage.Client:
    return storage.Client(
        project="demo",
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": service.url},
    )


@pytest.fixture
def client(service: Service) -> storage.Client:
    return client_of(service)


@pytest.fixture
def bucket(client: storage.Client) -> storage.Bucket:
    return client.create_bucket(f"b-{uuid.uuid4().hex[:16]}")


# --- buckets -------------------------------------------------------------------------------------


def test_bucket_is_created_read_patched_and_deleted(client: storage.Client) -> None:
    name = f"b-{uuid.uuid4().hex[:16]}"

    created = client.create_bucket(name, location="europe-west1")
    created.labels = {"team": "forecast"}
    created.patch()
    read = client.get_bucket(name)

    assert (
        read.location,
        read.labels,
        read.metageneration,
    ) == ("EUROPE-WEST1", {"team": "forecast"}, 2)
    read.labels = {}
    read.patch()
    assert client.get_bucket(name).labels == {}
    assert name in [each.name for each in client.list_buckets()]
    read.delete()
    assert client.lookup_bucket(name) is None


def test_second_bucket_of_a_name_is_a_conflict(
    client: storage.Client, bucket: storage.Bucket
) -> None:
    with pytest.raises(exceptions.Conflict):
        client.create_bucket(bucket.name)


def test_bucket_with_objects_is_not_deleted(bucket: storage.Bucket) -> None:
    bucket.blob("x").upload_from_string("1")

    with pytest.raises(exceptions.Conflict, match="not empty"):
        bucket.delete()
    bucket.delete(force=True)
    assert not bucket.exists()


def test_buckets_are_listed_by_project_in_pages(client: storage.Client) -> None:
    project = f"p-{uuid.uuid4().hex[:8]}"
    names = sorted(f"b-{uuid.uuid4().hex[:16]}" for _ in range(5))
    for name in names:
        client.create_bucket(name, project=project)

    assert names == [b.name for b in client.list_buckets(project=project, page_size=2)]


@pytest.mark.parametrize("name", ["no", "Upper", "-dash", "has space", "../up"])
def test_illegal_bucket_name_is_refused(
    service: Service, client: storage.Client, name: str
) -> None:
    answer = client._http.post(f"{service.url}/storage/v1/b?project=demo", json={"name": name})

    assert answer.status_code == 400


def test_missing_bucket_is_told_apart_from_missing_object(
    client: storage.Client, bucket: storage.Bucket
) -> None:
    with pytest.raises(exceptions.NotFound, match="bucket does not exist"):
        client.bucket("no-such-bucket").blob("x").upload_from_string("1")
    with pytest.raises(exceptions.NotFound, match="No such object"):
        bucket.blob("x").download_as_bytes()
    with pytest.raises(exceptions.NotFound, match="bucket does not exist"):
        list(client.list_blobs("no-such-bucket"))


def test_read_only_bucket_refuses_every_write_and_is_read(bucket: storage.Bucket) -> None:
    bucket.blob("kept").upload_from_string("1")
    bucket.labels = {"aiptraining-read-only": "true"}
    bucket.patch()

    for write in (
        lambda: bucket.blob("new").upload_from_string("2"),
        lambda: bucket.blob("new", chunk_size=256 * 1024).upload_from_file(io.BytesIO(b"2")),
        lambda: bucket.blob("kept").delete(),
        lambda: bucket.copy_blob(bucket.blob("kept"), bucket, "copy"),
        lambda: bucket.blob("new").compose([bucket.blob("kept")]),
        lambda: _patch(bucket.blob("kept")),
    ):
        with pytest.raises(exceptions.Forbidden, match="aiptraining-read-only"):
            write()
    assert bucket.blob("kept").download_as_bytes() == b"1"
    assert bucket.test_iam_permissions(["storage.objects.get", "storage.objects.create"]) == [
        "storage.objects.get"
    ]
    bucket.labels = {}
    bucket.patch()
    bucket.blob("new").upload_from_string("2")


def _patch(blob: storage.Blob) -> None:
    blob.metadata = {"a": "b"}
    blob.patch()


# --- objects -------------------------------------------------------------------------------------


def test_object_carries_what_the_client_set_and_its_own_checksums(bucket: storage.Bucket) -> None:
    data = b"weights" * 1000
    blob = bucket.blob("m/model.bin")
    blob.metadata = {"accuracy": "0.91", "schlüssel": "wört"}
    blob.cache_control = "no-store"
    blob.content_disposition = "attachment; filename=m.bin"
    blob.content_language = "en"
    blob.upload_from_string(data, content_type="application/x-model")

    read = bucket.get_blob("m/model.bin")

    assert read.metadata == {"accuracy": "0.91", "schlüssel": "wört"}
    assert (
        read.content_type,
        read.cache_control,
        read.content_disposition,
        read.content_language,
    ) == ("application/x-model", "no-store", "attachment; filename=m.bin", "en")
    assert base64.b64encode(hashlib.md5(data).digest()).decode() == read.md5_hash
    assert base64.b64encode(google_crc32c.Checksum(data).digest()).decode() == read.crc32c
    assert (len(data), 1) == (read.size, read.metageneration)
    assert read.time_created is not None and read.updated is not None
    assert data == read.download_as_bytes()


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_legal_name_is_just_a_name(bucket: storage.Bucket, name: str) -> None:
    bucket.blob(name).upload_from_string(f"content of {name}")

    assert f"content of {name}" == bucket.blob(name).download_as_text()
    assert [name] == [each.name for each in bucket.list_blobs()]
    bucket.blob(name).delete()
    assert list(bucket.list_blobs()) == []


def test_object_and_folder_of_one_name_live_side_by_side(bucket: storage.Bucket) -> None:
    for name in ("model", "model/", "model/x"):
        bucket.blob(name).upload_from_string(name)

    found = {each.name: each.download_as_text() for each in bucket.list_blobs()}

    assert found == {"model": "model", "model/": "model/", "model/x": "model/x"}


@pytest.mark.parametrize(
    "name", ["n" * 1025, "ü" * 513, "a\nb", ".well-known/acme-challenge/x"], ids=range(4)
)
def test_illegal_object_name_is_refused(bucket: storage.Bucket, name: str) -> None:
    with pytest.raises(exceptions.BadRequest):
        bucket.blob(name).upload_from_string("x")


def test_no_file_is_named_by_an_object(service: Service, bucket: storage.Bucket) -> None:
    bucket.blob("../../../pwned").upload_from_string("x")

    files = [path.name for path in service.data.parent.rglob("*")]

    assert not [name for name in files if "pwned" in name]


def test_empty_object_is_an_object(bucket: storage.Bucket) -> None:
    bucket.blob("empty").upload_from_string(b"")
    bucket.blob("streamed", chunk_size=256 * 1024).upload_from_file(io.BytesIO(b""))

    assert [
        (bucket.get_blob(name).size, bucket.blob(name).download_as_bytes())
        for name in ("empty", "streamed")
    ] == [(0, b""), (0, b"")]


def test_overwriting_makes_a_later_generation_and_the_old_one_is_gone(
    bucket: storage.Bucket,
) -> None:
    first = bucket.blob("x")
    first.upload_from_string("1")
    old = first.generation
    second = bucket.blob("x")
    second.upload_from_string("2")

    assert second.generation > old
    assert bucket.blob("x", generation=second.generation).download_as_text() == "2"
    with pytest.raises(exceptions.NotFound):
        bucket.blob("x", generation=old).download_as_bytes()
    assert bucket.get_blob("x", generation=old) is None
    with pytest.raises(exceptions.NotFound):
        bucket.blob("x", generation=old).delete()


def test_patch_merges_metadata_and_counts_metageneration(bucket: storage.Bucket) -> None:
    blob = bucket.blob("x")
    blob.metadata = {"a": "1", "b": "2"}
    blob.upload_from_string("x")
    blob.metadata = {"a": None, "c": "3"}
    blob.patch()

    read = bucket.get_blob("x")
    assert ({"b": "2", "c": "3"}, 2, blob.generation) == (
        read.metadata,
        read.metageneration,
        read.generation,
    )
    read.metadata = {"only": "this"}
    read.update()
    assert (
        bucket.get_blob("x").metadata,
        bucket.get_blob("x").metageneration,
    ) == ({"only": "this"}, 3)


# --- uploads -------------------------------------------------------------------------------------

MIB = 1024 * 1024


@pytest.mark.parametrize("chunk_size", [256 * 1024, MIB, 8 * MIB])
@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 3 * MIB, 3 * MIB + 1])
def test_resumable_upload_of_any_size_and_chunk(
    bucket: storage.Bucket, size: int, chunk_size: int
) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    bucket.blob("x", chunk_size=chunk_size).upload_from_file(io.BytesIO(data), size=size)

    assert data == bucket.blob("x").download_as_bytes()


def test_upload_of_unknown_length_streams(bucket: storage.Bucket) -> None:
    with bucket.blob("x").open("wb", chunk_size=256 * 1024) as file:
        for _ in range(10):
            file.write(b"0123456789" * 10_000)

    with bucket.blob("x").open("rb", chunk_size=100_000) as file:
        assert file.read() == b"0123456789" * 100_000


@pytest.mark.parametrize("checksum", ["md5", "crc32c", "auto"])
@pytest.mark.parametrize("chunk_size", [None, 256 * 1024], ids=["multipart", "resumable"])
def test_clients_checksums_are_accepted(
    bucket: storage.Bucket, checksum: str, chunk_size: int | None
) -> None:
    data = b"d" * 700_000

    bucket.blob("x", chunk_size=chunk_size).upload_from_file(io.BytesIO(data), checksum=checksum)

    assert data == bucket.blob("x").download_as_bytes(checksum=checksum)


@pytest.mark.parametrize("field", ["md5_hash", "crc32c"])
@pytest.mark.parametrize("chunk_size", [None, 256 * 1024], ids=["multipart", "resumable"])
def test_damaged_upload_is_refused_and_leaves_nothing(
    bucket: storage.Bucket, field: str, chunk_size: int | None
) -> None:
    blob = bucket.blob("x", chunk_size=chunk_size)
    wrong = hashlib.md5(b"other").digest() if field == "md5_hash" else b"\0\1\2\3"
    setattr(blob, field, base64.b64encode(wrong).decode())

    with pytest.raises(exceptions.BadRequest, match="doesn't match"):
        blob.upload_from_file(io.BytesIO(b"data"), checksum=None)
    assert not bucket.blob("x").exists()


# --- preconditions -------------------------------------------------------------------------------

UPLOADS = pytest.mark.parametrize("chunk_size", [None, 256 * 1024], ids=["multipart", "resumable"])


@UPLOADS
def test_create_once_never_overwrites(bucket: storage.Bucket, chunk_size: int | None) -> None:
    blob = bucket.blob("x", chunk_size=chunk_size)
    blob.upload_from_file(io.BytesIO(b"1"), if_generation_match=0)

    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_file(io.BytesIO(b"2"), if_generation_match=0)
    assert bucket.blob("x").download_as_bytes() == b"1"


@UPLOADS
def test_every_upload_precondition_is_held(bucket: storage.Bucket, chunk_size: int | None) -> None:
    blob = bucket.blob("x", chunk_size=chunk_size)
    blob.upload_from_file(io.BytesIO(b"1"))
    there = blob.generation

    for failing in (
        {"if_generation_match": there - 1},
        {"if_generation_not_match": there},
        {"if_metageneration_match": 2},
        {"if_metageneration_not_match": 1},
    ):
        with pytest.raises(exceptions.PreconditionFailed):
            bucket.blob("x", chunk_size=chunk_size).upload_from_file(io.BytesIO(b"2"), **failing)
    for holding in (
        {"if_generation_match": there},
        {"if_generation_not_match": 0},
        {"if_metageneration_match": 1},
        {"if_metageneration_not_match": 2},
    ):
        bucket.blob("x", chunk_size=chunk_size).upload_from_file(io.BytesIO(b"3"), **holding)
    assert bucket.blob("x").download_as_bytes() == b"3"


@UPLOADS
def test_eight_racing_creators_have_one_winner(
    service: Service, bucket: storage.Bucket, chunk_size: int | None
) -> None:
    clients = [client_of(service) for _ in range(8)]
    barrier = Barrier(8)

    def create(racer: int, name: str) -> int | None:
        blob = clients[racer].bucket(bucket.name).blob(name, chunk_size=chunk_size)
        barrier.wait()
        try:
            blob.upload_from_file(
                io.BytesIO(f"racer {racer}".encode()), if_generation_match=0, retry=None
            )
        except exceptions.PreconditionFailed:
            return None
        return racer

    with ThreadPoolExecutor(8) as pool:
        for round_ in range(10):
            name = f"prize-{round_}"
            winners = [w for w in pool.map(create, range(8), [name] * 8) if w is not None]
            assert len(winners) == 1
            assert f"racer {winners[0]}" == bucket.blob(name).download_as_text()


def test_reading_preconditions_answer_412_or_304(bucket: storage.Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("1")

    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x").reload(if_generation_match=1)
    with pytest.raises(exceptions.NotModified):
        bucket.blob("x").reload(if_generation_not_match=blob.generation)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x").download_as_bytes(if_metageneration_match=2)
    with pytest.raises(exceptions.NotModified):
        bucket.blob("x").download_as_bytes(if_metageneration_not_match=1)
    bucket.blob("x").reload(if_generation_match=blob.generation, if_metageneration_match=1)


def test_delete_holds_its_preconditions(bucket: storage.Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("1")

    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x").delete(if_generation_match=blob.generation + 1)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x").delete(if_metageneration_match=7)
    assert bucket.blob("x").exists()
    bucket.blob("x").delete(if_generation_match=blob.generation)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("x").delete()


def test_patch_holds_its_preconditions(bucket: storage.Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("1")
    blob.metadata = {"a": "b"}

    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=2)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_generation_match=1)
    blob.patch(if_metageneration_match=1)
    assert bucket.get_blob("x").metadata == {"a": "b"}


@pytest.mark.parametrize("how", ["copy", "rewrite"])
def test_copy_holds_preconditions_of_both_ends(bucket: storage.Bucket, how: str) -> None:
    source = bucket.blob("from")
    source.upload_from_string("1", content_type="text/x")
    taken = bucket.blob("taken")
    taken.upload_from_string("2")

    def copy(name: str, **conditions: int) -> storage.Blob:
        if how == "copy":
            return bucket.copy_blob(source, bucket, name, **conditions)
        target = bucket.blob(name)
        target.rewrite(source, **conditions)
        return target

    with pytest.raises(exceptions.PreconditionFailed):
        copy("taken", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        copy("new", if_source_generation_match=source.generation + 1)
    with pytest.raises(exceptions.PreconditionFailed):
        copy("new", if_source_metageneration_not_match=1)
    assert not bucket.blob("new").exists()
    made = copy("new", if_generation_match=0, if_source_generation_match=source.generation)
    assert (made.download_as_bytes(), bucket.get_blob("new").content_type) == (b"1", "text/x")
    assert taken.download_as_bytes() == b"2"


def test_copy_takes_the_generation_that_was_named_or_none(bucket: storage.Bucket) -> None:
    source = bucket.blob("x")
    source.upload_from_string("1")
    seen = source.generation
    bucket.blob("x").upload_from_string("2")

    with pytest.raises(exceptions.NotFound):
        bucket.copy_blob(bucket.blob("x"), bucket, "copy", source_generation=seen)
    assert not bucket.blob("copy").exists()


def test_copy_lives_on_without_its_source(client: storage.Client, bucket: storage.Bucket) -> None:
    other = client.create_bucket(f"{bucket.name}-2")
    source = bucket.blob("x")
    source.metadata = {"a": "b"}
    source.upload_from_string("1")
    copy = bucket.copy_blob(source, other, "y")
    source.delete()

    assert (copy.download_as_text(), other.get_blob("y").metadata) == ("1", {"a": "b"})


def test_move_leaves_one_object(bucket: storage.Bucket) -> None:
    bucket.blob("old").upload_from_string("1")

    bucket.move_blob(bucket.blob("old"), "new")

    assert [each.name for each in bucket.list_blobs()] == ["new"]
    assert bucket.blob("new").download_as_text() == "1"


def test_compose_joins_objects_and_counts_components(bucket: storage.Bucket) -> None:
    parts = [bucket.blob(f"p{i}") for i in range(3)]
    for index, part in enumerate(parts):
        part.upload_from_string(f"{index}" * 5)
    whole = bucket.blob("whole")
    whole.content_type = "text/plain"
    whole.compose(parts, if_generation_match=0)

    assert whole.download_as_text() == "000001111122222"
    read = bucket.get_blob("whole")
    assert (read.component_count, read.md5_hash, read.content_type) == (3, None, "text/plain")
    with pytest.raises(exceptions.PreconditionFailed):
        whole.compose(parts, if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("w2").compose(parts, if_source_generation_match=[1, None, None])
    with pytest.raises(exceptions.NotFound):
        bucket.blob("w2").compose([bucket.blob("missing")])


# --- reading -------------------------------------------------------------------------------------


def test_parts_of_an_object_are_read(bucket: storage.Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("0123456789")

    assert blob.download_as_bytes(start=2, end=4) == b"234"
    assert blob.download_as_bytes(start=7) == b"789"
    assert blob.download_as_bytes(start=7, end=99) == b"789"
    assert blob.download_as_bytes(start=-2) == b"89"
    with pytest.raises(exceptions.RequestRangeNotSatisfiable):
        blob.download_as_bytes(start=10)


def test_chunked_download_is_whole(bucket: storage.Bucket) -> None:
    data = bytes(range(256)) * 5000
    bucket.blob("x").upload_from_string(data)

    assert data == bucket.blob("x", chunk_size=256 * 1024).download_as_bytes()


def test_gzip_object_is_served_both_ways(bucket: storage.Bucket) -> None:
    packed = gzip.compress(b"plain text " * 1000)
    blob = bucket.blob("x")
    blob.content_encoding = "gzip"
    blob.upload_from_string(packed, content_type="text/plain")

    assert packed == blob.download_as_bytes(raw_download=True)
    assert blob.download_as_bytes() == b"plain text " * 1000


def test_media_link_serves_the_bytes(client: storage.Client, bucket: storage.Bucket) -> None:
    blob = bucket.blob("dir/ü x")
    blob.upload_from_string("1")

    assert client._http.get(blob.media_link).content == b"1"
    assert client._http.get(blob.self_link + "?alt=media").content == b"1"


# --- listing -------------------------------------------------------------------------------------

TREE = ["a", "a/1", "a/2", "a/b/3", "a0", "b/", "b/4", "c", "ü/5"]


@pytest.fixture(scope="module")
def tree(service: Service) -> storage.Bucket:
    found = client_of(service).create_bucket(f"tree-{uuid.uuid4().hex[:12]}")
    for name in TREE:
        found.blob(name).upload_from_string(name)
    return found


@pytest.mark.parametrize(
    ("asked", "names", "prefixes"),
    [
        ({}, TREE, []),
        ({"prefix": "a/"}, ["a/1", "a/2", "a/b/3"], []),
        ({"prefix": "a"}, ["a", "a/1", "a/2", "a/b/3", "a0"], []),
        ({"delimiter": "/"}, ["a", "a0", "c"], ["a/", "b/", "ü/"]),
        ({"prefix": "a/", "delimiter": "/"}, ["a/1", "a/2"], ["a/b/"]),
        ({"prefix": "b/", "delimiter": "/"}, ["b/", "b/4"], []),
        (
            {"delimiter": "/", "include_trailing_delimiter": True},
            ["a", "a0", "b/", "c"],
            ["a/", "b/", "ü/"],
        ),
        ({"start_offset": "a/2", "end_offset": "b/4"}, ["a/2", "a/b/3", "a0", "b/"], []),
        ({"match_glob": "a/*"}, ["a/1", "a/2"], []),
        ({"match_glob": "a/**"}, ["a/1", "a/2", "a/b/3"], []),
        ({"match_glob": "**/[13]"}, ["a/1", "a/b/3"], []),
        ({"match_glob": "{a,c}"}, ["a", "c"], []),
        ({"match_glob": "a?"}, ["a0"], []),
        ({"prefix": "nothing"}, [], []),
    ],
    ids=str,
)
@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_list_answers_as_asked_in_any_page_size(
    tree: storage.Bucket,
    asked: dict[str, object],
    names: list[str],
    prefixes: list[str],
    page_size: int,
) -> None:
    found = tree.list_blobs(**asked, page_size=page_size)

    assert names == [each.name for each in found]
    assert set(prefixes) == found.prefixes


def test_pages_are_no_larger_than_asked(tree: storage.Bucket) -> None:
    sizes = [page.num_items for page in tree.list_blobs(page_size=4).pages]

    assert sizes == [4, 4, 1]
    assert len(list(tree.list_blobs(max_results=3))) == 3


# --- batch ---------------------------------------------------------------------------------------


def test_batch_does_many_calls_in_one_request(
    client: storage.Client, bucket: storage.Bucket
) -> None:
    for index in range(20):
        bucket.blob(f"ü/{index}").upload_from_string("x")
    blobs = list(bucket.list_blobs())

    with client.batch():
        for blob in blobs[:10]:
            blob.delete()
        for blob in blobs[10:]:
            blob.metadata = {"seen": "ja ü"}
            blob.patch()

    left = list(bucket.list_blobs())
    assert len(left) == 10
    assert all(blob.metadata == {"seen": "ja ü"} for blob in left)


def test_batch_tells_the_call_that_failed(client: storage.Client, bucket: storage.Bucket) -> None:
    bucket.blob("x").upload_from_string("x")

    with pytest.raises(exceptions.NotFound, match="missing"), client.batch():
        bucket.blob("missing").delete()
        bucket.blob("x").delete()
    assert not bucket.blob("x").exists()


def test_retry_policy_of_the_client_is_satisfied(bucket: storage.Bucket) -> None:
    """The client retries what it holds idempotent: create-once answers must stay 412, not 5xx."""
    blob = bucket.blob("x")
    blob.upload_from_string("1", if_generation_match=0)
    assert isinstance(storage.retry.DEFAULT_RETRY_IF_GENERATION_SPECIFIED, ConditionalRetryPolicy)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string("1", if_generation_match=0)
