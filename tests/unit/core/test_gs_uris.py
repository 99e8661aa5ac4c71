from __future__ import annotations

import pytest

from airflow_aiptraining.core.gs_uris import GsUri, bucket_problem, parse_gs_uri


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("gs://bkt", ("bkt", "")),
        ("gs://bkt/", ("bkt", "")),
        ("gs://bkt/a/b c/", ("bkt", "a/b c/")),
        ("gs://my.example.com/{job_id}", ("my.example.com", "{job_id}")),
    ],
)
def test_an_address_is_a_bucket_and_a_name(uri: str, parts: tuple[str, str]) -> None:
    assert parse_gs_uri(uri) == GsUri(*parts)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("/tmp/x", "must begin with gs://"),
        ("s3://bkt/x", "must begin with gs://"),
        ("gs://", "the bucket's name is missing"),
        ("gs:///x", "the bucket's name is missing"),
        ("gs://bkt/a\nb", "control character"),
        ("gs://bkt/" + "ä" * 513, "more than 1024 bytes"),
    ],
)
def test_an_address_that_cannot_exist_is_refused_with_the_reason(uri: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_gs_uri(uri)


@pytest.mark.parametrize("bucket", ["abc", "a-b_c.d9", "a" * 63, f"{'a' * 63}.{'b' * 63}", "1.2.3"])
def test_a_legal_bucket_has_no_problem(bucket: str) -> None:
    assert bucket_problem(bucket) == ""


@pytest.mark.parametrize(
    "bucket",
    ["ab", "a" * 64, "Abc", "-abc", "abc-", "a..b", f"{'a' * 64}.b", "10.0.0.1", "a b", "abc\n"],
)
def test_an_illegal_bucket_is_refused(bucket: str) -> None:
    assert bucket_problem(bucket) != ""
