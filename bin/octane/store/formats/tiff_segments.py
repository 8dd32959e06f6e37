"""Strips and tiles of a TIFF: where they lie, the memory that decoding takes, and their voxels.

A header may promise anything. The places of all strips and tiles are checked before one is read,
and each is decoded into no more bytes than its page states, which it must fill exactly.
"""

from __future__ import annotations

import lzma
import math
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tifffile import TiffFrame, TiffPage

LZW, JPEG, PACKBITS, LZMA = 5, 7, 32773, 34925
DEFLATE = (8, 32946)
ZSTD = (34926, 50000)
JPEG_2000 = (33003, 33004, 33005, 34712)
JPEG_XR = (22610, 34934)
LERC = 34887
BYTE_CODECS = (1, LZW, PACKBITS, LZMA, *DEFLATE, *ZSTD)
"""Compressions of bytes, whatever they mean; the others are those of images."""
IMAGE_CODECS = (JPEG, LERC, *JPEG_2000, *JPEG_XR)
HORIZONTAL, FLOATING = 2, 3
"""Predictors."""
WHOLE_BITS = (8, 16, 32, 64, 128)
"""Bits of samples that are not packed."""
LZMA_MEMORY = 2**27
"""Most bytes that lzma may take: twice those that its slowest preset needs."""
IMAGE_CODEC_BYTES = 4
"""Bytes for each voxel that codecs of images take themselves: coefficients of 32 bits."""
MOST_PARTS = 4096
"""Most tiles of JPEG 2000 within a strip or tile; OpenJPEG takes some 6 kB for each."""
JPEG_2000_START = b"\xff\x4f\xff\x51"
"""First markers of JPEG 2000, behind which its size is."""
JPEG_END = b"\xff\xd9"
JPEG_XR_LENGTHS = (0xBCC0, 0xBCC1)
"""Tags of JPEG XR that state the offset and the number of its bytes."""


def require_codec(key: TiffPage) -> None:
    """Raise a NotImplementedError for what octane does not decode."""
    if key.compression not in (*BYTE_CODECS, *IMAGE_CODECS):
        raise NotImplementedError(f"unknown compression {key.compression!r}")
    if key.compression in BYTE_CODECS and key.predictor not in (1, HORIZONTAL, FLOATING):
        raise NotImplementedError(f"unknown predictor {key.predictor!r}")
    kind = key.dtype.kind if key.dtype is not None else "?"
    is_whole = key.bitspersample in WHOLE_BITS and key.sampleformat != 5
    is_known = is_whole or (kind in "bu" and isinstance(key.bitspersample, int))
    kinds = {HORIZONTAL: "iuf", FLOATING: "f"}.get(key.predictor, "biufc")
    if not is_known or kind not in kinds:
        raise NotImplementedError(
            f"unknown samples of {key.bitspersample} bits, format {key.sampleformat}"
        )
    if key.tiledepth != 1 or key.jpegheader is not None:
        raise NotImplementedError("unknown layout of tiles")


def require_segments(pages: Sequence[TiffPage | TiffFrame], key: TiffPage, size: int) -> int:
    """Raise a ValueError if strips or tiles are lost, overlap or lie beyond a file of ``size``.

    Returns the length in bytes of the longest.
    """
    if any(page.hash != key.hash for page in pages):
        raise ValueError("its planes are stored in several ways")
    if key.is_final:
        places = [(page.dataoffsets[0],) for page in pages]
        lengths = [(key.nbytes,)] * len(pages)
    else:
        places = [page.dataoffsets for page in pages]
        lengths = [page.databytecounts for page in pages]
        count = math.prod(key.chunked)
        if any(len(values) != count for values in (*places, *lengths)):
            raise ValueError(f"a plane does not have {count} strips or tiles")
    # Not integers: those of a damaged file may have any size.
    starts, counts = (np.array(values, np.float64).ravel() for values in (places, lengths))
    if counts.min() < 1 or starts.min() < 1:
        raise ValueError("strips or tiles are missing")
    order = np.argsort(starts)
    ends = (starts + counts)[order]
    if ends.max() > size:
        raise ValueError("planes extend beyond the end of the file")
    if (ends[:-1] > starts[order][1:]).any():
        raise ValueError("strips or tiles overlap in the file")
    return int(counts.max())


def decoding_bytes(key: TiffPage, longest: int) -> int:
    """Bytes for decoding a plane whose ``longest`` strip or tile has so many in the file."""
    voxels, dtype = math.prod(key.chunks), key.dtype
    assert dtype is not None
    # As in the file, as decoded, and without the predictor or in this machine's order of bytes.
    segment_bytes = longest + voxels * (
        2 * dtype.itemsize + IMAGE_CODEC_BYTES * (key.compression in IMAGE_CODECS)
    )
    return key.nbytes + segment_bytes * max(1, key.maxworkers)


def decode_plane(
    page: TiffPage | TiffFrame, key: TiffPage, descriptor: int, out: npt.NDArray
) -> None:
    """Decode a plane into ``out``, in several threads."""
    rows, columns = key.chunks
    across = key.chunked[-1]

    def decode(index: int) -> None:
        y, x = index // across * rows, index % across * columns
        place = out[y : y + rows, x : x + columns]
        voxels = decode_segment(page, key, index, descriptor)
        place[...] = voxels[: place.shape[0], : place.shape[1]]

    with ThreadPoolExecutor(max(1, key.maxworkers)) as pool:
        for _ in pool.map(decode, range(len(page.dataoffsets))):
            pass


def decode_segment(
    page: TiffPage | TiffFrame, key: TiffPage, index: int, descriptor: int
) -> npt.NDArray:
    """Decode a strip or tile; it may lie partly beyond the edges of its plane."""
    rows, columns = key.chunks
    down, across = index // key.chunked[-1] * rows, index % key.chunked[-1] * columns
    within = (min(rows, key.imagelength - down), min(columns, key.imagewidth - across))
    length = page.databytecounts[index]
    data = os.pread(descriptor, length, page.dataoffsets[index])
    if len(data) < length:
        raise EOFError("the file ends before its voxels")
    whole = (rows, columns)
    if key.compression in IMAGE_CODECS:
        return _image(key, data, page.jpegtables, [whole, within])
    # Tiles are always whole; the last strip may be shorter.
    return _array(key, data, [whole] if key.is_tiled else [within, whole])


def _array(
    key: TiffPage, data: bytes | bytearray, shapes: Sequence[tuple[int, int]]
) -> npt.NDArray:
    """Decode voxels of one of several shapes that are compressed as bytes."""
    import imagecodecs

    assert key.dtype is not None
    if key.fillorder == 2:
        data = imagecodecs.bitorder_decode(data)
    bits = key.bitspersample
    sizes = [rows * ((columns * bits + 7) // 8) for rows, columns in shapes]
    # Voxels that are not compressed may be followed by others.
    most = sizes[0] if key.compression == 1 else max(sizes)
    decompressed = _decompress(key.compression, data, most)
    if len(decompressed) not in sizes:
        raise ValueError(f"a strip or tile has {len(decompressed)} bytes, and not {sizes[0]}")
    shape = shapes[sizes.index(len(decompressed))]
    if key.predictor == FLOATING:
        # Its bytes are in an order of their own.
        mixed = np.frombuffer(decompressed, key.dtype.newbyteorder("=")).reshape(shape)
        return imagecodecs.floatpred_decode(mixed, axis=-1)
    if bits in WHOLE_BITS:
        stored = np.frombuffer(decompressed, key.dtype.newbyteorder(key.parent.byteorder))
        voxels = stored.astype(key.dtype.newbyteorder("="), copy=False)
    else:
        voxels = imagecodecs.packints_decode(decompressed, key.dtype, bits, runlen=shape[1])
    voxels = voxels.reshape(shape)
    if key.predictor == HORIZONTAL:
        # Differences of the bits, whatever they mean.
        differences = voxels.view(f"u{voxels.itemsize}")
        return imagecodecs.delta_decode(differences, axis=-1).view(voxels.dtype)
    return voxels


def _decompress(compression: int, data: bytes | bytearray, size: int) -> bytes | bytearray:
    """Decompress bytes; of more than ``size``, either one more is returned or an error raised."""
    import imagecodecs

    if compression == 1:
        return data[:size]
    if compression == LZW:
        return imagecodecs.lzw_decode(data, out=size + 1)
    if compression == PACKBITS:
        return imagecodecs.packbits_decode(data, out=size)
    if compression in DEFLATE:
        return imagecodecs.deflate_decode(data, out=size)
    if compression in ZSTD:
        return imagecodecs.zstd_decode(data, out=size)
    # imagecodecs does not read as far as the checksum.
    decoder = lzma.LZMADecompressor(memlimit=LZMA_MEMORY)
    decompressed = decoder.decompress(data, size + 1)
    if len(decompressed) <= size and not decoder.eof:
        raise EOFError("a strip or tile ends early")
    return decompressed


def _image(
    key: TiffPage, data: bytes, tables: bytes | None, shapes: Sequence[tuple[int, int]]
) -> npt.NDArray:
    """Decode voxels of one of several shapes that are compressed as an image.

    The codecs compare the array that they are given with their own header before they decode.
    """
    import imagecodecs

    assert key.dtype is not None
    if key.compression in JPEG_2000:
        data = _codestream(data, shapes)
    elif key.compression in JPEG_XR:
        _require_jpeg_xr(data)
    elif key.compression == JPEG and not data.rstrip(b"\0").endswith(JPEG_END):
        raise EOFError("a strip or tile ends early")
    for shape in dict.fromkeys(shapes):
        out = np.empty(shape, key.dtype.newbyteorder("="))
        try:
            if key.compression == JPEG:
                return imagecodecs.jpeg8_decode(data, tables=tables, out=out)
            if key.compression in JPEG_2000:
                return imagecodecs.jpeg2k_decode(data, out=out)
            if key.compression in JPEG_XR:
                return imagecodecs.jpegxr_decode(data, out=out)
            voxels, valid = imagecodecs.lerc_decode(data, masks=True, out=out)
        except ValueError:
            continue
        if valid is not None and not valid.all():
            raise NotImplementedError("LERC with invalid pixels")
        return voxels
    raise ValueError("a strip or tile states other voxels than its page")


def _codestream(data: bytes, shapes: Sequence[tuple[int, int]]) -> bytes:
    """The image proper within JPEG 2000; raise an error if it states none of ``shapes``.

    OpenJPEG takes memory for what it states.
    """
    data = data[data.index(JPEG_2000_START) :]
    right, bottom, left, top, width, height = struct.unpack_from(">6I", data, 8)
    parts = math.ceil(right / max(1, width)) * math.ceil(bottom / max(1, height))
    if (bottom - top, right - left) not in shapes or parts > MOST_PARTS:
        raise ValueError("a strip or tile states another size than its page")
    return data


def _require_jpeg_xr(data: bytes) -> None:
    """Raise an error if JPEG XR is shorter than it states; its codec would fill the rest."""
    (place,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, place)
    entries = [struct.unpack_from("<HHII", data, place + 2 + 12 * k) for k in range(count)]
    stated = {tag: value for tag, _, _, value in entries}
    if sum(stated[tag] for tag in JPEG_XR_LENGTHS) > len(data):
        raise EOFError("a strip or tile ends early")
