"""The reference channel: the first that shows about as much structure as any other."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octane.compare.comparison import LIKELY_CORRELATION
from octane.compare.orientation import find_orientation
from octane.compare.overlap import middle_tiles
from octane.core.filters import gaussian
from octane.core.geometry import Grid, Region
from octane.core.records import Decision
from octane.processes.preflight.decisions import FIRST_SECTIONS, SectionSource
from octane.store.channels import ALL, is_nearest
from octane.store.volumes import Volume

NOT_AVERAGED = re.compile("angle|axis|orient|azimuth|phase|label|mask|segment", re.IGNORECASE)
"""Words in the names of channels whose mean may be meaningless."""
NEAR_BEST = 0.9
"""Part of the highest score that counts as much as that: the order of channels decides then."""
LEAST_SCORE = 0.1
"""Score below which nothing is seen, and the first channel is taken."""
BAND_SIGMAS = (1.0, 8.0)
"""Standard deviations of the difference of Gaussians, pixels."""
LARGEST_BLOCK = (32, 512, 512)
"""Most voxels of a volume that are compared."""


@dataclass(frozen=True)
class Choice:
    """Channels among which the reference is: their numbers by the words that choose them.

    ``nearest`` are those whose values are never averaged, and ``is_chosen`` tells whether the user
    chose these for the results.
    """

    words: Mapping[str, int]
    nearest: Collection[str] = ()
    is_chosen: bool = False

    @property
    def suspects(self) -> list[str]:
        """Channels that may hold angles or labels by their names, although nobody says so."""
        return [
            word for word in self.words if NOT_AVERAGED.search(word) and word not in self.nearest
        ]

    @property
    def result_channels(self) -> str | None:
        """The channels of the results as --channels names them; None as the user chose."""
        kept = [str(number) for word, number in self.words.items() if word not in self.suspects]
        if self.is_chosen or len(kept) == 1:
            return None
        return " ".join(kept) if self.suspects and kept else ALL

    def decide(self, scores: Mapping[str, float]) -> tuple[str, Decision]:
        """Word that chooses the reference channel by ``scores``, and how it was decided."""
        known = {word: score for word, score in scores.items() if word not in self.suspects}
        known = known or dict.fromkeys(self.words, 0.0)
        most = max(known.values())
        enough = NEAR_BEST * most if most >= LEAST_SCORE else -1.0
        word = next(word for word, score in known.items() if score >= enough)
        figures = ", ".join(f"{score:.2f} in {other}" for other, score in known.items())
        done = f"places are those of {word}"
        if self.suspects and not self.is_chosen:
            names = " and ".join(self.suspects)
            done += f"; without {names}, which may hold angles or labels (see --channel_kind)"
        written = (
            ""
            if self.result_channels is None
            else f" --channels {shlex.quote(self.result_channels)}"
        )
        flag = f"--channel {shlex.quote(word)}{written}"
        evidence = f"correlation of what is seen twice: {figures}"
        return word, Decision(subject="Channels", evidence=evidence, done=done, flag=flag)


def tile_scores(sections: Mapping[str, Sequence[SectionSource]]) -> dict[str, float]:
    """Correlation of neighbouring tiles in each channel, in the first section where they fit.

    ``sections`` are those of each channel, in one order; channels without are passed over. If
    neighbours fit in none, a tile is compared with itself.
    """
    sections = {word: sources for word, sources in sections.items() if sources}
    by_section = [*zip(*sections.values(), strict=True)]
    for sources in by_section[:FIRST_SECTIONS]:
        scores = dict(zip(sections, map(_seam_score, sources), strict=True))
        if max(scores.values()) >= LIKELY_CORRELATION:
            return scores
    middle = {word: sources[len(sources) // 2] for word, sources in sections.items()}
    tiles = {
        word: middle_tiles(source.grid, source.tile_bytes)[0] for word, source in middle.items()
    }
    return {word: plane_score(source.read(tiles[word])) for word, source in middle.items()}


def volume_scores(volumes: Mapping[str, Volume]) -> dict[str, float]:
    """Score of the middle of a volume in each channel."""
    return {
        word: plane_score(volume.read(_middle_block(volume.grid)))
        for word, volume in volumes.items()
        if not is_nearest(volume.attributes)
    }


def plane_score(voxels: npt.NDArray) -> float:
    """Correlation of the structure in means over even and odd planes (z, y, x): noise has none."""
    if len(voxels) == 1:
        return 0.0
    means = [np.abs(voxels[k::2]).mean(axis=0, dtype=np.float64) for k in (0, 1)]
    even, odd = (gaussian(mean, BAND_SIGMAS[0]) - gaussian(mean, BAND_SIGMAS[1]) for mean in means)
    power = float(np.sum(even**2) * np.sum(odd**2)) ** 0.5
    return float(np.sum(even * odd)) / power if power > 0 else 0.0


def _seam_score(source: SectionSource) -> float:
    orientation = find_orientation(source.means) if len(source.means) > 1 else None
    if orientation is None or orientation.has_pattern or not orientation.is_clear:
        return 0.0
    return orientation.fit.best * orientation.fit.agreeing


def _middle_block(grid: Grid) -> Region:
    sizes = [min(n, most) for n, most in zip(grid.shape, LARGEST_BLOCK, strict=True)]
    firsts = [(n - size) // 2 for n, size in zip(grid.shape, sizes, strict=True)]
    z, y, x = (slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))
    return z, y, x
