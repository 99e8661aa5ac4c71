"""Ready archives are looked into, never trusted and never unpacked."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from airflow_aiptraining.exceptions import InvalidTrainerError
from airflow_aiptraining.packaging.archives import check_module, inspect_archive, runnable_modules


def make_tar(path: Path, files: dict[str, bytes], *extra: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for member in extra:
            tar.addfile(member)
    return path


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


SDIST = {
    "trainer-1.0/setup.py": b"",
    "trainer-1.0/trainer/__init__.py": b"",
    "trainer-1.0/trainer/task.py": b"print(1)",
}
WHEEL = {
    "trainer/__init__.py": b"",
    "trainer/task.py": b"print(1)",
    "trainer-1.0.dist-info/METADATA": b"Name: trainer",
    "trainer-1.0.dist-info/WHEEL": b"",
    "trainer-1.0.dist-info/RECORD": b"",
}
WHEEL_NAME = "trainer-1.0-py3-none-any.whl"


@pytest.mark.parametrize("name", ["trainer-1.0.tar.gz", "trainer-1.0.tgz", "trainer-1.0.zip"])
def test_source_archives_are_read(tmp_path: Path, name: str) -> None:
    make = make_zip if name.endswith(".zip") else make_tar
    contents = inspect_archive(make(tmp_path / name, SDIST))
    assert contents.files == {"setup.py", "trainer/__init__.py", "trainer/task.py"}
    assert "trainer.task" in contents.modules


def test_wheels_are_read(tmp_path: Path) -> None:
    contents = inspect_archive(make_zip(tmp_path / WHEEL_NAME, WHEEL))
    assert contents.modules == {"trainer.task"}
    assert contents.unpacked_bytes == sum(map(len, WHEEL.values()))


@pytest.mark.parametrize("source_root", ["src/", "lib/python/", ""])
def test_modules_are_found_below_a_source_root(tmp_path: Path, source_root: str) -> None:
    files = {
        "t-1/pyproject.toml": b"",
        f"t-1/{source_root}trainer/__init__.py": b"",
        f"t-1/{source_root}trainer/sub/run.py": b"",
    }
    modules = inspect_archive(make_tar(tmp_path / "t-1.tar.gz", files)).modules
    assert "trainer.sub.run" in modules
    assert "sub.run" not in modules


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "a/../../evil", "C:/evil", "a\\..\\b"])
@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_paths_that_leave_the_archive_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    make = make_zip if suffix == ".zip" else make_tar
    path = make(tmp_path / f"t-1{suffix}", {**SDIST, name: b"x"})
    with pytest.raises(InvalidTrainerError, match="leaves the archive"):
        inspect_archive(path)


@pytest.mark.parametrize(
    "member",
    [
        link("trainer-1.0/l", "../../etc/passwd"),
        link("trainer-1.0/l", "/etc/passwd"),
        link("trainer-1.0/l", "../x", tarfile.LNKTYPE),
    ],
    ids=["relative", "absolute", "hard"],
)
def test_links_that_leave_the_archive_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(InvalidTrainerError, match="outside the archive"):
        inspect_archive(make_tar(tmp_path / "t-1.tar.gz", SDIST, member))


def test_links_within_the_archive_are_taken(tmp_path: Path) -> None:
    member = link("trainer-1.0/trainer/main.py", "../trainer/task.py")
    contents = inspect_archive(make_tar(tmp_path / "t-1.tar.gz", SDIST, member))
    assert "trainer.main" in contents.modules


def test_symbolic_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    path = make_zip(tmp_path / WHEEL_NAME, WHEEL)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("trainer/l")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "task.py")
    with pytest.raises(InvalidTrainerError, match="symbolic link"):
        inspect_archive(path)


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices_in_an_archive_are_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("trainer-1.0/dev")
    member.type = kind
    with pytest.raises(InvalidTrainerError, match="device or pipe"):
        inspect_archive(make_tar(tmp_path / "t-1.tar.gz", SDIST, member))


def zeros(megabytes: int) -> bytes:
    return bytes(megabytes * 1024**2)


def test_tar_bomb_is_refused(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "t-1.tar.gz", {"t-1/zeros": zeros(80)})
    with pytest.raises(InvalidTrainerError, match="bomb"):
        inspect_archive(path)


def test_tar_bomb_in_an_extended_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """tarfile reads such a header into memory at whatever length it states."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 7 * 1024**3
    path = tmp_path / "t-1.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(header.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(80):
            out.write(zeros(1))
    with pytest.raises(InvalidTrainerError, match="bomb"):
        inspect_archive(path)


def test_zip_bomb_is_refused(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "t-1.zip", {"t-1/zeros": zeros(80)})
    with pytest.raises(InvalidTrainerError, match="bomb"):
        inspect_archive(path)


def test_bytes_after_the_tar_count_too(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "t-1.tar.gz", SDIST)
    path.write_bytes(path.read_bytes() + gzip.compress(zeros(80)))
    with pytest.raises(InvalidTrainerError, match="bomb"):
        inspect_archive(path)


@pytest.mark.parametrize("name", ["t-1.tar.gz", "t-1.zip", WHEEL_NAME])
@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped"])
def test_damaged_archives_are_refused(tmp_path: Path, name: str, damage: str) -> None:
    files = SDIST if not name.endswith(".whl") else WHEEL
    files = {**files, "trainer-1.0/noise": bytes(range(256)) * 40}
    make = make_tar if name.endswith(".gz") else make_zip
    whole = make(tmp_path / name, files).read_bytes()
    middle = len(whole) // 2
    data = {
        "empty": b"",
        "text": b"<html>404 Not Found</html>",
        "cut": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :],
    }[damage]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidTrainerError):
        inspect_archive(tmp_path / name)


def test_archive_that_pip_cannot_install_is_refused(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "t.tar.gz", {"trainer/__init__.py": b"", "trainer/task.py": b""})
    with pytest.raises(InvalidTrainerError, match=r"neither a setup\.py nor a pyproject\.toml"):
        inspect_archive(path)


def test_wheel_without_its_metadata_is_refused(tmp_path: Path) -> None:
    files = {name: data for name, data in WHEEL.items() if not name.endswith("RECORD")}
    with pytest.raises(InvalidTrainerError, match="not a whole wheel"):
        inspect_archive(make_zip(tmp_path / WHEEL_NAME, files))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trainer.tar.bz2", "is not one of"),
        ("trainer.egg", "is not one of"),
        ("my trainer-1.tar.gz", "Rename"),
        ("trainer;rm.tar.gz", "Rename"),
        ("trainer.whl", "isn't named as a wheel must be"),
    ],
)
def test_file_names_that_a_service_cannot_take_are_refused(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidTrainerError, match=said):
        inspect_archive(tmp_path / name)


def test_missing_archives_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrainerError, match="doesn't exist"):
        inspect_archive(tmp_path / "t-1.tar.gz")
    with pytest.raises(InvalidTrainerError, match="is a folder"):
        inspect_archive(tmp_path)


def test_only_what_python_can_run_counts_as_a_module() -> None:
    files = ["a/__init__.py", "a/b.py", "a/my-script.py", "a/c/__main__.py", "a/x.txt", "top.py"]
    assert runnable_modules(files) == {"a.b", "a.c", "top"}


MODULES = frozenset({"trainer.task", "trainer.sub.run"})


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("trainer.tsk", "Did you mean 'trainer.task'"),
        ("trainer.sub", "no __main__.py"),
        ("trainer", "no __main__.py"),
        ("trainer/task.py", "Did you mean 'trainer.task'"),
        ("trainer.task;ls", "not a module's name"),
        ("", "not a module's name"),
        ("--help", "not a module's name"),
        ("zzz", "It holds trainer.sub.run, trainer.task"),
    ],
)
def test_module_that_cannot_run_is_refused_with_the_likely_cure(module: str, said: str) -> None:
    with pytest.raises(InvalidTrainerError, match=said):
        check_module(module, MODULES, "trainer-1.0.tar.gz")


def test_module_that_is_there_passes() -> None:
    check_module("trainer.sub.run", MODULES, "trainer-1.0.tar.gz")
