"""Mosaics of which tiles were not imaged."""

import json


def leave_out(store, tiles):
    """Declare ``tiles`` (row, column) of a store of octane's as not imaged; remove their chunks."""
    described = store / "zarr.json"
    content = json.loads(described.read_text())
    content["attributes"]["octane"]["mosaic"]["not_imaged"] = [list(tile) for tile in tiles]
    described.write_text(json.dumps(content))
    for row, column in tiles:
        (store / "0" / "c" / "0" / str(row) / str(column)).unlink()
    return store
