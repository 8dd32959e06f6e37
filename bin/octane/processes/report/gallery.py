"""Templates of the report's pages, and the pictures that they show."""

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache

import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL.Image import Image

from octane.core.geometry import Vector
from octane.core.records import Context
from octane.core.units import counted
from octane.pictures import charts, pictures
from octane.processes.report.tasks import CUTS


@cache
def _environment() -> Environment:
    """Template environment, which compiles each template once."""
    environment = Environment(
        loader=PackageLoader("octane.processes.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"command": shlex.join, "counted": counted, "uri": pictures.uri}
    return environment


def render(template: str, **content: object) -> str:
    """Render a template of ``templates/``; values are escaped, an undefined one is an error."""
    page = _environment().get_template(template)
    return page.render(**content, light=charts.LIGHT_PALETTE, dark=charts.DARK_PALETTE)


class Gallery:
    """The page's pictures, each also as a file: slices as PNG, charts as SVG.

    All have a scale bar of one length, which fits ``width``, that of the narrowest picture in
    micrometres; None if that is unknown.
    """

    def __init__(self, width: float | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.bar: bool | float = True if width is None else pictures.bar_of(width)

    def chart(self, name: str, title: str, alt: str, chart: charts.Chart) -> Context:
        """Draw a chart for the page and for a file."""
        svg = render("chart.svg.j2", **chart._asdict())
        alone = re.sub(r"var\(--(\w+)\)", lambda colour: charts.LIGHT_PALETTE[colour[1]], svg)
        self.files[f"{name}.svg"] = alone.encode()
        return {
            "title": title,
            "alt": alt,
            "svg": svg,
            "wide": chart.axes.size == charts.WIDE_CHART_SIZE,
        }

    def cuts(
        self,
        name: str,
        spacing: Vector,
        kinds: Mapping[str, tuple[str, pictures.Scale]],
        arrays: Mapping[str, npt.NDArray],
        numbers: pictures.Numbers = (),
        longest: int = 512,
    ) -> list[Context]:
        """Make one row per orthogonal cut, with one picture per kind.

        ``numbers`` of sections are written along z; ``longest`` is the longest edge of a picture.
        """
        rows: list[Context] = []
        for axis, (down, across) in CUTS.items():
            here = (spacing[down], spacing[across])
            slices = [(t, arrays[f"{kind}_{axis}"], scale) for kind, (t, scale) in kinds.items()]
            along = numbers if down == 0 else ()
            self.files[f"{name}_{axis}.png"] = pictures.comparison(
                [(slices, here)], along, self.bar
            )
            drawn = [
                (
                    title,
                    pictures.panel(
                        *(array, here, scale), numbers=along, longest=longest, bar=self.bar
                    ),
                )
                for title, array, scale in slices
            ]
            rows.append(self._row(axis, drawn, slices[0][1].shape[1] * here[1]))
        return rows

    def composite(
        self,
        name: str,
        spacing: Vector,
        layers: Mapping[str, Sequence[tuple[npt.NDArray, pictures.Scale, str]]],
        numbers: pictures.Numbers = (),
    ) -> list[Context]:
        """Make one row per orthogonal cut, with the sum of its ``layers`` in their colours."""
        rows: list[Context] = []
        for axis, (down, across) in CUTS.items():
            image, here = pictures.composite(layers[axis]), (spacing[down], spacing[across])
            along = numbers if down == 0 else ()
            picture = pictures.frame_image(image, here, numbers=along, bar=self.bar)
            self.files[f"{name}_{axis}.png"] = pictures.png(picture)
            rows.append(self._row(axis, [("composite", picture)], image.width * here[1]))
        return rows

    def _row(self, axis: str, drawn: list[tuple[str, Image]], width: float) -> Context:
        """One orthogonal cut of the page; ``width`` is that of its pictures in micrometres."""
        down, across = ("zyx"[k] for k in CUTS[axis])
        bar = pictures.in_mm(pictures.bar_of(width) if self.bar is True else self.bar)
        return {"axis": axis, "down": down, "across": across, "drawn": drawn, "bar": bar}
