"""Tables of tiles' places as other programs write them.

``places`` are (file, z, y, x), in voxels or micrometres as the format has it.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Places = list[tuple[str, float, float, float]]


def write_fiji(path: Path, places: Places, *, dimensions: int = 2) -> Path:
    """Write a TileConfiguration.txt; positions in voxels."""
    lines = [
        "# Define the number of dimensions we are working on",
        f"dim = {dimensions}",
        "",
        "# Define the image coordinates",
    ]
    for file, z, y, x in places:
        point = (x, y, z)[:dimensions]
        lines.append(f"{file}; ; ({', '.join(map(repr, point))})")
    path.write_text("\n".join([*lines, ""]))
    return path


def affine(z: float = 0, y: float = 0, x: float = 0, scale=(1.0, 1.0, 1.0)) -> str:
    """Numbers of an affine, in BigDataViewer's order x y z, that scales by z y x and moves."""
    sz, sy, sx = scale
    return " ".join(map(repr, (sx, 0, 0, x, 0, sy, 0, y, 0, 0, sz, z)))


def transform(name: str, numbers: str) -> str:
    """A ViewTransform."""
    return (
        f'<ViewTransform type="affine"><Name>{name}</Name><affine>{numbers}</affine>'
        "</ViewTransform>"
    )


def write_bdv(
    path: Path,
    places: Places,
    *,
    loader: str = "filemap2",
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0),
    channels: int = 1,
    angles: int = 1,
    changed: dict[int, str] | None = None,
    extra: str = "",
) -> Path:
    """Write a BigStitcher project; positions in voxels.

    The calibration scales voxels (z, y, x) into the space of the translations, which are split into
    a regular grid and a correction. Each tile has a view setup per channel; a second time point
    lies elsewhere. ``changed`` replaces the correction of a setup, and ``extra`` joins the
    registrations.
    """
    setups, files, groups, views = [], [], [], []
    for setup in range(channels * len(places)):
        channel, tile = divmod(setup, len(places))
        file, *position = places[tile]
        z, y, x = (n * s for n, s in zip(position, scale, strict=True))
        setups.append(
            f"<ViewSetup><id>{setup}</id><name>{setup}</name><size>64 64 8</size>"
            "<voxelSize><unit>µm</unit><size>0.5 0.5 2.0</size></voxelSize><attributes>"
            f"<illumination>0</illumination><channel>{channel}</channel><tile>{tile}</tile>"
            f"<angle>{setup % angles}</angle></attributes></ViewSetup>"
        )
        for time in (0, 1):
            files.append(
                f'<FileMapping view_setup="{setup}" timepoint="{time}" series="0" '
                f'channel="{channel}"><file type="relative">{file if time == 0 else "later.tif"}'
                "</file></FileMapping>"
            )
            correction = (changed or {}).get(setup, affine(0.25 * z, 0.25 * y, 0.25 * x))
            views.append(
                f'<ViewRegistration timepoint="{time}" setup="{setup}">'
                + transform("Stitching Transform", correction if time == 0 else affine(5, 5, 5))
                + transform("Translation to Regular Grid", affine(0.75 * z, 0.75 * y, 0.75 * x))
                + transform("calibration", affine(scale=scale))
                + "</ViewRegistration>"
            )
        groups.append(
            f'<zgroup setup="{setup}" tp="0" path="{file}" indicies="{channel} 0" />'
            if loader == "zarr"
            else f'<zgroup setup="{setup}" timepoint="0"><path>{file}</path></zgroup>'
        )
    image = {
        "filemap2": '<ImageLoader format="spimreconstruction.filemap2"><imagedirectory '
        f'type="relative">.</imagedirectory><files>{"".join(files)}</files></ImageLoader>',
        "hdf5": '<ImageLoader format="bdv.hdf5"><hdf5 type="relative">d.h5</hdf5></ImageLoader>',
        "zarr": '<ImageLoader format="bdv.multimg.zarr" version="3.0"><zarr type="relative">'
        f"dataset.ome.zarr</zarr><zgroups>{''.join(groups)}</zgroups></ImageLoader>",
        "old zarr": '<ImageLoader format="bdv.multimg.zarr" version="1.0"><zarr type="absolute">'
        f"/data/dataset.ome.zarr</zarr><zgroups>{''.join(groups)}</zgroups></ImageLoader>",
    }[loader]
    path.write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n<SpimData version="0.2">\n'
        '<BasePath type="relative">.</BasePath>\n'
        f"<SequenceDescription>{image}<ViewSetups>{''.join(setups)}</ViewSetups>"
        '<Timepoints type="range"><first>0</first><last>1</last></Timepoints>'
        "</SequenceDescription>\n"
        f"<ViewRegistrations>{''.join(views)}{extra}</ViewRegistrations>\n"
        "<ViewInterestPoints/><StitchingResults/></SpimData>\n",
        encoding="utf-8",
    )
    return path


def write_terastitcher(path: Path, places: Places, *, columns: int) -> Path:
    """Write the XML of TeraStitcher; positions in voxels, ``columns`` tiles a row."""
    stacks = [
        f'<Stack N_CHANS="1" N_BYTESxCHAN="2" ROW="{k // columns}" COL="{k % columns}" '
        f'ABS_V="{y!r}" ABS_H="{x!r}" ABS_D="{z!r}" STITCHABLE="yes" DIR_NAME="{folder}" '
        'Z_RANGES="[0,8)" IMG_REGEX=""><NORTH_displacements /><EAST_displacements>'
        '<Displacement TYPE="MIP_NCC"><V displ="3" default_displ="0" /></Displacement>'
        "</EAST_displacements><SOUTH_displacements /><WEST_displacements /></Stack>"
        for k, (folder, z, y, x) in enumerate(places)
    ]
    path.write_text(
        '<?xml version="1.0" encoding="UTF-8" ?>\n'
        '<!DOCTYPE TeraStitcher SYSTEM "TeraStitcher.DTD">\n'
        '<TeraStitcher volume_format="TiledXY|2Dseries" input_plugin="tiff2D">\n'
        '<stacks_dir value="/data/stacks" /><ref_sys ref1="1" ref2="2" ref3="3" />'
        '<voxel_dims V="0.5" H="0.5" D="2" /><origin V="1.5" H="2.5" D="3" />'
        '<mechanical_displacements V="20" H="20" />'
        f'<dimensions stack_rows="{len(places) // columns}" stack_columns="{columns}" '
        f'stack_slices="8" />\n<STACKS>{"".join(stacks)}</STACKS>\n</TeraStitcher>\n'
    )
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, object]], *, separator: str = ",") -> Path:
    """Write a CSV table whose columns are those of its first row."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def ome_xml(
    places: Places, *, unit: str | None = "µm", named: bool = True, plane: str | None = None
) -> str:
    """OME-XML of one image per place, each with two planes; positions in ``unit``.

    Planes are written last first. ``plane`` replaces the attributes with the position.
    """
    images = []
    for index, (file, z, y, x) in enumerate(places):
        planes = []
        for number in (1, 0):
            stated = plane
            if stated is None:
                ends = zip("ZYX", (z + 2 * number, y, x), strict=True)
                stated = " ".join(
                    f'Position{axis}="{n!r}"' + (f' Position{axis}Unit="{unit}"' if unit else "")
                    for axis, n in ends
                )
            planes.append(f'<Plane TheC="0" TheT="0" TheZ="{number}" {stated}/>')
        uuid = f'<UUID FileName="{file}">urn:uuid:0</UUID>' if named else ""
        images.append(
            f'<Image ID="Image:{index}"><Pixels ID="Pixels:{index}" DimensionOrder="XYZCT" '
            'Type="uint16" SizeX="64" SizeY="64" SizeZ="2" SizeC="1" SizeT="1">'
            f'<Channel ID="Channel:{index}:0" SamplesPerPixel="1"/>'
            f'<TiffData IFD="0" PlaneCount="2">{uuid}</TiffData>{"".join(planes)}</Pixels></Image>'
        )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">'
        f"{''.join(images)}<StructuredAnnotations/></OME>"
    )
