"""Checks of STITCH's parameters against the data, which PREFLIGHT makes too."""

from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.core.errors import InputError
from octane.core.files import read_regular
from octane.layout.mosaic import MosaicGrid, Tile, read_gains
from octane.layout.placement import TilePlacement
from octane.layout.sections import number_or_first
from octane.processes.stitch.attenuation import LEAST_PLANES
from octane.processes.stitch.blending import LEAST_OVERLAP
from octane.processes.stitch.flat_field import Image as Profile
from octane.processes.stitch.parameters import ESTIMATE, FLAT_WORDS, GAIN_WORDS, StitchParameters
from octane.store.channels import is_nearest
from octane.store.formats.tiff_files import TIFF_ERRORS
from octane.store.volumes import Volume


def applicable_parameters(
    parameters: StitchParameters, image: Volume, *, is_placed: bool
) -> StitchParameters:
    """Switch off what does not apply to a channel.

    Tiles that a reference has placed (``is_placed``) are not refined, and values that must not be
    averaged keep their light. Raises an InputError if the latter are to be refined.
    """
    changed: dict[str, str | float] = {"refine": False} if is_placed else {}
    if is_nearest(image.attributes):
        if parameters.refine is True and not is_placed:
            raise InputError(
                f"{image.path}: --stitch_refine cannot compare tiles whose values must not be "
                "averaged; choose another --channel, or omit it."
            )
        changed |= dict.fromkeys(("flat_field", "gain", "attenuation"), "none")
        changed["refine"] = False
        changed["dark_offset"] = 0.0
    return parameters.model_copy(update=changed)


def resample_flat_field(profile: npt.NDArray, shape: tuple[int, int], path: Path) -> Profile:
    """Resample a file's flat field, of any resolution and scale, to a tile's shape, with mean 1.

    Raises an OctaneError if it does not fit such tiles.
    """
    given = " x ".join(map(str, profile.shape))
    # Rounding may have made either axis a pixel longer.
    scale = np.divide(profile.shape, shape) if profile.ndim == 2 else np.zeros(2)
    if not scale.all() or abs(scale[0] - scale[1]) * min(shape) > max(1.0, *scale):
        raise InputError(
            f"{path} has {given} pixels and a tile {shape[0]} x {shape[1]}; give a flat field of "
            "the whole tile, with the axes y and x."
        )
    if profile.dtype.kind not in "fiu" or not (np.isfinite(profile) & (profile > 0)).all():
        raise InputError(f"{path} has pixels that are not above 0; give a positive flat field.")
    y, x = ((np.arange(n) + 0.5) * s - 0.5 for n, s in zip(shape, scale, strict=True))
    down, right = (np.arange(n) for n in profile.shape)
    wide = np.array([np.interp(y, down, column) for column in profile.T])
    resampled = np.array([np.interp(x, right, row) for row in wide.T])
    return (resampled / resampled.mean()).astype(np.float32)


def given_flat_field(
    image: Volume, tiling: MosaicGrid, placement: TilePlacement, parameters: StitchParameters
) -> Profile | None:
    """Flat field of the file that the parameters name; None if they do not name one.

    Raises an OctaneError if it does not fit these tiles, or if they do not allow an estimate.
    """
    chosen = parameters.flat_field
    unused = {chosen, parameters.gain, parameters.attenuation} == {"none"}
    if parameters.dark_offset and (unused or image.dtype.kind == "c"):
        raise InputError(
            "--stitch_dark_offset needs a flat field, gains or --stitch_attenuation, and real "
            "voxels; give --stitch_flat_field as well, or omit it."
        )
    shared = (place.before for pair in placement.places.values() for place in pair)
    asked = {"flat_field": "a flat field", "gain": "gains"}
    missed = [name for name in asked if getattr(parameters, name) == ESTIMATE]
    if missed and max(shared) < LEAST_OVERLAP:
        raise InputError(
            f"{image.path}: its tiles overlap by less than {LEAST_OVERLAP} pixels, too little to "
            f"estimate {asked[missed[0]]}; give --stitch_{missed[0]} FILE, or none."
        )
    if chosen in FLAT_WORDS:
        return None
    from tifffile import imread

    path = Path(chosen).resolve()
    try:
        stream = BytesIO(read_regular(path))
        # The pages that there are, whatever the metadata promise.
        whole = slice(None)
        given = np.load(stream) if path.suffix.lower() == ".npy" else imread(stream, key=whole)
        # An archive of arrays lacks a shape.
        return resample_flat_field(given, (tiling.tile[1], tiling.tile[2]), path)
    except (OSError, EOFError, *TIFF_ERRORS) as error:
        text = f"{path} cannot be read as a flat field; give a TIFF or .npy file, or {ESTIMATE}."
        raise InputError(text) from error


def given_gains(
    image: Volume, tiling: MosaicGrid, parameters: StitchParameters
) -> dict[Tile, float] | None:
    """Gains of the table that the parameters name; None if they do not name one.

    Raises an OctaneError if it does not fit these tiles.
    """
    if parameters.gain in GAIN_WORDS:
        return None
    return read_gains(Path(parameters.gain), number_or_first(image), tiling)


def require_compensable(name: str, dtype: np.dtype, planes: int) -> None:
    """Raise an InputError if the attenuation of such a section cannot be found."""
    if dtype.kind != "f":
        raise InputError(
            f"{name} holds {dtype} voxels, but --stitch_attenuation needs floating-point "
            "intensities; give --resample_dtype float32 with a --resolution, or omit it."
        )
    if planes < LEAST_PLANES:
        raise InputError(
            f"{name} has {planes} planes, but --stitch_attenuation needs at least {LEAST_PLANES}; "
            "omit it, or give a finer --resolution."
        )
