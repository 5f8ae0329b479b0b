from itertools import pairwise

import pytest

from edlm.plots import _spread


@pytest.mark.parametrize("num", [1, 2, 9, 20, 60])
def test_however_many_names_they_stay_in_the_panel_apart_and_in_order(num):
    for heights in ([0.5] * num, [0.0] * num, [1 - n / num for n in range(num)], [n % 2 for n in range(num)]):
        places = _spread(dict(enumerate(heights)))
        assert all(-1e-9 <= place <= 1 for place in places.values())
        falling = sorted(places.values(), reverse=True)
        gap = min(0.06, 1 / max(1, num - 1))
        assert all(above - below > gap - 1e-9 for above, below in pairwise(falling))
        assert sorted(places, key=lambda i: -places[i]) == sorted(places, key=lambda i: (-heights[i], i))


def test_names_that_have_room_stay_at_the_height_of_their_line():
    assert _spread({0: 0.9, 1: 0.5, 2: 0.1}) == {0: 0.9, 1: 0.5, 2: 0.1}
