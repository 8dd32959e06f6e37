"""What pydantic found wrong, in words for the person who gave the parameters."""

import difflib

from pydantic import BaseModel, ValidationError

__all__ = ["spelled"]


def spelled(error: ValidationError, model: type[BaseModel], style: str = "--{}") -> list[str]:
    """One sentence for each problem that pydantic found, naming the flag.

    Parameters
    ----------
    error
        What pydantic raised.
    model
        The model it was raised for; misspelt names get its nearest field as a suggestion.
    style
        How a parameter is written: flags on a command line, keys in a file.
    """
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else "parameters"
        flag = style.format(name.replace("_", "-") if style == "--{}" else name)
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, model.model_fields, n=1)
            hint = f"did you mean {style.format(near[0])}?" if near else "see --help for all."
            lines.append(f"Unknown parameter {flag}; {hint}")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{flag} is {problem['input']!r}: {message[0].lower()}{message[1:]}.")
    return lines
