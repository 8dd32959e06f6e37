"""OME-Zarr images as other programs write them."""

import zarr


def foreign_image(
    path,
    voxels,
    *,
    version="0.4",
    axes="zyx",
    unit="micrometer",
    transforms=None,
    common=None,
    array="0",
    labels=None,
    **options,
):
    """Write an image; ``options`` are those of zarr's arrays."""
    if transforms is None:
        # 0.5 s between time points.
        transforms = [{"type": "scale", "scale": [0.5] * (len(axes) - 3) + [10.0] * 3}]
    types = {"t": "time", "c": "channel"}
    group = zarr.open_group(path, mode="w", zarr_format=2 if version == "0.4" else 3)
    if array is not None:
        made = group.create_array(array, shape=voxels.shape, dtype=voxels.dtype, **options)
        made[:] = voxels
    multiscale = {
        "axes": [
            {"name": a, "type": types.get(a, "space")}
            | ({} if unit is None or a in types else {"unit": unit})
            for a in axes
        ],
        "datasets": [{"path": "0", "coordinateTransformations": list(transforms)}],
        **({} if common is None else {"coordinateTransformations": common}),
    }
    content = {"multiscales": [multiscale]}
    if labels is not None:
        content["omero"] = {"channels": [{"label": label} for label in labels]}
    if version == "0.4":
        multiscale["version"] = "0.4"
        group.attrs.update(content)
    else:
        group.attrs.update({"ome": {"version": version, **content}})
    return path
