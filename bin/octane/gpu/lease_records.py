"""What a slot or a place in the queue says of who has it: for people and for the memory account."""

from __future__ import annotations

import json
import math
import os
import pwd
from dataclasses import asdict, dataclass, field

from octane.gpu.processes import Identity, boot_id, identity

__all__ = ["RECORD_SIZE", "Record"]

RECORD_SIZE = 8192
"""Bytes of a file, always written whole: 56 MIG instances are 2.5 kB of UUIDs."""

LONGEST_SUBJECT = 200


@dataclass(frozen=True)
class Record:
    """Who holds or waits, and for what.

    Attributes
    ----------
    pid, start : int
        The process: see :class:`octane.gpu.processes.Identity`.
    boot : str
        The boot that the other figures belong to.
    uid : int
        The user.
    subject : str
        What it works on, in the user's words.
    required : int
        Bytes of GPU memory that it asked for.
    slots : int
        How many leases it allows on its GPU, its own among them.
    since : float
        When it was granted, or when it began to wait, seconds of the system's monotonic clock.
    seen : float
        When a waiter last looked.
    uuids : tuple of str
        The GPUs that a waiter may use.
    """

    required: int
    slots: int
    since: float
    subject: str = ""
    seen: float = 0.0
    uuids: tuple[str, ...] = ()
    pid: int = field(default_factory=lambda: identity().pid)
    start: int = field(default_factory=lambda: identity().start)
    boot: str = field(default_factory=boot_id)
    uid: int = field(default_factory=os.getuid)

    @property
    def identity(self) -> Identity:
        """The process that wrote it."""
        return Identity(self.pid, self.start)

    @property
    def user(self) -> str:
        """The user's name, or the number where there is none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def packed(self) -> bytes:
        """As a file holds it: JSON, filled up to the full length."""
        text = json.dumps(asdict(self)).encode()
        if len(text) >= RECORD_SIZE:
            raise ValueError(f"a record of {len(text)} bytes for a file of {RECORD_SIZE}")
        return text.ljust(RECORD_SIZE - 1) + b"\n"

    @classmethod
    def unpacked(cls, content: bytes) -> Record | None:
        """Read a record; None where it is not one, or was written in another boot.

        Anybody can write into the file, so nothing is believed without a look at it.
        """
        try:
            found = json.loads(content)
            record = cls(
                required=int(found["required"]),
                slots=int(found["slots"]),
                since=float(found["since"]),
                subject=_shown(str(found["subject"])),
                seen=float(found["seen"]),
                uuids=tuple(str(uuid) for uuid in found["uuids"]),
                pid=int(found["pid"]),
                start=int(found["start"]),
                boot=str(found["boot"]),
                uid=int(found["uid"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        sound = record.required >= 0 and record.slots >= 1 and 0 <= record.uid < 2**32
        finite = math.isfinite(record.since) and math.isfinite(record.seen)
        return record if sound and finite and record.boot == boot_id() else None


def _shown(text: str) -> str:
    """Without what could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST_SUBJECT])
