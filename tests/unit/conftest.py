"""What the unit tests share: small stores, parameters for a quick run, and the commands."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from foreign_images import foreign_image
from hypothesis import settings
from made_faults import spoil
from python_path import python_path
from uneven_sections import UnevenParameters, make_phantom

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.geometry import Grid, vector
from octane.store.formats.itk_files import FileVolume
from octane.store.writer import Level, create_image

# The same examples in every run, and no limit on time, which a busy machine would exceed.
settings.register_profile("octane", derandomize=True, deadline=None)
settings.load_profile("octane")

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def denied(monkeypatch):
    """Within a block, have a call refused the files and folders whose path ends so."""

    @contextmanager
    def refused(owner, name, ending):
        call = getattr(owner, name)

        def refuse(file, *arguments, **more):
            if str(file).endswith(ending):
                raise PermissionError(errno.EACCES, "Permission denied", str(file))
            return call(file, *arguments, **more)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refuse)
            yield

    return refused


@pytest.fixture
def own_signals():
    """Leave the handlers of signals as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def project():
    """The project's folder."""
    return PROJECT


@pytest.fixture(scope="session")
def extract_tiles(tmp_path_factory):
    """Extract the members of an archive of tiles whose names end so, into one folder."""

    def extract(package, pattern):
        archives = [*(PROJECT / ".tools" / "tiles").glob(f"{package}-*.tar.gz")]
        if not archives:
            pytest.skip(f"tools/setup.sh has not fetched the tiles of {package}")
        folder = tmp_path_factory.mktemp("tiles")
        with tarfile.open(archives[0]) as archive:
            for member in archive.getmembers():
                if re.search(rf"/{pattern}$", member.name):
                    content = archive.extractfile(member)
                    assert content is not None
                    (folder / Path(member.name).name).write_bytes(content.read())
        return folder

    return extract


@pytest.fixture(scope="session")
def execution():
    """On the CPU, with little."""
    return ExecutionParameters(backend="cpu", workers=2, memory="2GB")


@pytest.fixture(scope="session")
def reading():
    """Nothing but the defaults."""
    return InputParameters()


@pytest.fixture
def files_read_once(monkeypatch):
    """Fail where a step takes part after part of a file; gives the files that were read whole."""
    read, read_all = FileVolume.read, FileVolume._read_all
    names = []

    def part(volume, region, out=None):
        assert volume._voxels is not None, f"a part of {volume.path.name} was read"
        return read(volume, region, out)

    monkeypatch.setattr(FileVolume, "read", part)
    monkeypatch.setattr(
        FileVolume, "_read_all", lambda self: names.append(self.path.name) or read_all(self)
    )
    return names


@pytest.fixture
def rng():
    """Random numbers, the same in every run."""
    return np.random.default_rng(20)


@pytest.fixture
def write_image(tmp_path):
    """Write an OME-Zarr image as octane does."""

    def write(
        name,
        voxels,
        spacing=(10.0, 10.0, 10.0),
        *,
        edge=(0.0, 0.0, 0.0),
        chunks=None,
        shards=None,
        codec="zstd",
        attributes=None,
    ):
        shape = voxels.shape
        extent = vector(*(n * s for n, s in zip(shape, spacing, strict=True)))
        grid = Grid.covering(vector(*edge), extent, vector(*spacing))
        level = Level.volume(grid) if chunks is None else Level(grid, chunks, shards)
        path = tmp_path / name
        with create_image(path, [level], voxels.dtype, codec=codec, attributes=attributes) as (
            writer,
        ):
            writer[tuple(slice(n) for n in shape)] = voxels
        return path

    return write


@pytest.fixture
def write_mosaic(write_image):
    """Write a mosaic grid: tiles of (z, y, x) voxels beside each other, one a chunk."""

    def write(name, voxels, tile, spacing=(10.0, 10.0, 10.0), *, pitch=None, **attributes):
        shape = voxels.shape
        mosaic = {
            "edge": [0.0, 0.0, 0.0],
            "tile_extent": [min(n, m) * s for n, m, s in zip(tile, shape, spacing, strict=True)],
            "extent": [n * s for n, s in zip(shape, spacing, strict=True)],
            **({} if pitch is None else {"pitch": list(pitch)}),
        }
        noted = {"kind": "mosaic", "mosaic": mosaic, **attributes}
        return write_image(name, voxels, spacing, chunks=tile, attributes=noted)

    return write


@pytest.fixture
def write_foreign(tmp_path):
    """Write an OME-Zarr image as others do: any version, axes, unit and transformations."""
    return lambda name, voxels, **how: foreign_image(tmp_path / name, voxels, **how)


@pytest.fixture
def write_phantom(tmp_path, execution):
    """Make a small phantom; what is not given is left out of it. Its mosaics may be changed."""

    def write(name="phantom", *, change=None, **given):
        small = {
            "sections": 1,
            "tiles": (2, 2),
            "tile_shape": (8, 48, 48),
            "voxel_size": (10.0, 5.0, 5.0),
            "overlap": (0.25, 0.25),
            "section_thickness": 60.0,
            "speckle_looks": 0.0,
            "shading": 0.0,
            "attenuation": 0.0,
            "bias": 0.0,
        }
        parameters = UnevenParameters.model_validate({**small, **given})
        make_phantom(tmp_path / name, parameters, execution)
        if change is not None:
            for mosaic in (tmp_path / name / "mosaics").iterdir():
                spoil(mosaic, change, parameters)
        return tmp_path / name, parameters

    return write


@pytest.fixture
def write_file(tmp_path):
    """Write a file of ITK with a geometry of its own; what begins with ``packed`` is compressed."""

    def write(
        name,
        voxels,
        spacing=(0.025, 0.03, 0.04),
        origin=(1.5, -2.0, 7.25),
        direction=(0, 1, 0, 0, 0, -1, -1, 0, 0),
    ):
        image = sitk.GetImageFromArray(voxels)
        image.SetSpacing(spacing)
        image.SetOrigin(origin)
        image.SetDirection(direction)
        sitk.WriteImage(image, tmp_path / name, name.startswith("packed"))
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def run_python():
    """Run a program, with octane to import and variables as given; gives what it prints."""

    def run(program, *arguments, check=True, cwd=None, **variables):
        return subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **python_path(PROJECT / "bin"), **variables},
            stdout=subprocess.PIPE,
            text=True,
            check=check,
        ).stdout.strip()

    return run


@pytest.fixture
def odd_entry(tmp_path):
    """Put into a store what is no file of its own; gives its path there."""

    def put(store, kind):
        entry = store / "0" / "odd"
        other = tmp_path / "private"
        other.mkdir()
        (other / "key").write_text("secret")
        if kind == "FIFO":
            os.mkfifo(entry)
        elif kind == "loops":
            # The second one makes of the walk through the first one a tree without end.
            entry.symlink_to(".")
            (store / "0" / "even").symlink_to(".")
            return store / "0"
        else:
            lead = {"file": other / "key", "folder": other, "device": Path("/dev/zero")}
            entry.symlink_to(lead[kind])
        return entry

    return put


@pytest.fixture
def write_json(tmp_path):
    """Write a JSON file."""

    def write(name, content):
        path = tmp_path / name
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return write
