"""Arrays that zarr made, as octane opens them."""

import zarr

from octane.store.array import Array, open_array
from octane.store.chunks import METADATA
from octane.store.ngff import read_json


def own(array: zarr.Array) -> Array:
    """Open an array of a store in a folder again."""
    folder = array.store_path.store.root  # ty: ignore - a folder's
    return open_array(folder, array.path, {f: read_json(folder / array.path / f) for f in METADATA})
