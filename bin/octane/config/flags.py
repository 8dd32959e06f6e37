"""Command-line parser built from a function's parameters and the fields of their models."""

import argparse
import inspect
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, NoReturn, cast, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from octane import __version__
from octane.config.parameters import StepParameters
from octane.core.errors import InputError
from octane.core.units import without_comma

StoreName = Annotated[Path, ".zarr"]
"""Path of an OME-Zarr image to create."""
NEGATIVE = re.compile(r"-\.?\d")
SWITCHED = ("true", "false")
"""Start of a negative number; argparse mistakes ``-1e-3`` for a flag."""
ADDRESS = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""Start of an address such as ``s3://bucket/brain.ome.zarr``."""


class Parser(argparse.ArgumentParser):
    """Parser of the arguments of a function, whose docstring is the help.

    The fields of each parameter that is a model become flags, named like the workflow's parameters,
    and the model validates their values. Other parameters are switches, strings, paths, or lists.
    """

    def __init__(self, step: Callable[..., None]) -> None:
        about, _, stated = (inspect.getdoc(step) or "").partition("\n\nParameters\n")
        super().__init__(description=about, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        self.add_argument("--version", action="version", version=__version__)
        self.flags, self.switches = ["--help", "--version"], dict[str, tuple[str, ...]]()
        self.signature = inspect.signature(step)
        # Empty if Python runs without docstrings (-OO).
        helps = defaultdict(str, re.findall(r"^(\w+)\n((?: {4}.+\n?)+)", stated, re.MULTILINE))
        required, optional, self.late = [], [], list[str]()
        for name, own in self.signature.parameters.items():
            if model := _model(own):
                group = self.add_argument_group(model.title) if model.title else self
                for field, info in model.model_fields.items():
                    flags = [model.flag(field), *filter(None, [_noted(info, "alias")])]
                    kind, default = info.annotation, info.default
                    self._add(group.add_argument, flags, field, kind, default, _described(info))
            elif own.kind is own.POSITIONAL_ONLY:
                if own.default is own.empty:
                    required.append(name.upper())
                elif list not in _members(own.annotation):
                    required.append(f"[{name.upper()}]")
                    self.late.append(name)
                else:
                    optional.append(f"[-- {name.upper()}]")
                self._add(self.add_argument, [], name, own.annotation, own.default, helps[name])
            else:
                text = helps[name] + " [required]" * (own.default is own.empty)
                flags = [f"--{name}"]
                self._add(self.add_argument, flags, name, own.annotation, own.default, text)
        # Positionals come first, or an option that takes a list would consume them.
        self.usage = " ".join(["%(prog)s", *required, "[OPTIONS]", *optional])

    def _add(
        self,
        add: Callable[..., argparse.Action],
        flags: list[str],
        name: str,
        kind: object,
        default: object,
        text: str,
    ) -> None:
        types, text = _members(kind), text.replace("%", "%%")
        self.flags += flags
        if bool in types:
            words = SWITCHED + tuple(str(own) for own in types if own is not bool)
            self.switches |= dict.fromkeys(flags, words)
            kind = partial(_switched, words)
            add(*flags, dest=name, type=kind, metavar=f"[{'|'.join(words)}]", help=text)
            return
        several = list in types
        # A positional with a default may be missing.
        may_lack = not flags and default is None
        nargs = ("*" if may_lack else "+") if several else "?" if may_lack else None
        shown = [t.__name__.upper() if isinstance(t, type) else str(t) for t in types[several:]]
        add(
            *(flags or [name]),
            **({"dest": name} if flags else {}),
            # argparse would convert the word by which it suppresses a default.
            **({"default": None} if nargs == "?" else {}),
            action="extend" if several else "store",
            nargs=nargs,
            type=_path if Path in types else str,
            metavar="|".join(shown) if flags else name.upper(),
            help=text,
        )

    def error(self, message: str) -> NoReturn:
        """Raise an InputError instead of exiting."""
        raise InputError(f"{message[0].upper()}{message[1:]}. See --help.")

    def arguments(self, words: list[str] | None = None) -> inspect.BoundArguments:
        """Parse ``words``, by default the command line's."""
        found, left = self.parse_known_args(self._joined(sys.argv[1:] if words is None else words))
        if unknown := [word for word in left if word.startswith("-")]:
            hint = " Put the command and its flags after --." if "[-- " in str(self.usage) else ""
            name = unknown[0].partition("=")[0]
            raise InputError(misspelt(name, self.flags) + hint)
        given = vars(found)
        # Python 3.11's argparse does not look for an optional positional behind a flag.
        late = [name for name in self.late if given.get(name) is None]
        given |= dict(zip(late, map(_path, left), strict=False))
        if len(left) > len(late):
            self.error(f"unexpected argument {left[len(late)]!r}")
        for name, own in self.signature.parameters.items():
            if model := _model(own):
                fields = model.model_fields.items()
                values = {f: os.environ.get(_noted(info, "variable")) for f, info in fields}
                values |= {f: given.pop(f) for f, _ in fields if f in given}
                try:
                    given[name] = model(**{f: v for f, v in values.items() if v is not None})
                except ValidationError as error:
                    raise InputError(" ".join(sentences(error, model))) from error
            elif name not in given and own.default is own.empty:
                self.error(f"--{name} is missing")
            elif own.annotation == StoreName and given[name].suffix != ".zarr":
                raise InputError(f"{given[name]} is not an OME-Zarr name; end it in .ome.zarr.")
        bound = self.signature.bind_partial()
        bound.arguments |= given
        return bound

    def _joined(self, words: Sequence[str]) -> list[str]:
        """Join values to their flags with ``=`` if argparse would not read them as values."""
        end = words.index("--") if "--" in words else len(words)
        joined: list[str] = []
        for word in words[:end]:
            flag = joined[-1] if joined else ""
            is_value = word in self.switches.get(flag, ())
            if is_value or (flag in self.flags and NEGATIVE.match(word)):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        # A switch without a value is on.
        return [f"{w}=true" if w in self.switches else w for w in joined] + [*words[end:]]


def misspelt(given: str, names: Collection[str]) -> str:
    """Error message for an unknown name, with the closest valid ones.

    The name may lack the step's prefix, or use hyphens or capitals: ``--shrink-factor`` suggests
    ``--n4_shrink_factor``.
    """
    import difflib

    bare = given.lstrip("-")
    plain = re.sub(r"-|(?<=[a-z\d])(?=[A-Z])", "_", bare).lower()
    spelt = given[: len(given) - len(bare)] + plain
    near = [name for name in names if name == spelt or name.endswith(f"_{plain}")]
    near = near or difflib.get_close_matches(spelt, names, n=1)
    hint = f"did you mean {' or '.join(near)}?" if near else "see --help for all."
    return f"Unknown parameter {given}; {hint}"


def sentences(error: ValidationError, model: type[StepParameters]) -> list[str]:
    """Write one sentence per problem; an unknown name gets the closest field as a suggestion."""
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else "parameters"
        flag = model.flag(name)
        if problem["type"] == "extra_forbidden":
            lines.append(misspelt(flag, [model.flag(field) for field in model.model_fields]))
        else:
            message = problem["msg"].removeprefix("Value error, ")
            words = f"{message[0].lower()}{message[1:]}".rstrip(".")
            given = problem["input"]
            shown = " ".join(map(str, given)) if isinstance(given, list | tuple) else given
            unit = _unit(model, name)
            if "%" in str(shown) or problem.get("ctx") == {"lt": 1}:
                words = "give a fraction below 1, such as 0.2 for 20 %"
            elif unit and re.fullmatch(r"[\d.,\s]*\d\s*[A-Za-z\u00b5\u03bc]+", str(shown)):
                words = f"give the number of {unit}s without a unit"
            # Two numbers for three axes may be meant as two.
            elif not words.startswith("give one") and (mended := without_comma(str(shown))):
                words = f"it has a comma; write {mended}"
            lines.append(f"{flag} is {shown!r}: {words}.")
    # Each invalid member of a list is a separate problem with the same message.
    return list(dict.fromkeys(lines))


def _unit(model: type[StepParameters], name: str) -> str:
    """Unit of a field as prose spells it, or '' if it has none."""
    known = name in model.model_fields
    return _noted(model.model_fields[name], "unit").replace("meter", "metre") if known else ""


def _switched(words: tuple[str, ...], text: str) -> bool | str:
    if text not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is not a switch; write {' or '.join(words)}")
    return text == "true" if text in SWITCHED else text


def _path(text: str) -> Path:
    # Path would make one slash of two.
    if ADDRESS.match(text):
        raise InputError(
            f"{text} is an address, but octane reads and writes files only: mount or copy it, as "
            "in docs/faq.md#remote."
        )
    return Path(text)


def _model(parameter: inspect.Parameter) -> type[StepParameters] | None:
    kind = parameter.annotation
    return kind if isinstance(kind, type) and issubclass(kind, StepParameters) else None


def _noted(info: FieldInfo, key: str) -> str:
    """Value of a field's extra under a key, or ''."""
    return cast("dict[str, str]", info.json_schema_extra).get(key, "")


def _described(info: FieldInfo) -> str:
    text, default = info.description or "", info.default
    if unit := _noted(info, "unit"):
        text += f" [{unit}]"
    if variable := _noted(info, "variable"):
        text += f" [environment: {variable}]"
    if default is not None and default is not False and default not in ("", ()):
        values = default if isinstance(default, tuple) else [default]
        text += f" [default: {' '.join(map(str, values))}]"
    return text


def _members(kind: object) -> list[object]:
    """Types and literals that an annotation allows except None; lists and tuples add ``list``."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _members(parts[0])
    if origin in (list, tuple):
        return [list, *_members(parts[0])]
    if parts:
        # The parts of a Literal are its values.
        return [member for part in parts for member in _members(part)]
    return [] if kind is NoneType else [kind]
