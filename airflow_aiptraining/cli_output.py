"""What the commands print: results on standard output, notes on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def write(line: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{line}\n")


def note(line: str) -> None:
    """Print a line beside the result."""
    sys.stderr.write(f"{line}\n")


def write_json(value: Any) -> None:
    """Print a value as indented JSON."""
    write(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


def write_yaml(value: Mapping[str, Any]) -> None:
    """Print a resource as people read it."""
    import yaml

    text = yaml.safe_dump(
        dict(value), sort_keys=True, allow_unicode=True, default_flow_style=False, width=1000
    )
    sys.stdout.write(text)


def write_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their heads, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        write("  ".join(cells).rstrip())
