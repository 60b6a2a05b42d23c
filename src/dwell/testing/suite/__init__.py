"""The suite: the required behaviour of every store, as pytest tests.

Subclass :class:`StoreSuite`, define how a store is made, and name the class so that pytest finds
it. A store that lives in a folder takes it from an autouse fixture::

    class TestMyStore(StoreSuite):
        @pytest.fixture(autouse=True)
        def folder(self, tmp_path):
            self.path = tmp_path

        async def make_store(self, clock):
            return MyStore(self.path, clock=clock)

A store of several shards sets their number, and skips the rules that hold within one::

    class TestMyShards(StoreSuite):
        shards = 4
"""

from dwell.testing.suite.arrows import Arrows
from dwell.testing.suite.fairness import Fairness
from dwell.testing.suite.follows import Follows
from dwell.testing.suite.ids import ByIdVerbs
from dwell.testing.suite.limits import Limits
from dwell.testing.suite.notices import Notices
from dwell.testing.suite.picks import Picks
from dwell.testing.suite.puts import Puts
from dwell.testing.suite.queries import Queries
from dwell.testing.suite.rates import Rates
from dwell.testing.suite.reading import Reading
from dwell.testing.suite.receipts import Receipts
from dwell.testing.suite.results import Results
from dwell.testing.suite.sweeps import Sweeps
from dwell.testing.suite.takes import Takes
from dwell.testing.suite.times import Times
from dwell.testing.suite.versions import Versions

__all__ = ["StoreSuite"]


class StoreSuite(
    Arrows,
    Puts,
    Takes,
    Limits,
    Rates,
    Fairness,
    Picks,
    Receipts,
    Results,
    Follows,
    ByIdVerbs,
    Times,
    Notices,
    Reading,
    Sweeps,
    Queries,
    Versions,
):
    """All tests; override ``make_store``."""

    shards = 1
