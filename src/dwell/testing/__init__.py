"""Tools that test a store: a plain model, a suite of tests and a searching machine.

The machine runs store and model side by side, and searches for differences. They ship with Dwell,
so that a store of your own can be tested in ten lines::

    from dwell.testing.machine import StoreMachine
    from dwell.testing.suite import StoreSuite

    class TestMyStore(StoreSuite):
        async def make_store(self, clock):
            return MyStore(clock)

    class MyMachine(StoreMachine):
        async def make_store(self, clock):
            return MyStore(clock)

    TestMyMachine = MyMachine.TestCase

They need the extra ``testing`` (pytest and Hypothesis).
"""

import pytest

for _name in ("ids", "machine", "notices", "receipts", "rig", "suite", "views"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")
