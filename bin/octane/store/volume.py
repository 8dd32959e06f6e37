"""What a step reads: a volume of any format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from octane.core.geometry import Grid, Region
from octane.core.orientation import UNSTATED, orientation_of

if TYPE_CHECKING:
    from octane.store.formats.itk_files import ItkGeometry


class Volume(Protocol):
    """A volume (z, y, x), lengths in micrometres, whose voxels are read on demand."""

    @property
    def path(self) -> Path:
        """File or store."""
        ...

    @property
    def grid(self) -> Grid:
        """Voxels, their size and the place of the first one."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels."""
        ...

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Shape of the blocks that are best read at once."""
        ...

    @property
    def attributes(self) -> dict[str, object]:
        """Octane's own: the orientation, the channel, sections and the like."""
        ...

    @property
    def channels(self) -> Sequence[str]:
        """Names of all channels in the file, empty for those without one."""
        ...

    @property
    def overruled(self) -> str:
        """Sentences on what the file states and the user replaces, or octane does not use."""
        ...

    @property
    def geometry(self) -> ItkGeometry | None:
        """Geometry that a file of ITK states, also an oblique one; None in other formats."""
        ...

    @property
    def is_placed(self) -> bool:
        """True if the format states where the volume lies."""
        ...

    @property
    def is_plain(self) -> bool:
        """True if a part can be read again without decoding."""
        ...

    @property
    def whole_bytes(self) -> int:
        """Memory that the voxels keep if the file is read whole; else 0."""
        ...

    @property
    def decoding(self) -> int:
        """Memory for decoding a plane, once; 0 if none is compressed."""
        ...

    @property
    def worker_bytes(self) -> int:
        """Memory of a worker for decoding, besides the voxels that it reads."""
        ...

    @property
    def access(self) -> str:
        """How voxels are read, for the log."""
        ...

    def load(self, folder: Path | None = None) -> None:
        """Read a file that is read whole, and decode a compressed TIFF into ``folder``."""
        ...

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Read the voxels of ``region``, into ``out`` if given."""
        ...


def is_oblique(volume: Volume) -> bool:
    """Tell whether a file states axes that are not along those of the subject."""
    stated = volume.geometry
    return stated is not None and orientation_of(stated.directions) == UNSTATED
