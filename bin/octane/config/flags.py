"""Words of a command line, by the parameters of its function and the fields of their models."""

import argparse
import inspect
import os
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Annotated, NoReturn, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from octane import __version__
from octane.config.validation import misspelt, sentences
from octane.core.errors import OctaneError

StoreName = Annotated[Path, ".zarr"]
"""Name of an OME-Zarr image that is made."""


class Parser(argparse.ArgumentParser):
    """Parser of the words for a function, whose docstring is the help.

    The fields of each parameter that is a model become flags, and the model checks their values.
    Other parameters are switches, texts, and paths or lists of them.
    """

    def __init__(self, step: Callable[..., None]) -> None:
        about, _, stated = (inspect.getdoc(step) or "").partition("\n\nParameters\n")
        super().__init__(description=about, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        self.add_argument("--version", action="version", version=__version__)
        # Any number may be a value; argparse takes -1e-3 for a flag.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.signature = inspect.signature(step)
        # Python without docstrings (-OO) has none.
        helps = defaultdict(str, re.findall(r"^(\w+)\n((?: {4}.+\n?)+)", stated, re.MULTILINE))
        required, optional = [], []
        for name, own in self.signature.parameters.items():
            if model := _model(own):
                title = getattr(model, "title", "")
                group = self.add_argument_group(title) if title else self
                for field, info in model.model_fields.items():
                    flags = [_flag(field), *filter(None, [_noted(info, "alias")])]
                    self._add(group, flags, info.annotation, info.default, _described(info))
            elif own.kind is own.POSITIONAL_ONLY:
                if own.default is own.empty:
                    required.append(name.upper())
                else:
                    optional.append(f"[-- {name.upper()}]")
                self._add(self, [name], own.annotation, own.default, helps[name])
            else:
                text = helps[name] + " [required]" * (own.default is own.empty)
                self._add(self, [_flag(name)], own.annotation, own.default, text)
        # A list among the options would take the words behind it.
        self.usage = " ".join(["%(prog)s", *required, "[OPTIONS]", *optional])

    def _add(
        self,
        group: argparse._ActionsContainer,
        names: list[str],
        kind: object,
        default: object,
        text: str,
    ) -> None:
        types, text = _members(kind), text.replace("%", "%%")
        if bool in types:
            switch = argparse.BooleanOptionalAction if default else "store_true"
            group.add_argument(*names, action=switch, help=text)
            return
        several, word = list in types, not names[0].startswith("-")
        shown = [t.__name__.upper() if isinstance(t, type) else str(t) for t in types[several:]]
        group.add_argument(
            *names,
            action="extend" if several else "store",
            # A list of words that has a default may be empty.
            nargs=("*" if word and default is None else "+") if several else None,
            type=Path if Path in types else str,
            metavar=names[0].upper() if word else "|".join(shown),
            help=text,
        )

    def error(self, message: str) -> NoReturn:
        """Raise an OctaneError for words that are wrong."""
        if "ignored explicit argument" in message:
            name = message.split(":")[0]
            message = f"{name} takes no value: give it alone, or leave it out"
        raise OctaneError(f"{message[0].upper()}{message[1:]}. See --help.")

    def arguments(self, words: list[str] | None = None) -> inspect.BoundArguments:
        """Read the words, by default those of the command line."""
        found, left = self.parse_known_args(words)
        if unknown := [word for word in left if word.startswith("-")]:
            hint = " A command's own flags come after --." if "[-- " in str(self.usage) else ""
            name = unknown[0].partition("=")[0]
            raise OctaneError(misspelt(name, self._option_string_actions) + hint)
        if left:
            self.error(f"{left[0]!r} is one word too many")
        given = vars(found)
        for name, own in self.signature.parameters.items():
            if model := _model(own):
                fields = model.model_fields.items()
                values = {f: os.environ.get(_noted(info, "variable")) for f, info in fields}
                values |= {f: given.pop(f) for f, _ in fields if f in given}
                try:
                    given[name] = model(**{f: v for f, v in values.items() if v is not None})
                except ValidationError as error:
                    raise OctaneError(" ".join(sentences(error, model))) from error
            elif name not in given and own.default is own.empty:
                self.error(f"{_flag(name)} is missing")
            elif own.annotation == StoreName and given[name].suffix != ".zarr":
                raise OctaneError(
                    f"{given[name]} is no name of an OME-Zarr image; end it in .ome.zarr."
                )
        bound = self.signature.bind_partial()
        bound.arguments |= given
        return bound


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _model(parameter: inspect.Parameter) -> type[BaseModel] | None:
    kind = parameter.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _noted(info: FieldInfo, key: str) -> str:
    """Return what the parameter notes under a key; empty: nothing."""
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
    """Types and words that an annotation allows besides None; of lists and tuples ``list`` too."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _members(parts[0])
    if origin in (list, tuple):
        return [list, *_members(parts[0])]
    if parts:
        # Of a Literal these are words.
        return [member for part in parts for member in _members(part)]
    return [] if kind is NoneType else [kind]
