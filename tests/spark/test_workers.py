"""The Python in which Spark's tasks run."""

import os
import subprocess
import sys

import pyspark
import pytest

from dwell.spark import workers
from dwell.spark.workers import use_this_python


def of_task(rows):
    import sys

    import pyspark

    import dwell

    assert dwell
    return [
        (sys.executable, pyspark.__file__, len([place for place in sys.path if "jars" in place]))
    ]


def test_a_task_has_the_modules_that_are_installed(spark):
    (found,) = set(spark.sparkContext.range(2).mapPartitions(of_task).collect())
    assert found == (sys.executable, pyspark.__file__, 0)


@pytest.fixture
def chosen(monkeypatch):
    """Return what is chosen in an environment."""

    def choose(is_local=True, **environment):
        monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], **environment})
        use_this_python(is_local=is_local)
        return os.environ["PYSPARK_PYTHON"]

    return choose


def test_what_is_said_and_what_is_elsewhere_stays(chosen, tmp_path):
    assert chosen() == str(workers._OWN)
    assert chosen(PYSPARK_PYTHON="/usr/bin/python3") == "/usr/bin/python3"
    assert chosen(SPARK_HOME=str(tmp_path)) == sys.executable
    assert chosen(is_local=False) == sys.executable
    # What a process inherits of another names the Python of that one.
    assert chosen(PYSPARK_PYTHON=str(workers._OWN), DWELL_SPARK_PYTHON="/other/python")
    assert os.environ["DWELL_SPARK_PYTHON"] == sys.executable


def test_only_what_is_sparks_leaves_the_path(chosen, tmp_path):
    home = "/opt/a b/pyspark"
    (tmp_path / "globbed").touch()
    own = [str(tmp_path / "my lib.zip"), "", "/jars/x.jar", f"{home}/jars/my.jar"]
    own.append(str(tmp_path / "glob*"))
    sparks = [f"{home}/python/lib/{name}" for name in ("pyspark.zip", "py4j-0.10-src.zip")]
    path = [*sparks, own[0], f"{home}/jars/spark-core_2.13-4.jar", *own[1:]]
    environment = {
        "PATH": os.environ["PATH"],
        "SPARK_HOME": home,
        "PYTHONPATH": ":".join(path),
        "DWELL_SPARK_PYTHON": sys.executable,
    }
    code = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1])"
    for given, expected in ((path, f"{':'.join(own)} a  b*\n"), ([], " a  b*\n")):
        done = subprocess.run(
            [chosen(), "-c", code, "a  b*"],
            env={**environment, "PYTHONPATH": ":".join(given)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == expected
