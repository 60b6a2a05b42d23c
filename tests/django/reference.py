"""Runs tests of Django by name, with an app of ours: ``python reference.py NAME ...``."""

import sys

import django
from django.conf import settings
from django.test.utils import get_runner

if __name__ == "__main__":
    settings.configure(
        INSTALLED_APPS=["dwell.django"],
        USE_TZ=True,
        SECRET_KEY="tests",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )
    django.setup()
    sys.exit(get_runner(settings)(verbosity=2).run_tests(sys.argv[1:]))
