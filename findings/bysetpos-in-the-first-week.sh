#!/bin/sh
# BYSETPOS with FREQ=WEEKLY means three things, in four libraries that read RFC 5545.
#
# The rule is FREQ=WEEKLY;BYDAY=MO,WE,FR;BYSETPOS=1, and it begins on a Wednesday. Of the days of a
# week the first one is Monday, so the first run is in the week after: rrule-temporal 1.5.3 says so.
# python-dateutil 2.9.0.post0 and rrule.js 2.8.1 count the first week from the begin on, so that
# Wednesday is the first of its days and runs, although they count a first month or day in full.
# ical.js 2.2.1 passes over BYSETPOS in weekly and daily rules, and runs on all three days of each
# week.
#
# Installs the packages into a temporary folder, and fails if one of them behaves otherwise.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder/python" \
	python-dateutil==2.9.0.post0
cd "$folder"
npm install --silent --no-fund --no-audit rrule@2.8.1 ical.js@2.2.1 rrule-temporal@1.5.3
cat > runs.mjs <<'JAVASCRIPT'
import ICAL from "ical.js";
import rrule from "rrule";
import { RRuleTemporal } from "rrule-temporal";

const [, , rule, begin] = process.argv;
const text = `DTSTART:${begin}\nRRULE:${rule};COUNT=3`;
const time = ICAL.Time.fromString(begin.replace(/(....)(..)(..)T(..)(..)(..)Z/, "$1-$2-$3T$4:$5:$6Z"));
const each = ICAL.Recur.fromString(`${rule};COUNT=3`).iterator(time);
const runs = {
  "rrule.js": rrule.rrulestr(text).all().map((one) => one.toISOString()),
  "ical.js": [1, 2, 3].map(() => each.next().toString()),
  "rrule-temporal": new RRuleTemporal({ rruleString: text }).all().map(String),
};
console.log(JSON.stringify(runs));
JAVASCRIPT
PYTHONPATH="$folder/python" python3 - <<'PYTHON'
import json
import subprocess
import sys
from datetime import datetime

from dateutil.rrule import rrulestr

EXPECTED = {
    ("FREQ=WEEKLY;BYDAY=MO,WE,FR;BYSETPOS=1", "20300102T090000Z"): {
        "python-dateutil": ["01-02T09", "01-07T09", "01-14T09"],
        "rrule.js": ["01-02T09", "01-07T09", "01-14T09"],
        "ical.js": ["01-02T09", "01-04T09", "01-07T09"],
        "rrule-temporal": ["01-07T09", "01-14T09", "01-21T09"],
    },
    ("FREQ=DAILY;BYHOUR=6,9,12;BYSETPOS=1", "20300102T090000Z"): {
        "python-dateutil": ["01-03T06", "01-04T06", "01-05T06"],
        "rrule.js": ["01-03T06", "01-04T06", "01-05T06"],
        "ical.js": ["01-02T09", "01-02T12", "01-03T06"],
        "rrule-temporal": ["01-03T06", "01-04T06", "01-05T06"],
    },
    ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=1", "20300110T090000Z"): dict.fromkeys(
        ("python-dateutil", "rrule.js", "ical.js", "rrule-temporal"),
        ["02-01T09", "03-01T09", "04-01T09"],
    ),
}
changed = False
for (rule, begin), expected in EXPECTED.items():
    moments = rrulestr(f"{rule};COUNT=3", dtstart=datetime.strptime(begin, "%Y%m%dT%H%M%SZ"))
    found = {"python-dateutil": [one.isoformat() for one in moments]}
    command = ["node", "runs.mjs", rule, begin]
    found |= json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    print(f"{rule}, from {begin} on:")
    for name, runs in found.items():
        short = [run[5:13] for run in runs]
        print(f"  {name}: {', '.join(short)}")
        changed |= short != expected[name]
sys.exit("a library behaves otherwise than described here" if changed else 0)
PYTHON
