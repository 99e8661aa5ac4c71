"""The embedded Cloud Storage over plain HTTP: what Google's Python client never sends."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests
from embedded import Service


class Bucket:
    """A bucket and the addresses under it."""

    def __init__(self, service: Service, http: requests.Session) -> None:
        self.http = http
        self.root = service.url
        self.name = f"b-{uuid.uuid4().hex[:16]}"
        made = http.post(f"{self.root}/storage/v1/b?project=demo", json={"name": self.name})
        made.raise_for_status()

    def at(self, name: str) -> str:
        return f"{self.root}/storage/v1/b/{self.name}/o/{quote(name, safe='')}"

    def upload(self, kind: str, prefix: str = "/upload") -> str:
        return f"{self.root}{prefix}/storage/v1/b/{self.name}/o?uploadType={kind}"

    def put(self, name: str, data: bytes, **query: Any) -> dict[str, Any]:
        answer = self.http.post(self.upload("media"), params={"name": name, **query}, data=data)
        answer.raise_for_status()
        return dict(answer.json())

    def read(self, name: str) -> bytes:
        answer = self.http.get(self.at(name), params={"alt": "media"})
        answer.raise_for_status()
        return answer.content

    def begin(self, name: str, prefix: str = "/upload", **query: Any) -> str:
        answer = self.http.post(
            self.upload("resumable", prefix), params={"name": name, **query}, json={}
        )
        assert answer.status_code == 200, answer.text
        return answer.headers["location"]


@pytest.fixture
def http() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture
def bucket(service: Service, http: requests.Session) -> Bucket:
    return Bucket(service, http)


def send(session: requests.Session, where: str, content_range: str, data: bytes = b"") -> Any:
    return session.put(
        where, data=data, headers={"Content-Range": content_range}, allow_redirects=False
    )


def reason_of(answer: requests.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["errors"][0]["reason"]


# --- answers -------------------------------------------------------------------------------------


def test_errors_have_googles_shape(bucket: Bucket) -> None:
    answer = bucket.http.get(bucket.at("missing"))

    message = f"No such object: {bucket.name}/missing"
    assert answer.json() == {
        "error": {
            "code": 404,
            "message": message,
            "errors": [{"message": message, "domain": "global", "reason": "notFound"}],
        }
    }


def test_what_is_not_supported_says_so(bucket: Bucket) -> None:
    answer = bucket.http.get(bucket.at("x") + "/acl")

    assert reason_of(answer) == (501, "notImplemented")


def test_small_answers_are_not_held_back(bucket: Bucket) -> None:
    """A listening socket without TCP_NODELAY costs 40 ms an answer (delayed acknowledgement)."""
    bucket.put("x", b"1")
    fastest = 1.0
    for _ in range(20):
        started = time.perf_counter()
        bucket.read("x")
        fastest = min(fastest, time.perf_counter() - started)

    assert fastest < 0.03


# --- simple and multipart uploads ----------------------------------------------------------------


def test_media_upload_keeps_type_and_bytes(bucket: Bucket) -> None:
    answer = bucket.http.post(
        bucket.upload("media"),
        params={"name": "a/b.json", "contentEncoding": "x-none"},
        data=b'{"not": parsed',
        headers={"Content-Type": "application/json"},
    )

    made = answer.json()
    assert (made["contentType"], made["contentEncoding"]) == ("application/json", "x-none")
    assert bucket.read("a/b.json") == b'{"not": parsed'


def test_media_upload_holds_preconditions_and_checksums(bucket: Bucket) -> None:
    bucket.put("x", b"1", ifGenerationMatch=0)

    again = bucket.http.post(
        bucket.upload("media"), params={"name": "x", "ifGenerationMatch": "0"}, data=b"2"
    )
    assert reason_of(again) == (412, "conditionNotMet")
    right = base64.b64encode(hashlib.md5(b"3").digest()).decode()
    for given, status in ((f"md5={right}", 200), ("crc32c=AAAAAA==", 400), ("md5=short", 400)):
        answer = bucket.http.post(
            bucket.upload("media"), params={"name": "y"}, data=b"3", headers={"x-goog-hash": given}
        )
        assert answer.status_code == status, given
    assert bucket.read("x") == b"1"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("quotes", ["'", '"', ""], ids=["single", "double", "no quotes"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\r",
        b"\r\n",
        b"line\n",
        b"ends in CR\r",
        b"--===b",
        b"\n--===bb\n",
        b"\r\n--===b-\r\n",
        bytes(range(256)) * 9000,
    ],
    ids=repr,
)
def test_multipart_upload_as_gcloud_and_others_write_it(
    bucket: Bucket, newline: bytes, quotes: str, data: bytes
) -> None:
    lines = [
        b"--===b==",
        b"Content-Type: application/json",
        b"MIME-Version: 1.0",
        b"",
        json.dumps({"name": "from the JSON part", "metadata": {"a": "b"}}).encode(),
        b"--===b==",
        b"Content-Type: application/x-tar",
        b"MIME-Version: 1.0",
        b"Content-Transfer-Encoding: binary",
        b"",
        data,
        b"--===b==--",
    ]
    answer = bucket.http.post(
        bucket.upload("multipart"),
        data=newline.join(lines),
        headers={"Content-Type": f"multipart/related; boundary={quotes}===b=={quotes}"},
    )

    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (made["name"], made["contentType"], made["metadata"], made["size"]) == (
        "from the JSON part",
        "application/x-tar",
        {"a": "b"},
        str(len(data)),
    )
    assert bucket.read("from the JSON part") == data


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no boundary at all",
        b"--b\n\n{}\n--b--\n",
        b"--b\n\n{}\n--b\n\ncut off",
        b"--b\n\nnot JSON\n--b\n\nx\n--b--",
        b'--b\n\n{"name": "\\ud800"}\n--b\n\nx\n--b--',
        b"--b\n\n[]\n--b\n\nx\n--b--",
    ],
    ids=repr,
)
def test_broken_multipart_is_refused_and_leaves_nothing(bucket: Bucket, body: bytes) -> None:
    answer = bucket.http.post(
        bucket.upload("multipart"),
        params={"name": "x"},
        data=body,
        headers={"Content-Type": "multipart/related; boundary=b"},
    )

    assert answer.status_code == 400, answer.text
    assert bucket.http.get(bucket.at("x")).status_code == 404


def test_body_compressed_for_the_way_is_stored_plain(bucket: Bucket) -> None:
    answer = bucket.http.post(
        bucket.upload("media"),
        params={"name": "x"},
        data=gzip.compress(b"plain" * 1000),
        headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"},
    )

    assert "contentEncoding" not in answer.json()
    assert bucket.read("x") == b"plain" * 1000


def test_upload_that_breaks_off_leaves_nothing(service: Service, bucket: Bucket) -> None:
    address = urlsplit(service.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as raw:
        path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=x"
        raw.sendall(f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\n".encode())
        raw.sendall(b"Content-Length: 1000000\r\n\r\n" + b"x" * 500_000)

    spooled = service.data / "storage" / "uploads"
    deadline = time.monotonic() + 10
    while list(spooled.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(spooled.iterdir()) == []
    assert bucket.http.get(bucket.at("x")).status_code == 404


# --- resumable uploads ---------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/upload", "/resumable/upload"])
def test_unfinished_upload_tells_how_far_it_is_and_goes_on(bucket: Bucket, prefix: str) -> None:
    where = bucket.begin("x", prefix)
    assert urlsplit(where).path.startswith(f"{prefix}/storage/v1/")

    asked = send(bucket.http, where, "bytes */10")
    assert (asked.status_code, "range" in asked.headers) == (308, False)
    first = send(bucket.http, where, "bytes 0-3/10", b"0123")
    assert (first.status_code, first.headers["range"]) == (308, "bytes=0-3")
    for query in ("bytes */10", "bytes */*"):
        asked = send(bucket.http, where, query)
        assert (asked.status_code, asked.headers["range"]) == (308, "bytes=0-3")
    assert bucket.http.get(bucket.at("x")).status_code == 404
    last = send(bucket.http, where, "bytes 4-9/10", b"456789")
    assert (last.status_code, last.json()["size"]) == (200, "10")
    assert bucket.read("x") == b"0123456789"


def test_finished_upload_answers_the_same_object_again(bucket: Bucket) -> None:
    where = bucket.begin("x")
    made = send(bucket.http, where, "bytes 0-3/4", b"0123").json()
    bucket.put("x", b"overwritten since")

    for again in (send(bucket.http, where, "bytes 0-3/4", b"0123"),
                  send(bucket.http, where, "bytes */4")):  # fmt: skip
        assert (again.status_code, again.json()["generation"]) == (200, made["generation"])
    assert bucket.read("x") == b"overwritten since"


def test_chunk_that_is_sent_again_counts_once(bucket: Bucket) -> None:
    where = bucket.begin("x")
    send(bucket.http, where, "bytes 0-3/*", b"0123")

    again = send(bucket.http, where, "bytes 0-5/*", b"012345")
    assert again.headers["range"] == "bytes=0-5"
    assert send(bucket.http, where, "bytes 8-9/10", b"89").status_code == 400
    assert send(bucket.http, where, "bytes */6").json()["size"] == "6"
    assert bucket.read("x") == b"012345"


def test_upload_without_a_range_is_whole(bucket: Bucket) -> None:
    where = bucket.begin("x")

    assert bucket.http.put(where, data=b"all of it").json()["size"] == "9"


def test_cancelled_upload_is_gone(bucket: Bucket) -> None:
    where = bucket.begin("x")
    send(bucket.http, where, "bytes 0-3/10", b"0123")

    assert bucket.http.delete(where).status_code == 499
    assert send(bucket.http, where, "bytes */10").status_code == 404


def test_precondition_that_fails_at_the_end_of_an_upload_keeps_the_other(bucket: Bucket) -> None:
    where = bucket.begin("x", ifGenerationMatch=0)
    bucket.put("x", b"faster")

    assert reason_of(send(bucket.http, where, "bytes 0-5/6", b"slower")) == (412, "conditionNotMet")
    assert bucket.read("x") == b"faster"
    refused = bucket.http.post(
        bucket.upload("resumable"), params={"name": "x", "ifGenerationMatch": "0"}, json={}
    )
    assert reason_of(refused) == (412, "conditionNotMet")


def test_size_that_was_announced_is_held(bucket: Bucket) -> None:
    begun = bucket.http.post(
        bucket.upload("resumable"),
        params={"name": "x"},
        headers={"X-Upload-Content-Length": "10", "X-Upload-Content-Type": "text/x"},
    )

    answer = bucket.http.put(begun.headers["location"], data=b"short")
    assert answer.status_code == 400
    assert bucket.http.get(bucket.at("x")).status_code == 404


def test_checksum_in_the_last_request_is_verified(bucket: Bucket) -> None:
    where = bucket.begin("x")
    answer = bucket.http.put(
        where,
        data=b"0123",
        headers={"Content-Range": "bytes 0-3/4", "x-goog-hash": "crc32c=AAAAAA=="},
    )

    assert answer.status_code == 400
    assert "CRC32C" in answer.json()["error"]["message"]


# --- downloads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "status", "body", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
@pytest.mark.parametrize("address", ["json", "download", "xml"])
def test_ranges(
    bucket: Bucket,
    address: str,
    asked: str,
    status: int,
    body: bytes | None,
    content_range: str | None,
) -> None:
    bucket.put("d/x", b"0123456789")
    where = {
        "json": bucket.at("d/x") + "?alt=media",
        "download": f"{bucket.root}/download/storage/v1/b/{bucket.name}/o/d%2Fx?alt=media",
        "xml": f"{bucket.root}/{bucket.name}/d/x",
    }[address]

    answer = bucket.http.get(where, headers={"Range": asked})

    assert (answer.status_code, answer.headers.get("content-range")) == (status, content_range)
    assert body is None or answer.content == body


def test_head_tells_size_and_checksums_without_bytes(bucket: Bucket) -> None:
    made = bucket.put("d/x", b"0123456789")

    answer = bucket.http.head(f"{bucket.root}/{bucket.name}/d/x")

    assert (answer.headers["content-length"], answer.content) == ("10", b"")
    assert answer.headers["x-goog-hash"] == f"crc32c={made['crc32c']},md5={made['md5Hash']}"
    assert answer.headers["x-goog-generation"] == made["generation"]
    assert bucket.http.head(f"{bucket.root}/{bucket.name}/no").status_code == 404


def test_gzip_object_is_unpacked_for_who_cannot(bucket: Bucket) -> None:
    packed = gzip.compress(b"first ") + gzip.compress(b"second")
    bucket.put("x", packed, contentEncoding="gzip")

    def read(accepts: str) -> tuple[str | None, bytes]:
        answer = bucket.http.get(
            bucket.at("x") + "?alt=media", headers={"Accept-Encoding": accepts}, stream=True
        )
        return answer.headers.get("content-encoding"), answer.raw.read()

    assert read("identity") == (None, b"first second")
    assert read("gzip, deflate") == ("gzip", packed)


def test_overwritten_while_it_is_read_the_old_bytes_arrive_whole(bucket: Bucket) -> None:
    data = bytes(1024) * 8192
    bucket.put("x", data)

    with bucket.http.get(bucket.at("x") + "?alt=media", stream=True) as answer:
        received = answer.raw.read(1000)
        with requests.Session() as other:
            url = bucket.upload("media")
            other.post(url, params={"name": "x"}, data=b"new").raise_for_status()
        received += answer.raw.read()

    assert received == data
    assert bucket.read("x") == b"new"


# --- batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_batch_answers_in_order_and_names_its_parts(bucket: Bucket, newline: str) -> None:
    bucket.put("a", b"1")
    bucket.put("b", b"2")
    calls = ["DELETE /storage/v1/b/{}/o/a", "GET /storage/v1/b/{}/o/none", "GET /storage/v1/b/{}"]
    lines = []
    for index, call in enumerate(calls):
        identity = [f"Content-ID: <id+{index}>"] if index != 2 else []
        lines += ["--B", "Content-Type: application/http", *identity, ""]
        lines += [call.format(bucket.name) + " HTTP/1.1", "Accept: */*", "", ""]
    body = newline.join([*lines, "--B--", ""])

    answer = bucket.http.post(
        f"{bucket.root}/batch/storage/v1",
        data=body,
        headers={"Content-Type": 'multipart/mixed; boundary="B"'},
    )

    text = answer.text
    found = [text.index(line) for line in ("HTTP/1.1 204", "HTTP/1.1 404", "HTTP/1.1 200")]
    assert found == sorted(found)
    assert "<response-id+0>" in text and "<response-id+1>" in text
    assert bucket.http.get(bucket.at("a")).status_code == 404


@pytest.mark.parametrize(
    "call",
    [
        "POST /v1/projects/local/jobs HTTP/1.1",
        "GET /storage/v1/b/x/o/y?alt=media HTTP/1.1",
        "POST /upload/storage/v1/b/x/o HTTP/1.1",
        "POST /batch/storage/v1 HTTP/1.1",
    ],
)
def test_batch_holds_storage_calls_only(bucket: Bucket, call: str) -> None:
    answer = bucket.http.post(
        f"{bucket.root}/batch/storage/v1",
        data=f"--B\nContent-Type: application/http\n\n{call}\n\n\n--B--",
        headers={"Content-Type": "multipart/mixed; boundary=B"},
    )

    assert answer.status_code == 400


# --- who may call --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:{port}"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
    ],
    ids=str,
)
def test_only_this_service_is_meant(bucket: Bucket, headers: dict[str, str], status: int) -> None:
    port = str(urlsplit(bucket.root).port)
    given = {key: value.format(port=port) for key, value in headers.items()}

    answer = bucket.http.get(f"{bucket.root}/storage/v1/b/{bucket.name}", headers=given)

    assert answer.status_code == status


def test_web_page_cannot_upload(bucket: Bucket) -> None:
    answer = bucket.http.post(
        bucket.upload("media"),
        params={"name": "x"},
        data=b"x",
        headers={"Content-Type": "text/plain", "Origin": "https://evil.example"},
    )

    assert answer.status_code == 403
    assert bucket.http.get(bucket.at("x")).status_code == 404


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_json_endpoint_takes_json_only(bucket: Bucket, content_type: str | None) -> None:
    answer = bucket.http.post(
        f"{bucket.root}/storage/v1/b?project=demo",
        data=json.dumps({"name": "by-a-form"}).encode(),
        headers={"Content-Type": content_type},
    )

    assert answer.status_code == 415


def test_json_body_is_bounded(bucket: Bucket) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(11):
            yield b" " * 1024 * 1024

    where = f"{bucket.root}/storage/v1/b?project=demo"
    kind = {"Content-Type": "application/json"}
    told = bucket.http.post(where, data=b" " * 11 * 1024 * 1024, headers=kind)
    streamed = bucket.http.post(where, data=chunks(), headers=kind)

    assert (told.status_code, streamed.status_code) == (413, 413)


@pytest.mark.parametrize(
    "path",
    [
        "/storage/v1/b?project=demo&maxResults=x",
        "/storage/v1/b/{bucket}/o?maxResults=-1",
        "/storage/v1/b/{bucket}/o?pageToken=%25",
        "/storage/v1/b/{bucket}/o?matchGlob=[z-a]",
        "/storage/v1/b/{bucket}/o/x?generation=one",
        "/storage/v1/b/{bucket}/o/x?ifGenerationMatch=99999999999999999999",
        "/storage/v1/b/{bucket}/o/%FF",
    ],
)
def test_nonsense_is_a_bad_request(bucket: Bucket, path: str) -> None:
    answer = bucket.http.get(bucket.root + path.format(bucket=bucket.name))

    assert answer.status_code == 400, answer.text
