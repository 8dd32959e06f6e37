"""Files with a flipped bit, which must be read right or refused."""

import numpy as np

from octane.core.errors import OctaneError


def refusals(file, read, expected, start=0, end=None):
    """Flip bits of a file one by one, between two places, and read it each time.

    Returns the messages of the readings that were refused; the others must give ``expected``. The
    last bytes, often a checksum, are all flipped.
    """
    content, messages = file.read_bytes(), []
    end = len(content) if end is None else end
    places = [*np.linspace(start, end - 9, 24).astype(int).tolist(), *range(end - 8, end)]
    for k, place in enumerate(places):
        damaged = bytearray(content)
        damaged[place] ^= 1 << k % 8
        file.write_bytes(damaged)
        try:
            voxels = read()
        except OctaneError as error:
            messages.append(str(error))
        else:
            np.testing.assert_array_equal(voxels, expected, err_msg=f"bit {k % 8} of byte {place}")
    file.write_bytes(content)
    np.testing.assert_array_equal(read(), expected)
    return messages
