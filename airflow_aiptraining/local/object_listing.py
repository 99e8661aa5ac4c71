"""Listing a bucket: prefix, delimiter, offsets, globs, pages.

With a delimiter the scan jumps over everything under a prefix that is already in the answer, so a
folder view of a bucket costs as many look-ups as it shows lines.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_PAGE = 1000
"""Names in one page at most, as in the JSON API."""


@dataclass(frozen=True)
class Query:
    """What ``objects.list`` asks.

    :param start: first name, inclusive (``startOffset``, or where the page before ended).
    :param end: end of names, exclusive; empty: none.
    :param glob: ``matchGlob``; empty: everything.
    :param limit: objects and prefixes in the page together, 1 … ``MAX_PAGE``.
    :param include_trailing: an object whose name ends in the delimiter is in both lists.
    """

    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    end: str = ""
    glob: str = ""
    limit: int = MAX_PAGE
    include_trailing: bool = False


@dataclass
class Page(Generic[T]):
    """One page.

    :param next: ``Query.start`` of the page after; None: this is the last.
    """

    objects: list[T] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    next: str | None = None


def list_page(
    db: sqlite3.Connection,
    bucket: str,
    query: Query,
    columns: str,
    object_of: Callable[[sqlite3.Row], T],
) -> Page[T]:
    """Return one page of a bucket's objects.

    :param columns: what ``object_of`` reads.
    """
    page: Page[T] = Page()
    glob = re.compile(glob_pattern(query.glob), re.DOTALL) if query.glob else None
    low = max(query.prefix, query.start)
    ends = [end for end in (query.end, after(query.prefix)) if end]
    condition = "bucket = ? AND name >= ?" + (" AND name < ?" if ends else "")
    select = f"SELECT {columns} FROM objects WHERE {condition} ORDER BY name"  # noqa: S608 - constants
    limits = [min(ends)] if ends else []

    def collect() -> bool:
        """Read on from ``low``; True: jump, False: nothing is left."""
        nonlocal low
        for row in db.execute(select, [bucket, low, *limits]):
            name: str = row["name"]
            if len(page.objects) + len(page.prefixes) >= query.limit:
                page.next = low
                return False
            folder = _folder(name, query)
            if folder is None:
                low = name + "\x00"
                if glob is None or glob.fullmatch(name):
                    page.objects.append(object_of(row))
                continue
            if glob is None or glob.fullmatch(folder) or glob.fullmatch(folder.rstrip("/")):
                page.prefixes.append(folder)
                if query.include_trailing and name == folder:
                    page.objects.append(object_of(row))
            beyond = after(folder)
            low = beyond or low
            return beyond is not None
        return False

    while collect():
        pass
    return page


def _folder(name: str, query: Query) -> str | None:
    """Return the prefix that stands for this name, or None."""
    if not query.delimiter:
        return None
    end = name.find(query.delimiter, len(query.prefix))
    return None if end < 0 else name[: end + len(query.delimiter)]


def after(prefix: str) -> str | None:
    """Return the least text that sorts after everything that begins with ``prefix``.

    :return: None if there is no such text (an empty prefix, or only U+10FFFF).
    """
    while prefix:
        last = ord(prefix[-1])
        prefix = prefix[:-1]
        if last < 0x10FFFF:
            # Surrogates are no characters: U+D7FF is followed by U+E000.
            return prefix + chr(0xE000 if last == 0xD7FF else last + 1)
    return None


def glob_pattern(glob: str) -> str:
    """Return a regular expression for a ``matchGlob``.

    ``*`` and ``?`` stay within a folder, ``**`` crosses them, ``[a-z]`` and ``[!a-z]`` are sets,
    ``{a,b}`` alternatives, a backslash takes the next character literally.

    Source: Cloud Storage documentation, "List objects using glob".
    """
    pattern: list[str] = []
    depth = 0
    position = 0
    while position < len(glob):
        char = glob[position]
        position += 1
        if char == "*":
            if glob.startswith("*", position):
                position += 1
                pattern.append(".*")
            else:
                pattern.append("[^/]*")
        elif char == "?":
            pattern.append("[^/]")
        elif char == "[" and (end := glob.find("]", position + 1)) > 0:
            chosen = glob[position:end].replace("\\", "\\\\").replace("[", "\\[")
            position = end + 1
            if chosen[0] in "!^":
                chosen = "^" + chosen[1:]
            pattern.append(f"[{chosen}]")
        elif char == "{" and "}" in glob[position:]:
            depth += 1
            pattern.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            pattern.append(")")
        elif char == "," and depth:
            pattern.append("|")
        elif char == "\\" and position < len(glob):
            pattern.append(re.escape(glob[position]))
            position += 1
        else:
            pattern.append(re.escape(char))
    return "".join(pattern) + ")" * depth
