"""When the first lease of what is held ends, compared with a look at all of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwell.server.beanstalk.leaseends import LeaseEnds

NUMBERS, ENDS = st.integers(0, 9), st.integers(1, 50)


def job(end_ms):
    return b"receipt", "topic", 60_000, end_ms


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hold"), NUMBERS, ENDS),
            st.tuples(st.just("drop"), NUMBERS, ENDS),
            st.tuples(st.just("ask"), NUMBERS, st.integers(0, 3)),
        )
    )
)
def test_it_is_what_a_look_at_all_finds(steps):
    ends, held, now_ms = LeaseEnds(), {}, 0
    for step, number, value in steps:
        if step == "hold":
            held[number] = job(now_ms + value)
            ends.note((number,), held)
        elif step == "drop":
            held.pop(number, None)
        else:
            now_ms += value
            wanted = min((one[3] for one in held.values() if one[3] > now_ms), default=None)
            assert ends.first_ms(held, now_ms) == wanted


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_is_held_no_more_is_not_kept(is_asked):
    ends, held = LeaseEnds(), {}
    for number in range(20_000):
        held[number] = job(number + 1)
        ends.note((number,), held)
        del held[number]
        if is_asked:
            ends.first_ms(held, 0)
        assert len(ends._fresh) + len(ends._heap) <= 3000


class Counted(dict):
    """Counts how often it is looked into."""

    looks = 0

    def get(self, number):
        self.looks += 1
        return super().get(number)


def test_many_jobs_are_not_looked_at_again_and_again():
    held, ends = Counted({number: job(1000 + number % 7) for number in range(10_000)}), LeaseEnds()
    ends.note(held, held)
    ends.first_ms(held, 0)
    held.looks = 0
    for _ in range(100):
        assert ends.first_ms(held, 0) == 1000
    assert held.looks <= 100
