"""Tiles of a mosaic grid, cut out of it again and written to files as other programs write them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk
from archives import pack
from foreign_images import foreign_image
from tifffile import imwrite

from octane.layout.mosaic import MosaicGrid, Position, Tile
from octane.store.image import Image

Tiles = dict[Tile, npt.NDArray]
Spacing = tuple[float, float, float]


def tiles_of(image: Image) -> Tiles:
    """Voxels (z, y, x) of the tiles of a mosaic grid."""
    grid = MosaicGrid.of(image)
    return {tile: image.read(grid.region(tile)) for tile in grid.tiles}


def write_ome_tiff(
    path: Path,
    voxels: npt.NDArray,
    spacing: Spacing,
    position: Position | None = None,
    channels: Sequence[str] = (),
) -> Path:
    """Write an OME-TIFF; its planes state ``position`` (y, x) in micrometres."""
    path = path.with_name(f"{path.name}.ome.tif")
    metadata: dict[str, object] = {"axes": "CZYX" if channels else "ZYX"}
    for axis, length in zip("ZYX", spacing, strict=True):
        metadata |= {f"PhysicalSize{axis}": length, f"PhysicalSize{axis}Unit": "µm"}
    if position is not None:
        count = int(np.prod(voxels.shape[:-2]))
        plane = {f"Position{a}": [p] * count for a, p in zip("YX", position, strict=True)}
        metadata["Plane"] = plane | {f"Position{axis}Unit": ["µm"] * count for axis in "YX"}
    if channels:
        metadata["Channel"] = {"Name": [*channels]}
    imwrite(path, voxels, ome=True, metadata=metadata, photometric="minisblack")
    return path


def write_tiff(path: Path, voxels: npt.NDArray, _: Spacing, **options) -> Path:
    """Write a TIFF that states nothing; ``options`` are tifffile's."""
    path = path.with_name(f"{path.name}.tif")
    imwrite(path, voxels, photometric="minisblack", metadata=None, **options)
    return path


def write_imagej(path: Path, voxels: npt.NDArray, spacing: Spacing) -> Path:
    """Write a TIFF as ImageJ does."""
    path = path.with_name(f"{path.name}.tif")
    z, y, x = spacing
    metadata = {"axes": "ZYX", "spacing": z, "unit": "um"}
    imwrite(path, voxels, imagej=True, resolution=(1 / x, 1 / y), metadata=metadata)
    return path


def write_planes(path: Path, voxels: npt.NDArray, spacing: Spacing) -> Path:
    """Write a TIFF per plane, numbered from 1."""
    for number, plane in enumerate(voxels, 1):
        write_tiff(path.with_name(f"{path.name}_z{number:03d}"), plane, spacing)
    return path


def write_png(path: Path, voxels: npt.NDArray, _: Spacing) -> Path:
    """Write a PNG per plane, numbered from 1."""
    for number, plane in enumerate(voxels, 1):
        file = path.with_name(f"{path.name}_z{number:03d}.png")
        sitk.WriteImage(sitk.GetImageFromArray(plane), str(file))
    return path


def write_itk(suffix: str) -> Callable[[Path, npt.NDArray, Spacing], Path]:
    """Writer of a format of ITK, whose lengths are in millimetres."""

    def write(path: Path, voxels: npt.NDArray, spacing: Spacing) -> Path:
        image = sitk.GetImageFromArray(voxels)
        image.SetSpacing([length / 1000 for length in reversed(spacing)])
        path = path.with_name(path.name + suffix)
        sitk.WriteImage(image, str(path))
        return path

    return write


def write_store(
    path: Path, voxels: npt.NDArray, spacing: Spacing, position: Position | None = None
) -> Path:
    """Write an OME-Zarr 0.4 whose translation is ``position`` (y, x)."""
    transforms = [{"type": "scale", "scale": list(spacing)}]
    if position is not None:
        transforms.append({"type": "translation", "translation": [0.0, *position]})
    path = path.with_name(f"{path.name}.ome.zarr")
    return foreign_image(path, voxels, transforms=transforms, chunks=(1, 16, 16))


def write_archive(
    path: Path, voxels: npt.NDArray, spacing: Spacing, position: Position | None = None
) -> Path:
    """Write the same into one file."""
    store = write_store(path, voxels, spacing, position)
    packed = pack(store)
    rmtree(store)
    return packed


def write_raw(path: Path, voxels: npt.NDArray, _: Spacing) -> Path:
    """Write voxels alone, big-endian."""
    path = path.with_name(f"{path.name}.raw")
    voxels.astype(voxels.dtype.newbyteorder(">")).tofile(path)
    return path


def write_group(
    folder: Path, tiles: Tiles, spacing: Spacing, positions: dict[Tile, Position]
) -> Path:
    """Write the images of a group as bioformats2raw lays them out, numbered from 0."""
    (folder / "OME").mkdir(parents=True)
    (folder / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
    (folder / ".zattrs").write_text(json.dumps({"bioformats2raw.layout": 3}))
    images = []
    for number, (tile, voxels) in enumerate(tiles.items()):
        transforms = [{"type": "scale", "scale": list(spacing)}]
        foreign_image(folder / str(number), voxels, transforms=transforms, chunks=(1, 16, 16))
        y, x = positions[tile]
        images.append(
            f'<Image ID="Image:{number}"><Pixels ID="Pixels:{number}"><Plane TheZ="0" TheC="0" '
            f'TheT="0" PositionY="{y}" PositionYUnit="µm" PositionX="{x}" PositionXUnit="µm"/>'
            "</Pixels></Image>"
        )
    schema = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
    xml = f'<?xml version="1.0"?><OME xmlns="{schema}">{"".join(images)}</OME>'
    (folder / "OME" / "METADATA.ome.xml").write_text(xml, encoding="utf-8")
    return folder


def write_set(
    folder: Path,
    tiles: Tiles,
    spacing: Spacing,
    positions: dict[Tile, Position],
    channels: Sequence[str] = (),
    pattern: str = "set_s{number}",
    described: str = "",
) -> Path:
    """Write a set of OME-TIFFs as Bio-Formats does: a tile per file, all described in each.

    With ``channels``, the tiles are (c, z, y, x), with a file for each channel. ``pattern`` names
    the files by number, row and column; all but ``described`` are described in it only, as
    Micro-Manager does it. It may be a file without voxels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images, files = [], {}
    for number, (tile, voxels) in enumerate(tiles.items()):
        (z, y, x), (nz, ny, nx), place = spacing, voxels.shape[-3:], positions[tile]
        planes = ""
        for c, stack in enumerate(voxels.reshape(-1, nz, ny, nx)):
            name = pattern.format(number=number, row=tile[0], column=tile[1])
            name += f"{f'_{channels[c]}' if channels else ''}.ome.tif"
            unique = f"urn:uuid:{len(files)}"
            files[name] = unique, stack
            planes += "".join(
                f'<TiffData FirstC="{c}" FirstT="0" FirstZ="{k}" IFD="{k}" PlaneCount="1">'
                f'<UUID FileName="{name}">{unique}</UUID></TiffData>'
                for k in range(nz)
            )
        named = "".join(
            f'<Channel ID="Channel:{number}:{c}" Name="{name}"/>' for c, name in enumerate(channels)
        )
        images.append(
            f'<Image ID="Image:{number}"><Pixels ID="Pixels:{number}" DimensionOrder="XYCZT" '
            f'Type="{voxels.dtype}" SizeX="{nx}" SizeY="{ny}" SizeZ="{nz}" '
            f'SizeC="{len(channels) or 1}" SizeT="1" '
            f'PhysicalSizeX="{x}" PhysicalSizeY="{y}" PhysicalSizeZ="{z}">'
            f'{named or f"""<Channel ID="Channel:{number}:0"/>"""}{planes}'
            f'<Plane TheZ="0" TheC="0" TheT="0" '
            f'PositionY="{place[0]}" PositionYUnit="µm" PositionX="{place[1]}" '
            'PositionXUnit="µm"/></Pixels></Image>'
        )
    schema = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
    if described and described not in files:
        text = f'<OME xmlns="{schema}" UUID="urn:uuid:all">{"".join(images)}</OME>'
        (folder / described).write_text(text, encoding="utf-8")
    for name, (unique, stack) in files.items():
        is_other = described not in ("", name)
        binary = f'<BinaryOnly MetadataFile="{described}" UUID="urn:uuid:all"/>'
        inner = binary if is_other else "".join(images)
        xml = f'<OME xmlns="{schema}" UUID="{unique}">{inner}</OME>'
        text = f'<?xml version="1.0" encoding="UTF-8"?>{xml}'.encode()
        imwrite(folder / name, stack, photometric="minisblack", metadata=None, description=text)
    return folder
