"""Which modules the sources in a package import."""

from __future__ import annotations

import functools
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

# RuntimeError: a zip that is encrypted, or compressed in a way that isn't known.
_UNREADABLE = (
    *(OSError, EOFError, RuntimeError, ValueError),
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
_LARGEST_FILE = 1 << 20
_MOST_FILES = 2000


@functools.lru_cache(maxsize=1024)
def imported(package: Path, modules: tuple[str, ...]) -> frozenset[str]:
    """Return those of *modules* that some file of *package* imports.

    Lines are looked at, not run or parsed: sources may be for another Python than this one.

    :param package: a ``.whl``, ``.zip`` or ``.tar.*`` whose bytes never change.
    :param modules: dotted names.
    """
    wanted = {module: _pattern(module) for module in modules}
    found: set[str] = set()
    for source in _sources(package):
        found.update(module for module, pattern in wanted.items() if pattern.search(source))
    return frozenset(found)


def _pattern(module: str) -> re.Pattern[str]:
    name = re.escape(module)
    forms = [rf"from[ \t]+{name}\b", rf"import[ \t]+(?:[\w., \t]+,[ \t]*)?{name}\b"]
    parent, _, last = module.rpartition(".")
    if parent:
        names = rf"[ \t(\w,]*\b{re.escape(last)}\b"
        forms.append(rf"from[ \t]+{re.escape(parent)}[ \t]+import\b{names}")
    return re.compile(rf"^[ \t]*(?:{'|'.join(forms)})", re.MULTILINE)


def _sources(package: Path) -> Iterator[str]:
    try:
        for data in _members(package):
            yield data.decode("utf-8", "replace")
    except _UNREADABLE:
        # What can't be read is told by the installer, which reads all of it.
        return


def _members(package: Path) -> Iterator[bytes]:
    left = _MOST_FILES
    if package.suffix in {".whl", ".zip"}:
        with zipfile.ZipFile(package) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".py") and left:
                    left -= 1
                    with archive.open(info) as file:
                        yield file.read(_LARGEST_FILE)
        return
    with tarfile.open(package) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".py") and left:
                left -= 1
                if opened := tar.extractfile(member):
                    yield opened.read(_LARGEST_FILE)
