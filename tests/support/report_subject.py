"""A subject with made-up records and previews, for the tests of the report."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from octane.config.parameters import ExecutionParameters
from octane.core.metrics import Metrics, write_json
from octane.core.orientation import UNSTATED
from octane.core.records import Outcome
from octane.processes.preflight.parameters import STEPS
from octane.processes.report.step import write_report
from octane.store.channels import channel_ids
from octane.store.writer import colors


class Subject:
    """Synthetic records and previews in the form that the steps write."""

    def __init__(self, folder: Path, edge: int = 48) -> None:
        self.folder, self.edge = folder, edge
        self.rng = np.random.default_rng(3)
        self.records: list[Path] = []
        self.previews: list[Path] = []
        self.channel = self.id = ""
        self.is_nearest = False
        self.orientation = UNSTATED

    def save(
        self,
        name: str,
        figures: Mapping[str, object],
        previews: Mapping[str, np.ndarray] | None = None,
        settings: Mapping[str, object] | None = None,
        warning: str = "",
    ) -> None:
        *item, step = name.rsplit("_", 1)
        name = "_".join([*item, *[self.id] * bool(self.id), step])
        model = STEPS.get(step)
        own = model(**settings or {}).model_dump(mode="json") if model else {}
        metrics = Metrics(step, self.channel, self.orientation, own)
        metrics.figures.update(figures)
        metrics.previews.update(previews or {})
        metrics.timeline.track("main").seconds.update(read=1.5, write=0.5)
        metrics.bytes.update(read=3_000_000, written=1_000_000)
        if warning:
            metrics.warnings.append(warning)
        record = self.folder / f"{name}_metrics.json"
        preview = self.folder / f"{name}_preview.npz" if previews else None
        metrics.save(record, preview)
        content = json.loads(record.read_text(encoding="utf-8"))
        content["timeline"] = {"started": 1.7e9, "tracks": []}
        write_json(record, content)
        self.records.append(record)
        if preview is not None:
            self.previews.append(preview)

    def image(self, *shape: int) -> np.ndarray:
        speckle = self.rng.gamma(4, 0.25, shape)
        return (1000 * np.hypot(*np.indices(shape)) / max(shape) * speckle).astype(np.float32)

    def resample(self, number: int, *, volume: bool = False) -> None:
        figures = {"voxel_size": [10.0] * 3, "source_voxel_size": [3.5, 4.0, 4.0]}
        previews = self.slices() if volume else None
        self.save(f"section_{number:02d}_resample", figures, previews, {"resolution": 10})

    def slices(self) -> dict[str, np.ndarray]:
        slices = {f"slice_{axis}": self.image(self.edge, self.edge) for axis in "zyx"}
        return slices | {"slice_spacing": np.full(3, 10.0)}

    def stitch(
        self,
        number: int,
        seam: float | None = None,
        uncovered: int = 0,
        shading: tuple[float | None, float | None] = (None, None),
        moved: float = 0.0,
        not_imaged: Iterable[tuple[int, int]] = (),
        surface: Mapping[str, object] | None = None,
    ) -> None:
        """Add STITCH's record; refinement ``moved`` the middle tile along y, micrometres."""
        positions = {f"{r},{c}": [280.0 * r, 420.0 * c] for r in range(3) for c in range(3)}
        seam = 0.06 + 0.0001 * number if seam is None else seam
        figures = {
            "section": number,
            "seam_median": seam,
            "seam_max": 1.5 * seam,
            "uncovered_pixels": uncovered,
            "tiles": 9,
            "shape": [15, 2 * self.edge, 3 * self.edge],
            "shading_before": shading[0],
            "shading_after": shading[1],
            "positions": positions,
            "nominal_positions": positions | {"1,1": [280 - moved, 420.0]} if moved else {},
            "tile_extent": [400.0, 600.0],
            "mosaic_extent": [1200.0, 1800.0],
            "not_imaged": [*not_imaged],
            "surface": surface,
        }
        pictures = {"thumbnail": self.image(self.edge, 3 * self.edge // 2)}
        if shading[0] is not None:
            pictures["flat_field"] = self.image(self.edge, self.edge)
        self.save(f"section_{number:02d}_stitch", figures, pictures)

    def stack(
        self,
        sections: int,
        missing: tuple[int, ...] = (),
        shifts: Mapping[int, float] | None = None,
        cuts: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        """Add STACK's record.

        ``shifts``, micrometres by section number, are those corrected; ``cuts`` are figures of
        surfaces and thicknesses.
        """
        shifts, cuts = shifts or {}, cuts or {}
        listed = [
            {
                "name": f"section_{k:02d}.ome.zarr",
                "number": k,
                "start": 15 * (k - 1),
                "stop": 15 * k,
                "missing": k in missing,
            }
            | ({"shift": [shifts[k], 0.0], "rotation": 0.5, "moved": True} if k in shifts else {})
            | {**cuts.get(k, {})}
            for k in range(1, sections + 1)
        ]
        figures = {
            "sections": listed,
            "missing_sections": list(missing),
            "align": "rigid" if shifts else "none",
            "shape": [15 * sections, 96, 144],
            "voxel_size": [10.0] * 3,
        }
        gaps = ", ".join(map(str, missing))
        warning = f"Sections {gaps} are missing and left blank." if missing else ""
        arrays = self.slices()
        if shifts:
            arrays["unaligned_y"] = arrays["slice_y"]
        self.save("stack", figures, arrays, warning=warning)

    def n4(
        self,
        *,
        truth: bool = False,
        by_section: bool = False,
        judged: bool = False,
        sections: Iterable[int] = (),
    ) -> None:
        if self.is_nearest:
            self.save("n4", {"passed_through": True})
            return
        before, after, kinds = 0.3, 0.1, ["before", "after", "field"]
        figures: dict[str, object] = {
            "most_iterations": [5, 2],
            "levels": [
                {"iterations": 3, "convergence": [0.1, 0.01, 0.0009]},
                {"iterations": 2, "convergence": [0.02, 0.01]},
            ],
            "cv_before": before,
            "cv_after": after,
            "field_min": 0.5,
            "field_max": 1.75,
            "mask_fraction": 0.4,
            "left_out": {"nonfinite": 0, "nonpositive": 1234, "outliers": 8},
            "shrunk_shape": [16, self.edge, self.edge],
            "shrunk_spacing": [40.0] * 3,
            "variation": [
                {"number": k, "cv_before": before, "cv_after": after + 0.001 * k} for k in sections
            ],
        }
        if by_section:
            figures |= {
                "levels": [],
                "most_iterations": [],
                "mode": "per_section",
                "sections": [
                    {
                        "name": "section_07",
                        "planes": [14, 28],
                        "levels": [{"iterations": 3, "convergence": []}] * 2,
                        "field_min": 0.8,
                        "field_max": 1.3,
                    }
                ],
                "sections_skipped": ["section_09"],
            }
        if judged:
            figures["relative_entropy"] = [0.5, 0.25, 0.125, 0.75]
        if truth:
            kinds.append("true_field")
            figures["truth"] = {
                "cv_against_truth_before": 0.31,
                "cv_against_truth_after": 0.06,
                "field_correlation": 0.98765,
            }
        arrays = self.slices()
        for axis, height in {"z": self.edge, "y": 16, "x": 16}.items():
            shape = height, self.edge
            smooth = np.exp(np.hypot(*np.indices(shape)) / max(shape) - 0.5)
            for kind in kinds:
                image = smooth if kind.endswith("field") else self.image(*shape)
                arrays[f"{kind}_{axis}"] = image * (0.2 if kind == "after" else 1)
        arrays["profile_z"] = 40.0 * np.arange(16)
        arrays["profile_before"] = np.append(np.linspace(900, 1100, 15), np.nan)
        arrays["profile_after"] = np.append(np.full(15, 1000.0), np.nan)
        arrays["histogram_edges"] = np.linspace(0, 2000, 33)
        arrays["histogram_before"] = arrays["histogram_after"] = np.arange(32)
        settings = {"mask": "tissue", "strength": 0.75, "iterations": [5, 2]}
        self.save("n4", figures, arrays, settings)

    def pyramid(self) -> None:
        levels = [{"voxel_size": [v] * 3, "shape": [60, 96, 144], "bytes": 1e6} for v in (10, 25)]
        self.save("pyramid", {"levels": levels}, self.slices())

    def whole(
        self,
        sections: int,
        missing: tuple[int, ...] = (),
        outlier: int | None = None,
        surface: Mapping[str, object] | None = None,
        cut: Mapping[str, object] | None = None,
    ) -> "Subject":
        for k in range(1, sections + 1):
            if k not in missing:
                self.resample(k)
                self.stitch(k, seam=0.4 if k == outlier else None, surface=surface)
        self.stack(sections, missing, cuts={k: cut or {} for k in range(1, sections + 1)})
        self.n4(truth=True, sections=(k for k in range(1, sections + 1) if k not in missing))
        self.pyramid()
        return self

    def several(
        self, names: Sequence[str], sections: int = 2, nearest: Sequence[str] = ()
    ) -> "Subject":
        """Add the records of several channels; the first one was measured."""
        for name, own in zip(names, channel_ids(names), strict=True):
            self.channel, self.id = name, own if name != names[0] else ""
            self.is_nearest = name in nearest
            self.whole(sections)
        self.channel, self.id, self.is_nearest = "", "", False
        shown = zip(names, colors(len(names)), strict=True)
        channels = [
            {
                "name": name,
                "kind": "nearest" if name in nearest else None,
                "color": color,
                "window": [0.0, 1500.0],
            }
            for name, color in shown
        ]
        cuts = {
            f"slice_{axis}_{k}": self.image(self.edge, self.edge)
            for k in range(len(names))
            for axis in "zyx"
        }
        self.save("channels", {"channels": channels}, cuts | {"slice_spacing": np.full(3, 10.0)})
        return self

    def on_gpu(self) -> None:
        """Make the first section's RESAMPLE the second attempt at a task on a GPU."""
        record = json.loads(self.records[0].read_text(encoding="utf-8"))
        record["figures"]["gpu"] = {"backend": "gpu", "slot_wait_seconds": 75.0}
        record["bytes"]["copy"], record["seconds"]["copy"] = 4_000_000, 2.0
        record["device"] = {"backend": "gpu", "device": "Some GPU"}
        record["attempt"] = 2
        self.records[0].write_text(json.dumps(record), encoding="utf-8")

    def report(
        self,
        *,
        subject: str = "sub-01",
        run: Mapping[str, str] | None = None,
        lost: Outcome | None = None,
        overwrite: bool = False,
        channel: str | None = None,
    ) -> Path:
        destination = self.folder / "out" / "report.html"
        write_report(
            self.records, self.previews, destination, subject=subject, run=run, outcome=lost,
            channel=channel, execution=ExecutionParameters(overwrite=overwrite),
        )  # fmt: skip
        return destination
