"""The stores and files at a path."""

from octane.layout.inputs import find_inputs


def test_stores_in_a_folder_are_found_in_order(tmp_path):
    stores = ["section_01.ome.zarr", "section_02.ome.zarr"]
    # The last is a leftover of a killed run.
    for name in (*stores, "other", ".partial-99-section_02.ome.zarr"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert [p.name for p in find_inputs(tmp_path)] == stores
    assert find_inputs(tmp_path / stores[0]) == [tmp_path / stores[0]]
