"""Names of tiles' files: patterns with fields, given by the user or found in the names."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from unicodedata import normalize

from octane.core.errors import InputError
from octane.layout.sections import MOST_DIGITS

FIELDS = ("section", "row", "column", "tile", "plane", "channel")
"""Fields of a pattern; all but the channel are numbers."""
PLACING = ("row", "column", "tile")
"""Fields that tell the tiles of a section apart."""
PARTED = ("plane", "channel")
"""Fields that tell the files of a tile apart."""
WORDS = {
    **dict.fromkeys(("section", "slice", "slab", "sec"), "section"),
    **dict.fromkeys(("row", "r", "y"), "row"),
    **dict.fromkeys(("column", "col", "x"), "column"),
    **dict.fromkeys(("plane", "z"), "plane"),
    **dict.fromkeys(("channel", "ch"), "channel"),
    **dict.fromkeys(("tile", "fov", "position", "pos"), "tile"),
}
"""Meaning of the word before a number; that of ``c`` depends on the other words."""
MOST_ENDLESS = 5
"""Most parts of a pattern that can end anywhere: one more takes minutes for a long name that does
not fit, as all their combinations are tried."""
PARTS = re.compile(r"(\{[^{}]*\}|\*)")
NUMBER = re.compile(r"(\d+)")
WORD = re.compile(r"([A-Z]?[a-z]+|[A-Z]+)[ _.=-]*$")
"""Last word of the text before a number; a capital begins a new one."""

VENDORS = {
    "Micro-Manager": re.compile(
        r"(?:.*/)?[^/]*_MMStack_[^/]*-Pos_?(?P<column>\d+)_(?P<row>\d+)\.ome\.tiff?"
    ),
    "Opera Phenix": re.compile(
        r"(?:.*/)?r(?P<well>\d+c\d+)f(?P<tile>\d+)(?:p(?P<plane>\d+))?-ch(?P<channel>\d+)"
        r"sk(?P<time>\d+)(?:fk\d+)?(?:fl\d+)?\.tiff?"
    ),
    "ImageXpress": re.compile(
        r"(?:.*?/)??(?:TimePoint_(?P<time>\d+)/)?(?:ZStep_(?P<plane>\d+)/)?[^/]*?_?"
        r"(?P<well>[A-P]\d\d)_s(?P<tile>\d+)(?:_w(?P<channel>\d))?"
        r"(?P<any>[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27})?\.(?:tiff?|TIFF?)"
    ),
    "ImageXpress, with planes in its names,": re.compile(
        r"(?:.*?/)??(?:TimePoint_(?P<time>\d+)/)?[^/]*_?(?P<well>[A-P]\d\d)_s(?P<tile>\d+)"
        r"_w(?P<channel>\d)_z(?P<plane>\d+)\.(?:tiff?|TIFF?)"
    ),
    "ThorImage": re.compile(
        r"(?:.*/)?Chan(?P<channel>[A-Z])_(?P<well>\d+)_(?P<tile>\d+)_(?P<plane>\d+)_(?P<time>\d+)"
        r"\.tiff?"
    ),
}
"""Names that programs of microscopes write, of which other rules would mistake a number."""
SINGLE = {"well": "wells or regions", "time": "time points"}
"""Parts of a vendor's names of which a mosaic has one."""

SHOWN = 10
"""Most files or folders that a sentence lists."""


def compose_accents(name: str) -> str:
    """Write accents as parts of their letters, which macOS writes behind them: to compare names."""
    return normalize("NFC", name)


@dataclass(frozen=True)
class NamePattern:
    """Pattern of the files' names, relative to their folder: text, ``{fields}`` and ``*``."""

    text: str
    fields: frozenset[str]
    expression: re.Pattern[str]

    @classmethod
    def of(cls, text: str) -> "NamePattern":
        """Parse a pattern; raise an InputError if it is invalid."""
        text = compose_accents(text)
        fields: set[str] = set()
        parts: list[str] = []
        split = PARTS.split(re.sub(r"\*+", "*", text))
        _require_few(text, split)
        for k, part in enumerate(split):
            name = part[1:-1]
            if part == "*":
                parts.append("[^/]*")
            elif not PARTS.fullmatch(part):
                parts.append(re.escape(part))
            elif name not in FIELDS:
                raise InputError(
                    f"--tile_pattern is '{text}', in which {part} is unknown; use "
                    f"{', '.join(f'{{{field}}}' for field in FIELDS)} and *."
                )
            elif name in fields:
                parts.append(f"(?P={name})")
            else:
                fields.add(name)
                # A * next to a number takes none of its digits.
                group = (
                    "(?<![0-9])" * (split[k - 2 : k] == ["*", ""]) + f"(?P<{name}>{_form(name)})"
                )
                parts.append(group + "(?![0-9])" * (split[k + 1 : k + 3] == ["", "*"]))
        if "tile" in fields and fields & {"row", "column"}:
            raise InputError(
                f"--tile_pattern is '{text}', which has {{tile}} as well as {{row}} or {{column}}; "
                "write * for one of them."
            )
        if "}{" in text:
            raise InputError(
                f"--tile_pattern is '{text}', in which two fields touch; rename the files with a "
                "separator between them."
            )
        return cls(text, frozenset(fields), re.compile("".join(parts)))

    def match(self, name: str) -> re.Match[str] | None:
        """Match of a whole name."""
        return self.expression.fullmatch(compose_accents(name))

    @property
    def depth(self) -> int:
        """Number of subfolders in the pattern."""
        return self.text.count("/")


class NamedFile(NamedTuple):
    """The fields in a file's name; numbers are as written, None for fields that the pattern lacks.

    ``stem`` is the name without plane and channel.
    """

    name: str
    stem: str
    section: int
    row: int | None
    column: int | None
    number: int | None
    plane: int | None
    channel: str | None

    @property
    def tile_key(self) -> tuple[object, ...]:
        """Identity of the file's tile: files that differ in plane or channel share it."""
        numbers = self.section, self.row, self.column, self.number
        return numbers if numbers[1:] != (None, None, None) else (self.section, self.stem)

    @classmethod
    def read_fitting(
        cls, names: Sequence[str], pattern: NamePattern
    ) -> tuple[list["NamedFile"], list[str]]:
        """Read the names that fit the pattern, and list the others; raise if none fits."""
        fits = {name: pattern.match(name) is not None for name in names}
        files = [cls.read(name, pattern) for name in names if fits[name]]
        others = [name for name in names if not fits[name]]
        return files or [cls.read(names[0], pattern)], others

    @classmethod
    def read(cls, name: str, pattern: NamePattern) -> "NamedFile":
        """Read a name; raise an InputError if it does not fit the pattern."""
        match = pattern.match(name)
        if match is None:
            raise InputError(
                f"{name} does not fit --tile_pattern '{pattern.text}'; correct the pattern, or "
                "move the file elsewhere if it is not a tile."
            )
        fields, stem = match.groupdict(), match.string
        for start, stop in sorted((match.span(f) for f in fields if f in PARTED), reverse=True):
            stem = stem[:start] + stem[stop:]
        texts = {field: text for field, text in fields.items() if field != "channel"}
        if long := [field for field, text in texts.items() if len(text.lstrip("-0")) > MOST_DIGITS]:
            raise InputError(
                f"{name} has the {long[0]} {texts[long[0]]}, of more than {MOST_DIGITS} digits; "
                "rename it, or correct --tile_pattern."
            )
        numbers = {field: int(text) for field, text in texts.items()}
        row, column, number = (numbers.get(field) for field in ("row", "column", "tile"))
        section, plane = numbers.get("section", 1), numbers.get("plane")
        return cls(name, stem, section, row, column, number, plane, fields.get("channel"))


def _require_few(text: str, split: Sequence[str]) -> None:
    """Raise unless few of a pattern's parts can end at several places in a name."""
    # The digits of a number may also be those of the text after it.
    endless = [
        part
        for part, after in zip(split[1::2], split[2::2], strict=True)
        if part in ("*", "{channel}") or after[:1].isdigit()
    ]
    if len(endless) > MOST_ENDLESS:
        raise InputError(
            f"--tile_pattern is '{text}', in which {len(endless)} parts can end anywhere "
            f"({', '.join(dict.fromkeys(endless))}); keep {MOST_ENDLESS}, and write others as the "
            "text that all names share."
        )


def _form(field: str) -> str:
    """Regular expression of a field's text: rows and columns may count from below 0."""
    if field == "channel":
        return "[^/]+?"
    return "-?[0-9]+" if field in ("row", "column") else "[0-9]+"


def find_pattern(names: Sequence[str]) -> NamePattern:
    """Find the pattern of the names; an InputError shows two names if it is ambiguous."""
    text, doubt = _propose_pattern(names)
    if doubt:
        raise InputError(doubt)
    return NamePattern.of(text)


def _propose_pattern(names: Sequence[str]) -> tuple[str, str]:
    """Pattern that the names may have, '' without one, and a sentence if that is in doubt."""
    for program, expression in VENDORS.items():
        matches = [expression.fullmatch(name) for name in names]
        if None not in matches:
            return _vendors_pattern(program, [match for match in matches if match])
    split = [NUMBER.split(name) for name in names]
    texts = [tuple(parts[::2]) for parts in split]
    usual = Counter(texts).most_common(1)[0][0]
    odd = next((k for k, text in enumerate(texts) if text != usual), None)
    if odd is not None:
        alike = [name for name, text in zip(names, texts, strict=True) if text == usual]
        text, _ = _propose_pattern(alike)
        shown = f"--tile_pattern '{text}', which leaves it out" if text else "--tile_pattern"
        return text, (
            f"{names[odd]} is named unlike other tiles, such as {alike[0]}; give {shown}, or move "
            "the file elsewhere if it is not a tile."
        )
    columns = [[parts[k] for parts in split] for k in range(1, len(split[0]), 2)]
    fields = _fields(usual, columns)
    if fields is not None and (len(names) == 1 or set(fields) & {*PLACING}):
        return _fill_fields(usual, columns, fields), ""
    guess = _guess_fields(usual, columns)
    text = _fill_fields(usual, columns, guess) if {*guess} & {*PLACING} else ""
    return text, (
        f"Names such as {names[0]} and {names[-1]} do not say what their numbers mean; give "
        f"--tile_pattern, such as '{text or '{section}_y{row}_x{column}.tif'}'."
    )


def _fill_fields(
    texts: Sequence[str], columns: Sequence[Sequence[str]], fields: Sequence[str]
) -> str:
    """Names with fields, '' for a number that never changes and '*' for any, as a pattern."""
    pieces = [texts[0]]
    for text, values, field in zip(texts[1:], columns, fields, strict=True):
        pieces += [field if field == "*" else f"{{{field}}}" if field else values[0], text]
    return "".join(pieces)


def _guess_fields(texts: Sequence[str], columns: Sequence[Sequence[str]]) -> list[str]:
    """Fields that numbers may be: the first one without a word a section's, the last one a tile's.

    All are '' if there is no guess.
    """
    meanings = _meanings(texts)
    numbers = [(*values,) for values in columns]
    varied = [len({*values}) > 1 for values in numbers]
    free = ["section"] * ("section" not in meanings) + ["tile"] * (not {*meanings} & {*PLACING})
    unknown = dict.fromkeys(
        n for n, m, v in zip(numbers, meanings, varied, strict=True) if v and not m
    )
    named = dict(zip(unknown, free[-len(unknown) :], strict=False))
    fields = [
        m or named.get(n, "") if v else ""
        for n, m, v in zip(numbers, meanings, varied, strict=True)
    ]
    known = {(f, n) for f, n in zip(fields, numbers, strict=True) if f}
    is_clear = len(unknown) <= len(free) and len(known) == len({f for f, _ in known})
    is_sided = ("row" in fields) != ("column" in fields)
    return fields if is_clear and not is_sided else [""] * len(columns)


def with_folders(error: InputError, names: Sequence[str]) -> InputError:
    """Add to an error on names the folders that they are in, which may be subjects."""
    folders = [*dict.fromkeys(name.partition("/")[0] for name in names if "/" in name)]
    if len(folders) < 2:
        return error
    shown = ", ".join(folders[:SHOWN]) + f" and {len(folders) - SHOWN} more" * (
        len(folders) > SHOWN
    )
    return InputError(
        f"{str(error).removesuffix('.')}, or, if the folders {shown} are subjects, one of them, or "
        "all in a --samplesheet."
    )


def _vendors_pattern(program: str, matches: Sequence[re.Match[str]]) -> tuple[str, str]:
    """Pattern of names that all fit the expression of a program's names, and a doubt as above."""
    first = matches[0]
    parts = {part: {match[part] for match in matches} for part in first.groupdict()}
    for part, what in SINGLE.items():
        if len(values := parts.get(part, {""})) > 1:
            raise InputError(
                f"{first.string} and others, as {program} writes them, are of {len(values)} "
                f"{what}; give a folder with one, or --tile_pattern with its number."
            )
    if parts.get("any", {None}) != {None} and len(parts["channel"]) > 1:
        raise InputError(
            f"{first.string} has an identifier behind its channel, where the channel's end cannot "
            "be told; rename the files without it."
        )
    # A number that never changes is text, but rows and columns are always both there.
    varied = {part for part, texts in parts.items() if len(texts) > 1 or part in ("row", "column")}
    fields = {part: "*" if part == "any" else f"{{{part}}}" for part in varied}
    texts = {_replace_parts(match, fields) for match in matches}
    if len({NUMBER.sub("", text) for text in texts}) < len(texts):
        return _with_section(program, sorted(texts), [match.string for match in matches])
    if len(texts) > 1:
        one, other = sorted(texts)[:2]
        raise InputError(
            f"Names as {program} writes them are of two forms, '{one}' and '{other}'; give one as "
            "--tile_pattern, which leaves out the files of the other."
        )
    return texts.pop(), ""


def _with_section(program: str, texts: Sequence[str], names: Sequence[str]) -> tuple[str, str]:
    """Pattern of a program's names that differ in a further number, in doubt if no word names it.

    ``texts`` are the names with the fields of the program.
    """
    split = [NUMBER.split(text) for text in texts]
    usual, pattern, words = split[0][::2], "", list[str]()
    if all(parts[::2] == usual for parts in split):
        columns = [[parts[k] for parts in split] for k in range(1, len(split[0]), 2)]
        varied = [k for k, values in enumerate(columns) if len({*values}) > 1]
        words = [WORDS.get(_word(usual[k]), "") for k in varied]
        first = columns[varied[words.index("section") if "section" in words else 0]]
        if all([*map(int, columns[k])] == [*map(int, first)] for k in varied):
            fields = [""] * len(columns)
            for k in varied:
                fields[k] = "section" if columns[k] == first else "*"
            pattern = _fill_fields(usual, columns, fields)
    if pattern and "section" in words:
        return pattern, ""
    shown = f" '{pattern}'" if pattern else ", with {section}"
    return pattern, (
        f"Names as {program} writes them differ in a further number, as in {names[0]} and "
        f"{names[-1]}; give --tile_pattern{shown} if it is a section's."
    )


def _replace_parts(match: re.Match[str], fields: Mapping[str, str]) -> str:
    """A name with the matched parts replaced by these texts."""
    text = match.string
    for part in sorted(fields, key=match.start, reverse=True):
        if match[part] is not None:
            text = text[: match.start(part)] + fields[part] + text[match.end(part) :]
    return text


def _fields(texts: Sequence[str], columns: Sequence[Sequence[str]]) -> list[str] | None:
    """Field of each number in the names, '' for one that never changes; None if ambiguous."""
    meanings = _meanings(texts)
    fields: list[str] = []
    known: dict[str, Sequence[str]] = {}
    for meaning, values in zip(meanings, columns, strict=True):
        if len(set(values)) == 1 and meaning not in ("section", "row", "column"):
            fields.append("")
            continue
        same = next((field for field, numbers in known.items() if numbers == values), "tile")
        field = meaning or same
        # A number without a word counts the tiles if nothing else tells them apart.
        if known.setdefault(field, values) != values:
            return None
        fields.append(field)
    # A row without a column is ambiguous, and so is a tile number next to both.
    one_sided = ("row" in fields) != ("column" in fields)
    return None if one_sided or ("tile" in fields and "row" in fields) else fields


def _meanings(texts: Sequence[str]) -> list[str]:
    """Field that the word before each number states, '' for other words."""
    words = [_word(text) for text in texts[:-1]]
    meanings = [WORDS.get(word, "") for word in words]
    if "c" in words:
        meaning = "column" if "row" in meanings and "column" not in meanings else "channel"
        meanings = [meaning if w == "c" else m for w, m in zip(words, meanings, strict=True)]
    return meanings


def _word(text: str) -> str:
    match = WORD.search(text)
    return match[1].lower() if match else ""
