"""Input of N4: voxels of the shrunk volume, sections, masks, weights, the truth of a phantom."""

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.config.parameters import InputParameters
from octane.core.errors import InputError
from octane.core.geometry import Region, blocks, bounds, shape_of
from octane.core.metrics import Metrics
from octane.layout.sections import Section, read_sections
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import require_decodable
from octane.processes.n4.inclusion import LeftOut, voxels_to_fit
from octane.processes.n4.mask import tissue_mask
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.plan import READ_BLOCK, Plan, within
from octane.store.companions import require_same_grid
from octane.store.reading import AS_STATED, place_of
from octane.store.stated import CHANNEL
from octane.store.volumes import Volume, bring_in, open_volume

logger = logging.getLogger(__name__)

TISSUE = "tissue"
NEGATIVE = 0.1
"""Fraction of fitted voxels below 0 that noise does not explain, but decibels do."""


def read_strided(
    volume: Volume,
    keep: Region,
    dtype: npt.DTypeLike,
    *,
    workers: int,
    metrics: Metrics,
    finite: bool = False,
    whole: npt.NDArray | None = None,
    label: str = "N4: reading",
) -> npt.NDArray:
    """Read the voxels of strided slices (z, y, x), block by block: ``volume[keep]`` as `dtype`.

    With `finite`, check every voxel, kept or not, and raise at the first NaN or Inf. `whole`, of
    the volume's shape and type, receives all voxels.
    """
    shape = volume.grid.shape
    result = np.empty([len(range(n)[k]) for n, k in zip(shape, keep, strict=True)], dtype)
    # Integers are always finite; blocks without kept voxels are read only to be checked.
    finite = finite and volume.dtype.kind == "f"
    # Blocks of complete chunks, if these are smaller, so that each is decoded once.
    size = tuple(c * (READ_BLOCK // c) if c < READ_BLOCK else READ_BLOCK for c in volume.chunks)
    regions = blocks(shape, size)

    def work(region: Region, lane: Lane) -> int:
        inner, outer = [], []
        for r, k in zip(region, keep, strict=True):
            first = max(0, -(-(r.start - k.start) // k.step))
            last = max(first, -(-(min(r.stop, k.stop) - k.start) // k.step))
            outer.append(slice(first, last))
            inner.append(slice(k.start + first * k.step - r.start, r.stop - r.start, k.step))
        if whole is None and not finite and any(o.start == o.stop for o in outer):
            return 0
        with lane.timed("read"):
            if whole is None:
                memory = lane.buffer("block", shape_of(region), volume.dtype)
            else:
                memory = whole[region]
            block = volume.read(region, memory)
        with lane.timed("compute"):
            # Plane by plane, so that the results of isfinite stay in the core's cache.
            if finite and not all(np.isfinite(plane).all() for plane in block):
                at = np.argwhere(~np.isfinite(block))[0] + [r.start for r in region]
                sections = read_sections(volume.attributes, shape[0])
                own = [s.name for s in sections if s.start <= at[0] < s.stop]
                raise InputError(
                    f"{volume.path} contains NaN or Inf (first at z y x {' '.join(map(str, at))}, "
                    f"in {', '.join(own)}); clean it, or give --n4_nonfinite mask to exclude such "
                    "voxels from the fit."
                )
            kept = block[tuple(inner)]
            result[tuple(outer)] = kept[tuple(slice(0, o.stop - o.start) for o in outer)]
        return block.nbytes

    run_pipeline(
        regions,
        work,
        label=label,
        workers=workers,
        metrics=metrics,
        describe=lambda r: f"block {bounds(r)} of {volume.path}",
    )
    return result


class Reference:
    """The reference channel's volume, whose tissue other channels of its grid are fitted to.

    Its mask is made once, for all channels, as their shrunk grids are equal. ``whole_bytes`` is the
    size of a file that must be kept in memory whole.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume: Volume | None = volume
        self.whole_bytes = volume.whole_bytes
        self._mask: npt.NDArray[np.bool_] | None = None

    def require_fit(self, volume: Volume, memory: int) -> None:
        """Raise an OctaneError unless it is on the grid of a volume, and fits into the memory."""
        assert self._volume is not None
        require_decodable(memory, self._volume)
        remedy = "give the reference channel's volume as STACK wrote it"
        require_same_grid(self._volume, volume, remedy)

    def mask(
        self, plan: Plan, sections: list[Section], metrics: Metrics, destination: Path
    ) -> npt.NDArray[np.bool_]:
        """Tissue mask on the shrunk grid; NaN and infinity of the reference are not tissue.

        The first call reads the volume, decoding a TIFF next to ``destination``, and drops it.
        """
        if self._mask is None:
            assert self._volume is not None
            bring_in(self._volume, metrics, destination)
            shrunk = read_companion(self._volume, plan, metrics, "the reference channel")
            with metrics.timed("mask"):
                self._mask = _tissue_of(self._volume.path, shrunk, plan, sections, metrics)
            self._volume = None
        return self._mask


def open_reference(
    path: Path | None, channel: str | None, reading: InputParameters, *, is_used: bool
) -> Reference | None:
    """Open a reference channel's volume as the input is read, if its path is given.

    An InputError says that it is not used, as only the mask ``tissue`` needs it.
    """
    if path is None:
        if channel is not None:
            raise InputError("--reference_channel needs --reference, the volume that it is in.")
        return None
    if not is_used:
        raise InputError(
            f"{path}: --reference is only for --n4_mask tissue; give that too, or leave it out."
        )
    first = open_volume(path, reading.model_copy(update={"channel": "0", "channel_kind": ()}))
    asked, count = AS_STATED.model_copy(update={"channel": channel}), len(first.channels)
    given = (path, [CHANNEL], [count], first.channels, asked)
    (index,) = place_of(*given, flag="reference_channel")
    own = reading.model_copy(update={"channel": str(index), "channel_kind": ()})
    return Reference(open_volume(path, own))


def _tissue_of(
    path: Path,
    shrunk: npt.NDArray[np.float32],
    plan: Plan,
    sections: list[Section],
    metrics: Metrics,
) -> npt.NDArray[np.bool_]:
    found = np.where(np.isfinite(shrunk), shrunk, 0)
    parts = [(s.name, within(plan.planes, s)) for s in sections]
    names = [name for name, part in parts if part.stop > part.start]
    mask = tissue_mask(found, shrunk_sections(plan, sections), metrics.warn, names)
    if not mask.any():
        raise InputError(
            f"{path} contains no tissue (all sections are constant): check it, or give a mask of "
            "your own."
        )
    return mask


def fit_mask(
    companions: dict[str, Volume],
    shrunk: npt.NDArray[np.float32],
    plan: Plan,
    sections: list[Section],
    p: N4Parameters,
    metrics: Metrics,
    tissue: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.bool_]:
    """Mask that the user asked for, on the shrunk grid; a mask file is one of ``companions``.

    ``tissue`` is that of the reference channel, if the volume's own is not to be found.
    """
    with metrics.timed("mask"):
        if p.mask is None:
            mask = np.ones(shrunk.shape, np.bool_)
        elif tissue is not None:
            mask = tissue
        elif p.mask == TISSUE:
            mask = _tissue_of(plan.volume.path, shrunk, plan, sections, metrics)
        else:
            mask = _read_mask(companions["mask"], plan, metrics)
    if not mask.any():
        raise InputError(
            f"The mask {p.mask} is empty on the shrunk grid; give another, or a smaller "
            "--n4_shrink_factor."
        )
    return mask


def leave_out(
    shrunk: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.float32] | None,
    name: str,
    p: N4Parameters,
    metrics: Metrics,
) -> npt.NDArray[np.bool_]:
    """Leave the voxels that N4 cannot fit out of a mask, and record their number.

    ``name`` is that of the volume in an error. NaN and infinity are counted in the mask or not.
    """
    finite = np.isfinite(shrunk)
    weighted = mask if weights is None else mask & (weights > 0)
    below = np.count_nonzero(weighted & (shrunk < 0)) / max(1, np.count_nonzero(weighted))
    kept, left_out = mask, LeftOut()
    if not p.use_all_voxels:
        kept, left_out = voxels_to_fit(shrunk, weighted, name)
        # Voxels of weight 0 are not fitted, but count in the figures.
        kept = kept | (mask & ~weighted & (shrunk > 0))
    left_out = left_out._replace(nonfinite=int(np.count_nonzero(~finite)))
    text = f"Excluded from the fit: {left_out}." if any(left_out) else ""
    if below > NEGATIVE:
        metrics.warn(
            f"{100 * below:.0f} % of the voxels to fit are below 0, but N4 corrects by division: "
            f"give linear intensities (not in decibels) without an offset, or a mask. {text}"
        )
    elif left_out.nonfinite or left_out.outliers:
        metrics.warn(text)
    elif text:
        logger.info("N4: %s", text)
    mask_fraction = float((mask & finite).mean())
    metrics.figures |= {"left_out": left_out._asdict(), "mask_fraction": mask_fraction}
    # A new array: other channels use the mask too.
    return kept & finite


def shrunk_sections(plan: Plan, sections: list[Section]) -> list[tuple[int, int]]:
    """Planes of each section on the shrunk grid; sections without planes are left out."""
    found = [within(plan.planes, section) for section in sections]
    return [(part.start, part.stop) for part in found if part.stop > part.start]


def read_companion(
    stored: Volume, plan: Plan, metrics: Metrics, what: str, dtype: npt.DTypeLike = np.float32
) -> npt.NDArray:
    """Read a companion of the volume on the shrunk grid; ``what`` names it in the log."""
    return read_strided(
        stored, plan.keep, dtype, workers=plan.workers, metrics=metrics, label=f"N4: reading {what}"
    )


def _read_mask(stored: Volume, plan: Plan, metrics: Metrics) -> npt.NDArray[np.bool_]:
    values = read_companion(stored, plan, metrics, "the mask", stored.dtype)
    others = np.setdiff1d(np.unique(values), (0, 1))
    if others.size:
        raise InputError(
            f"{stored.path} contains the value {others[0]}; a mask must be 0 and 1 (only 1 is "
            "inside for ITK, which would silently ignore 255): threshold it (mask > 0)."
        )
    return values == 1


def read_weights(stored: Volume, plan: Plan, metrics: Metrics) -> npt.NDArray[np.float32]:
    """Read the weights on the shrunk grid; raise for values below 0 or NaN."""
    with metrics.timed("weights"):
        weights = read_companion(stored, plan, metrics, "the weights")
    if not (weights >= 0).all():
        raise InputError(
            f"{stored.path} contains weights below 0 or NaN; replace them by values of at least 0."
        )
    return weights
