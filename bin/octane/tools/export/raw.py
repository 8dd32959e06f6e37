"""NIfTI, NRRD and MetaImage: a header, and then the voxels of one channel, x fastest."""

from collections.abc import Callable
from contextlib import nullcontext
from gzip import GzipFile
from io import BytesIO
from pathlib import Path

import numpy as np
from nibabel import Nifti1Header, Nifti2Header
from nibabel.spatialimages import HeaderDataError

from octane.config.parameters import ExecutionParameters
from octane.core.errors import InputError
from octane.store.formats.itk_files import ItkGeometry
from octane.tools.export.source import Part, file_type

LONGEST = 32767
"""Most voxels along an axis in NIfTI-1."""
COMPRESSION = 1
"""Level of gzip, as nibabel has it."""
META_TYPES = {
    **{"int8": "MET_CHAR", "int16": "MET_SHORT", "int32": "MET_INT", "int64": "MET_LONG_LONG"},
    **{"uint8": "MET_UCHAR", "uint16": "MET_USHORT", "uint32": "MET_UINT"},
    **{"uint64": "MET_ULONG_LONG", "float32": "MET_FLOAT", "float64": "MET_DOUBLE"},
}
NRRD_TYPES = {**{name: name for name in META_TYPES}, "float32": "float", "float64": "double"}
RAS = np.diag((-1.0, -1.0, 1.0))
"""From ITK's coordinates, along left, posterior and superior, to NIfTI's."""

Header = Callable[[tuple[int, ...], np.dtype, ItkGeometry], bytes]
"""Makes the header of an image, its shape in the order x y z; a KeyError for an unknown type."""


def nifti_header(shape: tuple[int, ...], dtype: np.dtype, geometry: ItkGeometry) -> bytes:
    """Header of NIfTI-1, or of NIfTI-2 for longer axes."""
    header = Nifti1Header() if max(shape) <= LONGEST else Nifti2Header()
    try:
        header.set_data_dtype(dtype)
    except HeaderDataError as error:
        raise KeyError(dtype.name) from error
    header.set_data_shape(shape)
    affine = np.eye(4)
    affine[:3, :3] = RAS @ np.reshape(geometry.directions, (3, 3)) @ np.diag(geometry.spacing)
    affine[:3, 3] = RAS @ geometry.origin
    header.set_qform(affine, code="scanner")
    header.set_sform(affine, code="scanner")
    header.set_xyzt_units("mm")
    header.set_slope_inter(1, 0)
    header["vox_offset"] = header.single_vox_offset
    stream = BytesIO()
    header.write_to(stream)
    # No extensions.
    return stream.getvalue().ljust(header.single_vox_offset, b"\0")


def nrrd_header(shape: tuple[int, ...], dtype: np.dtype, geometry: ItkGeometry) -> bytes:
    """Header of NRRD, with raw voxels."""
    columns = np.reshape(geometry.directions, (3, 3)).T * np.reshape(geometry.spacing, (3, 1))
    return _lines(
        "NRRD0004",
        f"type: {NRRD_TYPES[dtype.name]}",
        "dimension: 3",
        "space: left-posterior-superior",
        f"sizes: {_join_numbers(shape)}",
        f"space directions: {' '.join(_format_vector(column) for column in columns.tolist())}",
        "kinds: domain domain domain",
        "endian: little",
        "encoding: raw",
        'space units: "mm" "mm" "mm"',
        f"space origin: {_format_vector(geometry.origin)}",
        "",
    )


def meta_header(shape: tuple[int, ...], dtype: np.dtype, geometry: ItkGeometry) -> bytes:
    """Header of MetaImage, with raw voxels; its matrix has a row for each axis."""
    matrix = np.reshape(geometry.directions, (3, 3)).T.ravel().tolist()
    return _lines(
        "ObjectType = Image",
        "NDims = 3",
        "BinaryData = True",
        "BinaryDataByteOrderMSB = False",
        "CompressedData = False",
        f"TransformMatrix = {_join_numbers(matrix)}",
        f"Offset = {_join_numbers(geometry.origin)}",
        "CenterOfRotation = 0 0 0",
        f"ElementSpacing = {_join_numbers(geometry.spacing)}",
        f"DimSize = {_join_numbers(shape)}",
        f"ElementType = {META_TYPES[dtype.name]}",
        "ElementDataFile = LOCAL",
    )


HEADERS: dict[str, Header] = {
    ".nii": nifti_header,
    ".nii.gz": nifti_header,
    ".nrrd": nrrd_header,
    ".mha": meta_header,
}
"""Header by the suffix of the file."""


def header_of(part: Part, geometry: ItkGeometry, destination: Path) -> bytes:
    """Header of a file; an InputError if its format lacks the type of the voxels."""
    suffix = max((s for s in HEADERS if destination.name.endswith(s)), key=len)
    dtype = file_type(part.dtype)
    try:
        return HEADERS[suffix](part.grid.shape[::-1], dtype.newbyteorder("="), geometry)
    except KeyError as error:
        raise InputError(
            f"{destination} cannot hold {dtype.name} voxels; write them as .nii, or as OME-Zarr."
        ) from error


def write_raw(part: Part, header: bytes, partial: Path, execution: ExecutionParameters) -> None:
    """Write a file with this header, compressed if its name ends in .gz."""
    dtype = file_type(part.dtype)
    packed = partial.name.endswith(".gz")
    with (
        partial.open("wb") as file,
        # Without name and time, so that equal volumes give equal files.
        GzipFile("", "wb", COMPRESSION, file, mtime=0) if packed else nullcontext(file) as stream,
    ):
        stream.write(header)
        for slab in part.slabs(execution):
            for plane in slab:
                stream.write(np.ascontiguousarray(plane, dtype).data)


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _join_numbers(values: tuple[float, ...] | list[float]) -> str:
    """Numbers with all their digits."""
    return " ".join(map(repr, values))


def _format_vector(values: tuple[float, ...] | list[float]) -> str:
    return f"({','.join(map(repr, values))})"
