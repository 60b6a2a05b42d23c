#!/bin/sh
# PyArrow 26.0.1 knows no rule of a time zone after 2037: its offset stays that of the end of 2037.
#
# tzdata lists each change of an offset up to 2037, and gives a rule for all years after it. Python's
# zoneinfo follows the rule; pyarrow.compute.assume_timezone and local_timestamp do not. 12:00 on
# 1 July 2040 is 10:00 UTC in Berlin and 02:00 UTC in Sydney, as in 2037. PyArrow says 11:00 and
# 01:00, an hour early.
#
# Installs the package into a temporary folder, and fails if it behaves otherwise.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder" pyarrow==26.0.1 tzdata
PYTHONPATH="$folder" python3 - <<'PYTHON'
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

print("pyarrow", pa.__version__)
changed = False
for zone in ("Europe/Berlin", "Australia/Sydney"):
    for year, is_wrong in ((2037, False), (2040, True)):
        local = datetime(year, 7, 1, 12)
        right = local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        found = pc.assume_timezone(pa.array([local], pa.timestamp("us")), zone)
        moment = datetime.fromtimestamp(found.cast(pa.int64())[0].as_py() / 1e6, UTC)
        print(f"{zone} {local}: zoneinfo {right:%H:%M} UTC, pyarrow {moment:%H:%M} UTC")
        changed |= (moment != right) != is_wrong
sys.exit("pyarrow behaves otherwise than described here" if changed else 0)
PYTHON
