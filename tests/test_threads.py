"""Work in threads."""

import pytest

from crossknn._threads import map_in_threads


@pytest.mark.parametrize("threads", [1, 3])
def test_map_in_threads_keeps_the_order(threads):
    assert map_in_threads(lambda value: value * 2, range(20), threads) == list(range(0, 40, 2))
    assert map_in_threads(str, [], threads) == []
