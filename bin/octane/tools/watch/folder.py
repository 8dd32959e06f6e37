"""What a watched folder holds: the files of each section, with their sizes and times.

It is looked at again and again, on disks that answer slowly. So names are listed, but sizes and
times are read only where something may change.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from octane.core.fingerprint import IGNORED, digest
from octane.layout.sections import section_number
from octane.processes.mosaic.names import NamedFile, NamePattern, find_pattern
from octane.processes.mosaic.section_tiles import section_name
from octane.processes.mosaic.tile_files import DEEPEST, PNG, RAW
from octane.store.chunks import is_store
from octane.store.formats.itk_files import READ_SUFFIXES
from octane.store.volumes import bare_name


class TileState(NamedTuple):
    """A tile's bytes, its time of change in nanoseconds, and its number of files."""

    size: int
    time: int
    files: int = 1


States = Mapping[str, TileState]
"""States of a section's tiles, by their names in the folder."""


@dataclass(frozen=True)
class Look:
    """A look at a folder.

    Attributes
    ----------
    names
        Names of the tiles of each section, by its number.
    states
        States of the tiles of those sections that were looked at.
    flags
        Numbers of the sections that the microscope calls complete.
    """

    names: Mapping[int, Collection[str]]
    states: Mapping[int, States]
    flags: Collection[int] = ()


def fingerprint_of(states: States) -> str:
    """Fingerprint of a section's files."""
    return digest(sorted(f"{name} {' '.join(map(str, state))}" for name, state in states.items()))


@dataclass
class Folder:
    """A folder of tiles or of mosaics, and what is known of it.

    Attributes
    ----------
    path
        The folder.
    pattern
        The user's --tile_pattern, None to find it.
    flag
        Pattern of the files by which the microscope says that a section is complete, or None.
    is_raw
        Tiles are files without a header.
    outdir
        Folder of the results, which may lie in it and holds no tiles.
    """

    path: Path
    pattern: NamePattern | None = None
    flag: NamePattern | None = None
    is_raw: bool = False
    outdir: Path | None = None
    are_mosaics: bool = False
    _found_pattern: NamePattern | None = field(default=None, init=False)
    _files: dict[str, NamedFile] = field(default_factory=dict, init=False)
    _stores: set[str] = field(default_factory=set, init=False)
    _inside: dict[str, list[str]] = field(default_factory=dict, init=False)

    def look(self, finished: Collection[int] = (), again: Collection[int] = ()) -> Look:
        """Look at all sections but the ``finished`` ones; of these, only at those of ``again``.

        Raises an OSError if the folder cannot be read, and an InputError if names do not say which
        section they belong to.
        """
        at_rest = {*finished} - {*again}
        names = self._names("", 0, at_rest)
        tiles = [name for name in names if self._is_tile(name)]
        top = [name for name in tiles if name in self._stores and "/" not in name]
        self.are_mosaics = bool(top) and self.pattern is None and not self.is_raw
        tiles_of: dict[int, list[str]] = {}
        for name in top if self.are_mosaics else self._pattern_tiles(tiles):
            number = section_number(name) or 1 if self.are_mosaics else self._files[name].section
            tiles_of.setdefault(number, []).append(name)
        tiles_of = {number: sorted(tiles_of[number]) for number in sorted(tiles_of)}
        looked = tiles_of.keys() - at_rest
        states = {number: self._states(tiles_of[number]) for number in sorted(looked)}
        return Look(tiles_of, states, self._flags(names))

    def name_of(self, number: int, names: Collection[str]) -> str:
        """Name of a section in the workflow's tasks."""
        if self.are_mosaics:
            return bare_name(Path(min(names)))
        return section_name(number)

    def key_of(self, name: str) -> tuple[object, ...]:
        """What tells a file from the others of its section."""
        file = self._files.get(name)
        return (*file.tile_key[1:], file.plane, file.channel) if file else (name,)

    def _names(self, folder: str, depth: int, at_rest: Collection[int]) -> list[str]:
        """Names of all files and stores; those of a folder of sections at rest from memory."""
        names: list[str] = []
        with os.scandir(self.path / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if IGNORED.fullmatch(entry.name):
                    continue
                if not entry.is_dir():
                    names.append(name)
                elif Path(entry.path) == self.outdir:
                    continue
                elif name in self._stores or is_store(Path(entry.path)):
                    self._stores.add(name)
                    names.append(name)
                elif depth < DEEPEST:
                    names += self._below(f"{name}/", depth + 1, at_rest)
        return names

    def _below(self, folder: str, depth: int, at_rest: Collection[int]) -> list[str]:
        known = self._inside.get(folder)
        sections = {self._files[n].section for n in known or () if n in self._files}
        if known is None or not sections or sections - {*at_rest}:
            # It may have been renamed just now.
            with suppress(FileNotFoundError):
                known = self._names(folder, depth, at_rest)
        self._inside[folder] = known or []
        return self._inside[folder]

    def _is_tile(self, name: str) -> bool:
        if self.pattern is not None:
            return self.pattern.match(name) is not None
        return name in self._stores or name.lower().endswith(
            (*READ_SUFFIXES, PNG, *(RAW * self.is_raw))
        )

    def _pattern_tiles(self, names: Sequence[str]) -> Iterable[str]:
        """Names of tiles at the least depth, whose sections are known then."""
        depth = min((name.count("/") for name in names), default=0)
        at_depth = [name for name in names if name.count("/") == depth]
        new = [name for name in at_depth if name not in self._files]
        pattern = self.pattern or self._found_pattern
        if new and (pattern is None or not all(pattern.match(name) for name in new)):
            pattern, self._files = find_pattern(at_depth), {}
        if pattern is not None and (pattern is not self._found_pattern or new):
            if "section" not in pattern.fields and self.pattern is None:
                # With further sections another number varies.
                pattern = find_pattern(at_depth)
                new = at_depth
            self._found_pattern = pattern
            known = self._files
            self._files = {
                n: known[n] if n in known and n not in new else NamedFile.read(n, pattern)
                for n in at_depth
            }
        return at_depth

    def _states(self, names: Iterable[str]) -> dict[str, TileState]:
        states = {}
        for name in names:
            # It may have been renamed just now.
            with suppress(FileNotFoundError):
                states[name] = self._state(name)
        return states

    def _state(self, name: str) -> TileState:
        if name not in self._stores:
            status = (self.path / name).stat()
            return TileState(status.st_size, status.st_mtime_ns)
        size = time = count = 0
        for root, _, files in os.walk(self.path / name, followlinks=True):
            for file in files:
                status = os.stat(os.path.join(root, file))  # noqa: PTH116, PTH118 - many chunks
                size, time = size + status.st_size, max(time, status.st_mtime_ns)
                count += 1
        return TileState(size, time, count)

    def _flags(self, names: Iterable[str]) -> set[int]:
        if self.flag is None:
            return set()
        matches = (self.flag.match(name) for name in names)
        return {int(match["section"]) for match in matches if match is not None}
