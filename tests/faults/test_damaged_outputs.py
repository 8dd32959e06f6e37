"""What is damaged between two steps is refused by name, and made again by doing what is said."""

import shutil

import pytest

from octane.core.errors import OctaneError
from octane.core.manifests import PLACE, check, measured

pytestmark = pytest.mark.slow

DAMAGES = {
    "cut short": (lambda s: cut(s / "0/c/0/0/0"), "chunk 0/c/0/0/0 is cut short: "),
    "altered": (lambda s: flip(s / "0/c/0/0/0"), "chunk 0/c/0/0/0"),
    "list lost": (lambda s: (s / PLACE).unlink(), f"has lost {PLACE}"),
}


def stamps(store):
    """Size and checksum of all files of a store."""
    store = store.resolve()
    files = (p for p in store.rglob("*") if p.is_file())
    return {p.relative_to(store): measured(p) for p in files}


def cut(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module")
def finished(nextflow, phantom, quick, tmp_path_factory):
    """Run again with -resume, from a run up to STACK that has ended."""
    folder = tmp_path_factory.mktemp("between")

    def again(*arguments):
        return nextflow(
            *(folder, *quick, "--input", phantom / "mosaics", "--subject", "s"),
            *("--skip_report", "--skip_n4", "-resume", *arguments),
        )

    first = again()
    assert first.code == 0, first.output
    return again, first.task_file("STACK", "s_stack.ome.zarr")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_step_refuses_an_output_of_another_that_is_damaged(finished, tmp_path, damage):
    again, store = finished
    alter, words = DAMAGES[damage]
    kept = shutil.copytree(store, tmp_path / "kept")
    alter(store)
    # The parameter has PYRAMID run again, and nothing before it.
    failed = again("--pyramid_resolutions", "20")
    shutil.rmtree(store)
    shutil.copytree(kept, store)
    assert failed.code != 0
    assert failed.processes("FAILED") == {"PYRAMID"}
    told = " ".join(failed.output.split())
    assert words in told
    assert f"remove {store.resolve().parent} and run again with -resume" in told


def test_what_the_message_says_makes_it_good(finished):
    again, store = finished
    before = stamps(store)
    cut(store / "0/c/0/0/0")
    with pytest.raises(OctaneError, match="cut short"):
        check(store)
    shutil.rmtree(store.parent)
    made = again("--pyramid_resolutions", "20")
    assert made.code == 0, made.output
    assert made.processes("COMPLETED") == {"STACK", "PYRAMID"}
    assert stamps(made.task_file("STACK", store.name)) == before
