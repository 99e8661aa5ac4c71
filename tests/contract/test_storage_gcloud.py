"""The embedded Cloud Storage, judged by the gcloud command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
from embedded import Service

pytestmark = pytest.mark.skipif(
    shutil.which("gcloud") is None, reason="the gcloud command is not installed"
)


class GCloud:
    def __init__(self, service: Service, config: Path) -> None:
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(config),
            "CLOUDSDK_CONFIG": str(config),
            "CLOUDSDK_CORE_PROJECT": "demo",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{service.url}/storage/v1/",
        }

    def __call__(self, *arguments: str, code: int = 0) -> str:
        ended = subprocess.run(
            ["gcloud", "storage", *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == code, ended.stderr
        return ended.stdout if code == 0 else ended.stderr


@pytest.fixture
def gcloud(service: Service, tmp_path: Path) -> GCloud:
    config = tmp_path / "gcloud"
    config.mkdir()
    return GCloud(service, config)


@pytest.fixture
def bucket(gcloud: GCloud) -> str:
    url = f"gs://b-{uuid.uuid4().hex[:16]}"
    gcloud("buckets", "create", url, "--location=europe-west1")
    return url


def test_gcloud_copies_lists_reads_and_removes(gcloud: GCloud, bucket: str, tmp_path: Path) -> None:
    source = tmp_path / "small ü.txt"
    source.write_text("hello\n")
    back = tmp_path / "back"

    gcloud("cp", str(source), f"{bucket}/d/small ü.txt")
    assert gcloud("ls", f"{bucket}/").split() == [f"{bucket}/d/"]
    assert gcloud("cat", f"{bucket}/d/small ü.txt") == "hello\n"
    gcloud("cp", f"{bucket}/d/small ü.txt", str(back))
    assert back.read_text() == "hello\n"
    described = json.loads(
        gcloud("objects", "describe", f"{bucket}/d/small ü.txt", "--format=json")
    )
    assert (described["size"], described["content_type"]) == (6, "text/plain")
    gcloud("mv", f"{bucket}/d/small ü.txt", f"{bucket}/moved")
    assert gcloud("ls", f"{bucket}/**").split() == [f"{bucket}/moved"]
    gcloud("rm", f"{bucket}/moved")
    assert gcloud("ls", bucket) == ""


def test_gcloud_copies_a_large_file_both_ways(gcloud: GCloud, bucket: str, tmp_path: Path) -> None:
    source, back = tmp_path / "large", tmp_path / "back"
    source.write_bytes(os.urandom(12 * 1024 * 1024))

    gcloud("cp", str(source), f"{bucket}/large")
    gcloud("cp", f"{bucket}/large", str(back))

    assert back.read_bytes() == source.read_bytes()


def test_gcloud_create_once_is_refused_the_second_time(
    gcloud: GCloud, bucket: str, tmp_path: Path
) -> None:
    source = tmp_path / "x"
    source.write_text("1")
    gcloud("cp", "--if-generation-match=0", str(source), f"{bucket}/x")
    source.write_text("2")

    told = gcloud("cp", "--if-generation-match=0", str(source), f"{bucket}/x", code=1)

    assert "412" in told
    assert gcloud("cat", f"{bucket}/x") == "1"


@pytest.mark.parametrize("how", ["--gzip-local-all", "--gzip-in-flight-all"])
def test_gcloud_compressed_upload_reads_plain(
    gcloud: GCloud, bucket: str, tmp_path: Path, how: str
) -> None:
    source, back = tmp_path / "x.txt", tmp_path / "back.txt"
    source.write_text("compressible " * 1000)

    gcloud("cp", how, str(source), f"{bucket}/x.txt")
    gcloud("cp", f"{bucket}/x.txt", str(back))

    assert back.read_text() == source.read_text()


def test_gcloud_syncs_a_folder_and_removes_a_whole_bucket(
    gcloud: GCloud, bucket: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    for name in ("a", "b/c", "b/d"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)

    gcloud("rsync", "-r", str(folder), f"{bucket}/model")
    assert gcloud("ls", f"{bucket}/model/**").split() == [
        f"{bucket}/model/a",
        f"{bucket}/model/b/c",
        f"{bucket}/model/b/d",
    ]
    gcloud("rm", "-r", bucket)
    assert "404" in gcloud("ls", bucket, code=1)
