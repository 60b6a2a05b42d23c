"""Settings that the test gives by the environment."""

import json
import os

SECRET_KEY = "tests"
USE_TZ = True
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SITE_DATABASE"]}
}
INSTALLED_APPS = ["dwell.django"]
TASKS = {
    "default": {
        "BACKEND": "dwell.django.DwellBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": os.environ["SITE_URL"], **json.loads(os.environ["SITE_OPTIONS"])},
    }
}
