"""How words are compared: what was written with what the API knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest_word(word: str, known: Iterable[str]) -> str:
    """Return the known word nearest to ``word``, or an empty string where none is near.

    :param word: as somebody wrote it.
    :param known: the words that would have been right; compared without regard to case.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    nearest = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[nearest[0]] if nearest else ""


def enum_value(spelling: str, values: Sequence[str]) -> str:
    """Return the API's spelling of an enum value.

    gcloud writes enum values in lower case with dashes (``standard-1``, ``nvidia-tesla-t4``), the
    API in upper case with underscores; any mixture of both is understood.

    :param spelling: as somebody wrote it.
    :param values: the enum's values as the API spells them.
    :raises ValueError: it is none of them; the text names the nearest, or all of them.
    """
    folded = spelling.strip().upper().replace("-", "_")
    if folded in values:
        return folded
    nearest = nearest_word(folded, values)
    advice = f"did you mean {nearest!r}?" if nearest else f"one of {', '.join(values)} is expected"
    raise ValueError(f"{spelling!r} is not a value of this field; {advice}")
