"""Pages from templates: every text that is put in is escaped, and one that lacks is an error."""

import shlex

from jinja2 import Environment, PackageLoader, StrictUndefined

from octane.report import charts

__all__ = ["rendered"]


def rendered(template: str, **content: object) -> str:
    """A page of ``templates/`` with its contents put in."""
    environment = Environment(
        loader=PackageLoader("octane.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(length_text=charts.length, command=shlex.join)
    page = environment.get_template(template)
    return page.render(**content, light=charts.LIGHT, dark=charts.DARK)
