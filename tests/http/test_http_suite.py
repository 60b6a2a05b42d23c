"""Every verb over a real connection: the suite for stores, on the client and a server."""

import pytest

from dwell.store.embedded import EmbeddedStore
from dwell.testing.suite.arrows import Arrows
from dwell.testing.suite.ids import ByIdVerbs
from dwell.testing.suite.picks import Picks
from dwell.testing.suite.puts import Puts
from dwell.testing.suite.queries import Queries
from dwell.testing.suite.reading import Reading
from dwell.testing.suite.receipts import Receipts
from dwell.testing.suite.takes import Takes
from dwell.testing.suite.times import Times
from dwell.testing.suite.versions import Versions
from tests.http.served import ServedStore


class Groups(Arrows, Puts, Takes, Picks, Receipts, ByIdVerbs, Times, Reading, Queries, Versions):
    """All groups but the one on notices, which a remote store does not give."""


class TestServedEmbedded(Groups):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path

    async def make_store(self, clock):
        return ServedStore(EmbeddedStore(self.path / "store", clock=clock, segment_bytes=4 << 20))
