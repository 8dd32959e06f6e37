"""Inputs that changed since PREFLIGHT looked at them."""

from __future__ import annotations

from pathlib import Path

from octane.core.fingerprint import fingerprint


def changed_files(states: list[dict]) -> list[str]:
    """Paths of the files whose ``parts`` do not have their ``state`` any more.

    A task may have read other chunks of them than those that it is cached by, and its results would
    be silently wrong.
    """
    return [*dict.fromkeys(own["path"] for own in states if not _is_same(own))]


def _is_same(known: dict) -> bool:
    try:
        return fingerprint(Path(known["path"]), known["parts"]) == known["state"]
    except OSError:
        return False
