"""Parameters of MOSAIC."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from octane.config.parameters import StepParameters, parameter
from octane.config.types import Counts3, or_none

TileOrder = Literal[
    "rows-snake-top-left",
    "rows-snake-top-right",
    "rows-snake-bottom-left",
    "rows-snake-bottom-right",
    "rows-raster-top-left",
    "rows-raster-top-right",
    "rows-raster-bottom-left",
    "rows-raster-bottom-right",
    "columns-snake-top-left",
    "columns-snake-top-right",
    "columns-snake-bottom-left",
    "columns-snake-bottom-right",
    "columns-raster-top-left",
    "columns-raster-top-right",
    "columns-raster-bottom-left",
    "columns-raster-bottom-right",
]
TRANSPOSE: Literal["transpose"] = "transpose"
TileFlip = Literal["", "y", "x", "yx", "transpose", "transpose-y", "transpose-x", "transpose-yx"]


class TileParameters(StepParameters):
    """MOSAIC: the microscope's tiles in files, written as mosaic grids."""

    title: ClassVar[str] = "Tiles in files"
    needed: ClassVar[str] = (
        "If the input is tiles in files, and their names or places are not recognised."
    )
    prefix: ClassVar[str] = "tile_"
    searching: ClassVar[tuple[str, ...]] = (
        *("pattern", "rows", "columns", "order", "table", "flip"),
    )
    """Fields by which tiles are found; PREFLIGHT's tile list replaces them."""
    pattern: Annotated[str | None, BeforeValidator(or_none)] = parameter(
        None,
        "Names of the tiles' files, such as '{section}/tile_x{column}_y{row}.tif', with {section}, "
        "{row}, {column} or {tile}, {plane} and {channel}, and * for anything else. Unset: found "
        "if the names are unambiguous.",
        shown=True,
    )
    rows: int | None = parameter(
        None, "Rows of tiles in a section. Unset: from the names or places.", ge=1
    )
    columns: int | None = parameter(
        None, "Columns of tiles in a section. Unset: from the names or places.", ge=1
    )
    order: TileOrder | None = parameter(
        None,
        "Order in which numbered tiles ({tile}) were imaged: along rows or columns, in the same "
        "direction (raster) or in alternating ones (snake), from a corner.",
        shown=True,
    )
    table: Path | None = parameter(
        None,
        "File with the tiles' places: Fiji's TileConfiguration.txt, XML of BigStitcher or "
        "TeraStitcher, or a CSV table. Unset: such a file among the tiles, the tiles' own "
        "metadata, or else a grid with --overlap.",
    )
    flip: TileFlip = parameter(
        "",
        "Axes along which rows, columns and places run against the images. transpose: first "
        "exchange rows and columns, and y and x of the places. mosaic.py --dry_run proposes it; "
        "voxels are not changed.",
    )
    raw_shape: Annotated[Counts3 | None, BeforeValidator(or_none)] = parameter(
        None, "Voxels of a tile in a file without a header, in the order z y x."
    )
    raw_type: Annotated[str | None, BeforeValidator(or_none)] = parameter(
        None, "Type of the voxels of a file without a header, such as uint16, or >u2 (big-endian)."
    )

    @property
    def transpose(self) -> bool:
        """Whether rows and columns are exchanged before they are flipped."""
        return self.flip.startswith(TRANSPOSE)

    @property
    def flip_axes(self) -> str:
        """Axes that are flipped."""
        return self.flip.removeprefix(TRANSPOSE).lstrip("-")
