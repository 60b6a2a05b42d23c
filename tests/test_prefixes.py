"""Prefixes: a name is covered when it begins with one of them, however they lie in order."""

from itertools import combinations, product

from dwell.batch.prefixes import Prefixes


def test_a_name_is_covered_as_if_it_were_compared_with_each():
    texts = ["".join(signs) for size in range(4) for signs in product("ab", repeat=size)]
    for some in combinations(texts, 3):
        covered = Prefixes(some)
        assert [covered.cover(name) for name in texts] == [name.startswith(some) for name in texts]
    assert not any(map(Prefixes(()).cover, texts))
