#!/bin/sh
# A step in a range that wraps around: croniter counts on from another value than Celery.
#
# Both read hours of 21-3 as 21, 22, 23, 0, 1, 2 and 3. With a step of two, Celery 5.7.0 takes each
# second of these, 21, 23, 1 and 3. croniter 7.0.0 takes 21, 23 and 2: after the end of the field it
# goes on one value too late. It is right where the step meets the end of the field (22-2/2), and in
# minutes 50-15/20 has the minute 11, and 50-10/20 nothing after 50. RQ's cron jobs are read so.
#
# Installs both into a temporary folder, and fails if one of them behaves otherwise.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder" \
	croniter==7.0.0 celery==5.7.0
PYTHONPATH="$folder" python3 - <<'PYTHON'
import sys

from celery.schedules import crontab
from croniter import croniter

EXPECTED = {
    ("hour", "21-3"): ([0, 1, 2, 3, 21, 22, 23], [0, 1, 2, 3, 21, 22, 23]),
    ("hour", "22-2/2"): ([0, 2, 22], [0, 2, 22]),
    ("hour", "21-3/2"): ([2, 21, 23], [1, 3, 21, 23]),
    ("minute", "50-15/20"): ([11, 50], [10, 50]),
    ("minute", "50-10/20"): ([50], [10, 50]),
}
changed = False
for (field, text), (by_croniter, by_celery) in EXPECTED.items():
    line = f"0 {text} * * *" if field == "hour" else f"{text} 9 * * *"
    expanded = croniter.expand(line)[0][1 if field == "hour" else 0]
    own = sorted(getattr(crontab(**{field: text}), field))
    print(f"{field} {text}: croniter {expanded}, Celery {own}")
    changed |= (expanded, own) != (by_croniter, by_celery)
sys.exit("a library behaves otherwise than described here" if changed else 0)
PYTHON
