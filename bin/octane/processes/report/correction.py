"""Pictures and charts of a bias field correction."""

import numpy as np
import numpy.typing as npt

from octane.core.records import Context
from octane.pictures import charts, pictures
from octane.pictures.charts import Band
from octane.processes.n4.record import N4Figures
from octane.processes.report.gallery import Gallery
from octane.processes.report.tasks import CUTS, TaskRecord
from octane.processes.stack.record import StackFigures


def _title_fields(arrays: dict[str, npt.NDArray]) -> dict[str, str]:
    """Title the fields; scale a true field to the fitted one's geometric mean over the cuts."""
    if not all(f"true_field_{axis}" in arrays for axis in CUTS):
        return {"field": "bias field"}
    # N4 finds a field only up to a factor, which would hide how alike the two are.
    field, true = (
        np.concatenate([arrays[f"{kind}_{axis}"].ravel() for axis in CUTS])
        for kind in ("field", "true_field")
    )
    both = (field > 0) & (true > 0)
    if both.any():
        ratio = np.exp(np.mean(np.log(field[both] / true[both])))
        arrays |= {f"true_field_{axis}": arrays[f"true_field_{axis}"] * ratio for axis in CUTS}
    return {"field": "bias field", "true_field": "true field"}


def bands_of(stack: StackFigures | None) -> list[Band]:
    """Extent of each section along z, micrometres."""
    # The position of a plane is its centre; a boundary is half a plane above it.
    z = stack.voxel_size[0] if stack else 0.0
    sections = stack.sections if stack else ()
    return [((s.start - 0.5) * z, (s.stop - 0.5) * z, s.missing) for s in sections]


def threshold_of(entry: TaskRecord) -> float | None:
    """Change of the field below which N4 stops."""
    given = entry.record.settings.get("convergence_threshold")
    return float(given) if isinstance(given, int | float) else None


def correction_of(
    entry: TaskRecord, n4: N4Figures, bands: list[Band], gallery: Gallery, prefix: str = ""
) -> Context:
    """Pictures and charts of the bias field correction; ``prefix`` begins the names of files."""
    arrays = dict(entry.previews)
    fields = _title_fields(arrays)
    grey = pictures.grey_scale(arrays[f"{k}_{a}"] for k in ("before", "after") for a in CUTS)
    diverging = pictures.field_scale(arrays[f"{k}_{a}"] for k in fields for a in CUTS)
    kinds = {"before": ("before", grey), "after": ("after", grey)}
    kinds |= {kind: (title, diverging) for kind, title in fields.items()}
    threshold = threshold_of(entry)
    drawn_charts: list[Context] = []
    if "profile_z" in arrays:
        alt = "Mean in tissue of each plane along z, before and after the correction."
        z, before, after = (arrays[f"profile_{k}"] for k in ("z", "before", "after"))
        chart = charts.profile_chart(z, before, after, bands)
        drawn_charts.append(gallery.chart(f"{prefix}profile", "Profile along z", alt, chart))
    if "histogram_edges" in arrays:
        alt = (
            "Histogram of the intensities in tissue. Their coefficient of variation is "
            f"{n4.cv_before:.1%} before and {n4.cv_after:.1%} after the correction."
        )
        chart = charts.histogram_chart(
            *(arrays[f"histogram_{k}"] for k in ("edges", "before", "after"))
        )
        drawn_charts.append(gallery.chart(f"{prefix}histogram", "Histogram in tissue", alt, chart))
    spacing = n4.preview_spacing or n4.shrunk_spacing
    return {
        "figures": n4,
        "strength": entry.record.settings.get("strength", 1),
        "charts": drawn_charts,
        "rows": gallery.cuts(f"{prefix}cut", spacing, kinds, arrays),
        "threshold": threshold,
        "grey": grey,
        "field": diverging,
    }
