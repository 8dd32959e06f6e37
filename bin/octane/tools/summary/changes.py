"""Inputs that changed since PREFLIGHT looked at them."""

from __future__ import annotations

from pathlib import Path

from octane.core.fingerprint import fingerprint


def changed_files(states: list[dict]) -> list[str]:
    """Paths of the files whose ``parts`` do not have their ``state`` any more.

    A task may have read other chunks of them than those that it is cached by, and its results would
    be silently wrong.
    """
    return [*dict.fromkeys(state["path"] for state in states if not _is_same(state))]


def _is_same(state: dict) -> bool:
    try:
        return fingerprint(Path(state["path"]), state["parts"]) == state["state"]
    except OSError:
        return False
