"""Cheaper Python processes for Spark: one for each planning, several for each stream."""

import os
import sys
from pathlib import Path

import pyspark

_OWN = Path(__file__).with_name("python.sh")


def use_this_python(*, is_local: bool) -> None:
    """Make Spark start the Python of this process, unless ``PYSPARK_PYTHON`` is set.

    Under its usual name it would find a Python without this package. On this machine it is started
    without Spark's zip in its path, if that is from the package that this process has, compiled.
    """
    of_package = Path(pyspark.__file__).parent
    is_packaged = Path(os.environ.get("SPARK_HOME", of_package)) == of_package
    if os.environ.get("PYSPARK_PYTHON", str(_OWN)) != str(_OWN):
        return
    if is_local and is_packaged and of_package.is_dir() and os.access(_OWN, os.X_OK):
        os.environ["PYSPARK_PYTHON"] = str(_OWN)
        os.environ["DWELL_SPARK_PYTHON"] = sys.executable
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable
