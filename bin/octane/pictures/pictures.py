"""Pictures of slices for the report: arrays in, WebP or PNG bytes out."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from octane.core.files import MARK

GREY_COLOURS = ("#000000", "#ffffff")
DIVERGING_COLOURS = (
    *("#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7"),
    *("#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f"),
)
"""Colours of a logarithmic scale from low to high: RdBu of ColorBrewer, reversed."""
COLUMN, GAP, LETTERS = 288, 12, 15
"""Longest edge of a slice in a comparison, space around it, and height of letters, pixels."""


@dataclass(frozen=True)
class Scale:
    """Colours of values; pictures that are compared share one scale.

    A linear one is grey. A logarithmic one is for fields: red above 1 and blue below.
    """

    low: float
    high: float
    logarithmic: bool = False

    @property
    def colours(self) -> Sequence[str]:
        """Colours from low to high, evenly spaced along the scale."""
        return DIVERGING_COLOURS if self.logarithmic else GREY_COLOURS

    @property
    def table(self) -> npt.NDArray[np.uint8]:
        """The colours in 256 steps, red, green and blue."""
        stops = np.array([list(bytes.fromhex(colour[1:])) for colour in self.colours])
        at, along = np.linspace(0, 1, len(stops)), np.linspace(0, 1, 256)
        return np.rint([np.interp(along, at, channel) for channel in stops.T]).T.astype(np.uint8)

    def image(self, values: npt.NDArray) -> Image.Image:
        """Colour the values; those outside the scale's domain are middle grey."""
        known = np.isfinite(values) & ((values > 0) | (not self.logarithmic))
        held, low, high = np.where(known, values, self.low), self.low, self.high
        if self.logarithmic:
            held, low, high = np.log(held), np.log(low), np.log(high)
        index = np.rint(255 * np.clip((held - low) / (high - low), 0, 1)).astype(np.uint8)
        pixels = self.table[index] if self.logarithmic else index
        pixels[~known] = 128
        return Image.fromarray(pixels)


Slice = tuple[str, npt.NDArray, Scale]
"""Title, values and colours of a picture."""
Numbers = Sequence[tuple[int, float]]
"""Numbers of sections, and the middle of each as a fraction of the way down a picture."""


def grey_scale(arrays: Iterable[npt.NDArray]) -> Scale:
    """Choose one grey scale for all ``arrays``: their 0.5th to 99.5th percentile."""
    # As floats: bool cannot be subtracted.
    values = 1.0 * np.concatenate([a[np.isfinite(a)].ravel() for a in arrays])
    low, high = map(float, np.percentile(values, (0.5, 99.5))) if values.size else (0.0, 1.0)
    # A constant picture still needs a range.
    return Scale(low, high if high > low else low + 1.0)


def composite(layers: Sequence[tuple[npt.NDArray, Scale, str]]) -> Image.Image:
    """Add up slices of the same place, each within its own scale and in its colour RRGGBB."""
    total = sum(
        np.asarray(scale.image(np.nan_to_num(values, nan=scale.low)), float)[..., None]
        * (np.array([*bytes.fromhex(colour)]) / 255)
        for values, scale, colour in layers
    )
    return Image.fromarray(np.clip(np.rint(total), 0, 255).astype(np.uint8))


def field_scale(fields: Iterable[npt.NDArray]) -> Scale:
    """Choose one diverging scale for multiplicative fields.

    It is logarithmic and symmetric about 1: halving and doubling look equally strong.
    """
    values = np.concatenate([f[np.isfinite(f) & (f > 0)].ravel() for f in fields])
    reach = float(np.percentile(np.abs(np.log(values)), 99.9)) if values.size else 0.0
    # Below one percent a field counts as flat; a scale that magnifies it would show noise.
    top = float(np.exp(max(reach, 0.01)))
    return Scale(1 / top, top, logarithmic=True)


def round_length(length: float) -> float:
    """Find the largest 1, 2 or 5 times a power of ten that is at most ``length``."""
    power = 10.0 ** np.floor(np.log10(length))
    return float(max(k * power for k in (1, 2, 5) if k * power <= length * (1 + 1e-9)))


def bar_of(extent: float) -> float:
    """Choose the length of the scale bar in a picture of an ``extent``, micrometres."""
    return round_length(0.3 * extent)


def in_mm(micrometres: float) -> str:
    """Format the length of a scale bar; the pictures' font lacks the micro sign."""
    return f"{micrometres / 1000:.6g} mm"


@cache
def _letters(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _encode(image: Image.Image, kind: str, **options: int | PngInfo) -> bytes:
    stream = BytesIO()
    image.save(stream, format=kind, **options)
    return stream.getvalue()


def png(image: Image.Image) -> bytes:
    """Encode a picture for a file."""
    # By which --overwrite knows the report's pictures.
    mark = PngInfo()
    mark.add_text("Software", MARK.decode())
    return _encode(image, "png", compress_level=3, pnginfo=mark)


def uri(image: Image.Image) -> str:
    """Encode a picture for a page, as a data URI."""
    data = _encode(image, "webp", quality=74, method=2)
    return "data:image/webp;base64," + base64.b64encode(data).decode("ascii")


def panel(
    array: npt.NDArray,
    spacing: Sequence[float],
    scale: Scale,
    *,
    longest: int = 512,
    bar: bool | float = True,
    numbers: Numbers = (),
) -> Image.Image:
    """Draw a slice in its physical aspect, with a scale bar in the lower left corner.

    ``spacing`` is the pixel spacing down and across, micrometres; ``longest`` is the longest edge
    of the picture, pixels. The scale ``bar`` has this length in micrometres, or one that suits the
    picture (True); omit it (False) if the spacing is unknown. ``numbers`` are written along the
    right edge: all, or as many as there is room for.
    """
    light = scale.logarithmic
    drawn = scale.image(array)
    return frame_image(drawn, spacing, longest=longest, bar=bar, numbers=numbers, light=light)


def frame_image(
    image: Image.Image,
    spacing: Sequence[float],
    *,
    longest: int = 512,
    bar: bool | float = True,
    numbers: Numbers = (),
    light: bool = False,
) -> Image.Image:
    """Draw a slice that is coloured already, as :func:`panel` does.

    ``light`` is for pictures that are light around the middle of their scale.
    """
    height, width = image.height * spacing[0], image.width * spacing[1]
    unit = longest / max(height, width)
    size = (max(2, round(width * unit)), max(2, round(height * unit)))
    # Voxels that are far larger than pixels are shown as they are.
    large = size[0] > 3 * image.width
    kind = Image.Resampling.BOX if large else Image.Resampling.HAMMING
    image = image.resize(size, kind)
    length = bar_of(width) if bar is True else float(bar)
    # A bar shorter than a pixel is only named on the page, as is one that does not fit.
    if 1 <= length * unit <= 0.94 * size[0]:
        # Fields are light around 1, images dark around the tissue.
        ink, back = ("black", "white") if light else ("white", "black")
        draw, edge = ImageDraw.Draw(image), size[0] / 100
        x, y, end = 3 * edge, size[1] - 3 * edge, 3 * edge + length * unit
        draw.rectangle((x - edge / 2, y - 1.5 * edge, end - 1 + edge / 2, y + edge / 2), back)
        draw.rectangle((x, y - edge, end - 1, y), ink)
        # In a flat picture the text would hide the tissue; the page names the length as well.
        if size[1] >= size[0] / 3:
            draw.text(
                (x, y - 2.5 * edge),
                in_mm(length),
                ink,
                _letters(max(12, 5.5 * edge)),
                anchor="ls",
                stroke_width=max(1, edge / 3),
                stroke_fill=back,
            )
    _write_numbers(image, numbers)
    return image


def _write_numbers(image: Image.Image, numbers: Numbers) -> None:
    """Write every number, or every 2nd, 5th, 10th and so on, along the right edge."""
    letters = max(LETTERS, 0.055 * image.width)
    least = 1.2 * letters * len(numbers) / image.height
    step = next(k * 10**power for power in range(9) for k in (1, 2, 5) if k * 10**power >= least)
    draw, margin = ImageDraw.Draw(image), letters / 2 + 1
    for number, place in numbers:
        if number % step == 0:
            draw.text(
                (
                    image.width - letters / 3,
                    min(max(place * image.height, margin), image.height - margin),
                ),
                str(number),
                "white",
                _letters(letters),
                anchor="rm",
                stroke_width=max(1, letters / 15),
                stroke_fill="black",
            )


def comparison(
    rows: Sequence[tuple[Sequence[Slice], Sequence[float]]],
    numbers: Numbers = (),
    bar: bool | float = True,
) -> bytes:
    """Draw rows of slices, each row with its spacing, as a self-contained PNG.

    Titles are above the first row, and a colour bar for each scale is below the last one.
    ``numbers`` of sections are written into each slice; ``bar`` is as for :func:`panel`.
    """
    drawn = [
        [
            panel(voxels, spacing, scale, longest=COLUMN, numbers=numbers, bar=bar)
            for _, voxels, scale in r
        ]
        for r, spacing in rows
    ]
    titles, _, scales = zip(*rows[0][0], strict=True)
    left = [GAP + k * (COLUMN + GAP) for k in range(len(titles))]
    heights = [max(image.height for image in row) + GAP for row in drawn]
    head = 2 * GAP + LETTERS
    page = Image.new("RGB", (left[-1] + COLUMN + GAP, head + sum(heights) + 5 * LETTERS), "white")
    draw, letters = ImageDraw.Draw(page), _letters(LETTERS)
    for x, title in zip(left, titles, strict=True):
        draw.text((x + COLUMN / 2, head / 2), title, "black", letters, anchor="mm")
    y = head
    for row, height in zip(drawn, heights, strict=True):
        for x, image in zip(left, row, strict=True):
            page.paste(image, (x + (COLUMN - image.width) // 2, y))
        y += height
    for scale in dict.fromkeys(scales):
        columns = [x for x, other in zip(left, scales, strict=True) if other == scale]
        _colour_bar(page, scale, columns[0], columns[-1] + COLUMN, y)
    return png(page)


def _colour_bar(page: Image.Image, scale: Scale, begin: int, end: int, y: int) -> None:
    """Draw a scale's colours with its ends and its label between two edges, from y downwards."""
    bar = Image.fromarray(scale.table[None]).resize((end - begin, LETTERS))
    page.paste(bar, (begin, y))
    draw, letters, middle = ImageDraw.Draw(page), _letters(LETTERS), (begin + end) / 2
    ticks: list[tuple[str, float, float]] = [("l", begin, scale.low), ("r", end, scale.high)]
    ticks += [("m", middle, 1.0)] * scale.logarithmic
    for anchor, x, tick in ticks:
        named = f"{tick:.3g}" if tick < 1000 else f"{tick:.0f}"
        draw.text((x, y + 1.5 * LETTERS), named, "black", letters, anchor=f"{anchor}t")
    label = "field (blue: the image was too dark)" if scale.logarithmic else "intensity"
    draw.text((middle, y + 3 * LETTERS), label, "black", letters, anchor="mt")
