"""The known defects can be brought back: each is a change of the code as it stands now."""

from collections import Counter

from tools.mutants import ROOT, mutants


def test_each_applies():
    found = list(mutants())
    assert len(found) >= 400
    stale = {}
    for mutant in found:
        try:
            mutant.texts(ROOT)
        except (ValueError, OSError) as error:
            stale[mutant.name] = str(error)
    assert stale == {}


def test_each_has_a_name_of_its_own():
    names = Counter(mutant.name for mutant in mutants())
    assert names.most_common(1)[0][1] == 1
