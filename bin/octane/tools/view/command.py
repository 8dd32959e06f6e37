"""View results in a browser."""

from pathlib import Path

from octane.config.cli import command
from octane.config.parameters import StepParameters, parameter


class Address(StepParameters):
    """Address of the server."""

    port: int = parameter(
        0,
        "Port of the results; neuroglancer's own server takes the next one. 0: free ports.",
        ge=0,
        lt=65535,
    )


@command()
def main(results: Path, /, *, address: Address) -> None:
    """Serve results to a browser on this machine, and print the addresses.

    Neuroglancer shows the volume with a layer per channel; further volumes are hidden layers. Only
    programs on this machine that know an address can read the results.

    Parameters
    ----------
    results
        The --outdir of a run, a subject's folder in it, or a store (.ome.zarr, .ozx).
    """
    from octane.tools.view.step import view

    view(results, address.port)
