"""What pydantic found wrong, in words for the person who gave the parameters."""

import difflib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from octane.core.errors import OctaneError

__all__ = ["place_of", "read_object", "spelled"]

Style = Literal["flag", "parameter", "key"]


def _written(name: str, style: Style) -> str:
    match style:
        case "flag":
            return "--" + name.replace("_", "-")
        case "parameter":
            return "--" + name
        case "key":
            return name


def spelled(
    error: ValidationError,
    model: type[BaseModel],
    style: Style = "flag",
    among: Collection[str] | None = None,
) -> list[str]:
    """One sentence for each problem that pydantic found, naming the flag.

    Parameters
    ----------
    error
        What pydantic raised.
    model
        The model it was raised for; misspelt names get its nearest field as a suggestion.
    style
        How a parameter is written: a command's flags, the workflow's parameters, keys in a file.
    among
        Only problems of these parameters; None: of all.
    """
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else "parameters"
        if among is not None and name not in among:
            continue
        flag = _written(name, style)
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, model.model_fields, n=1)
            hint = f"did you mean {_written(near[0], style)}?" if near else "see --help for all."
            lines.append(f"Unknown parameter {flag}; {hint}")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{flag} is {problem['input']!r}: {message[0].lower()}{message[1:]}.")
    # Each member of a list that is wrong is a problem of its own, with the same words.
    return list(dict.fromkeys(lines))


def place_of(error: ValidationError) -> str:
    """Where in the content the first problem is, its names apart by dots."""
    return ".".join(map(str, error.errors()[0]["loc"])) or "the whole"


def read_object(path: Path) -> dict[str, object]:
    """Parameters that stand in a file as a JSON object.

    Raises
    ------
    OctaneError
        When it cannot be read, or is no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OctaneError(f"{path} cannot be read as JSON; correct it.") from error
    if not isinstance(found, dict):
        raise OctaneError(f"{path} holds no JSON object of parameters; correct it.")
    return found
