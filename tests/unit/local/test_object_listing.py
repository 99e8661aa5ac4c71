"""Listing: the jumping scan answers what a plain one would."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_aiptraining.local.object_listing import Query, after, glob_pattern, list_page

NAMES = st.text(st.sampled_from("ab/-0é\ud7ff\U0010ffff"), min_size=1, max_size=5)
PARTS = st.text(st.sampled_from("ab/-é"), max_size=3)


def bucket_of(names: Sequence[str]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.row_factory = sqlite3.Row
    db.execute("CREATE TABLE objects (bucket TEXT, name TEXT, PRIMARY KEY (bucket, name))")
    db.executemany("INSERT INTO objects VALUES ('b', ?)", [(name,) for name in names])
    return db


def listed(db: sqlite3.Connection, query: Query) -> tuple[list[str], list[str]]:
    names: list[str] = []
    prefixes: list[str] = []
    while True:
        page = list_page(db, "b", query, "name", lambda row: str(row["name"]))
        assert len(page.objects) + len(page.prefixes) <= query.limit + query.include_trailing
        names += page.objects
        prefixes += page.prefixes
        if page.next is None:
            return names, prefixes
        query = Query(**{**query.__dict__, "start": page.next})


@given(
    names=st.sets(NAMES, max_size=12),
    prefix=PARTS,
    delimiter=st.sampled_from(["", "/", "-", "b/"]),
    start=PARTS,
    end=PARTS,
    limit=st.integers(1, 5),
    trailing=st.booleans(),
)
def test_list_is_what_a_plain_scan_finds(
    names: set[str],
    prefix: str,
    delimiter: str,
    start: str,
    end: str,
    limit: int,
    trailing: bool,
) -> None:
    db = bucket_of(sorted(names))
    asked = Query(prefix, delimiter, start, end, limit=limit, include_trailing=trailing)

    objects: list[str] = []
    folders: set[str] = set()
    for name in sorted(names):
        if not name.startswith(prefix) or name < start or (end and name >= end):
            continue
        found = name.find(delimiter, len(prefix)) if delimiter else -1
        if found < 0:
            objects.append(name)
            continue
        folder = name[: found + len(delimiter)]
        folders.add(folder)
        if trailing and name == folder:
            objects.append(name)

    assert listed(db, asked) == (objects, sorted(folders))
    db.close()


@given(prefix=NAMES, name=NAMES)
def test_after_is_the_end_of_a_prefix(prefix: str, name: str) -> None:
    end = after(prefix)

    inside = name >= prefix and (end is None or name < end)
    assert inside == name.startswith(prefix) or end is None


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("*.csv", ["a.csv", ".csv"], ["a/b.csv", "acsv"]),
        ("**.csv", ["a.csv", "a/b.csv"], ["a.csvx"]),
        ("a/*/c", ["a/b/c", "a//c"], ["a/b/x/c"]),
        ("a/**/c", ["a/b/c", "a/b/x/c"], ["a/c"]),
        ("a?c", ["abc", "aüc"], ["a/c", "ac"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "a-x"]),
        ("[!a-c]x", ["dx"], ["ax"]),
        ("[]]x", ["]x"], ["x"]),
        ("{ab,c*}/x", ["ab/x", "c1/x"], ["a/x"]),
        (r"a\*", ["a*"], ["ab"]),
        ("a{b", ["a{b"], ["ab"]),
        ("a,b}", ["a,b}"], ["a"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)"]),
        ("line*", ["line\x0bx"], ["other"]),
    ],
)
def test_globs(glob: str, matching: list[str], other: list[str]) -> None:
    pattern = re.compile(glob_pattern(glob), re.DOTALL)

    assert [name for name in [*matching, *other] if pattern.fullmatch(name)] == matching
