"""``python -m tools.rolling REV [--store http|redis]``: from a revision to this checkout."""

import argparse
import json

from tools.rolling.upgrade import run


def main() -> None:
    """Print the counts as an object of JSON; the exit code is 1 if something was lost."""
    parser = argparse.ArgumentParser(prog="python -m tools.rolling", description=__doc__)
    parser.add_argument("revision", help="the older commit, branch or tag")
    parser.add_argument("--store", choices=("http", "redis"), default="http")
    given = parser.parse_args()
    found = run(given.revision, given.store)
    print(json.dumps(found._asdict()))
    raise SystemExit(bool(found.lost or found.errors))


if __name__ == "__main__":
    main()
