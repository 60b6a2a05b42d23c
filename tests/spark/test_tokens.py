"""A server that wants tokens: as an option, or from the environment of the driver."""

import hashlib
import os
import subprocess
import sys

import pytest
from pyspark.errors import PySparkException

from tests.spark import PATIENCE_S
from tests.spark.conftest import ServerProcess

pytestmark = pytest.mark.campaign


@pytest.fixture
def guarded(tmp_path):
    path = tmp_path / "tokens.toml"
    digest = hashlib.sha256(b"secret").hexdigest()
    path.write_text(
        f'[[token]]\nname = "spark"\nsha256 = "{digest}"\nput = [""]\ntake = [""]\nadmin = [""]\n'
    )
    path.chmod(0o600)
    server = ServerProcess(tmp_path, "--token-file", str(path))
    yield server
    server.stop()


def test_token_as_an_option(spark, guarded):
    rows = spark.range(10).selectExpr("concat('m', id) id", "'x' body", "'1h' delay")
    writer = rows.write.format("dwell").mode("append").options(url=guarded.url, topic="t")
    with pytest.raises(PySparkException, match="Unauthorized"):
        writer.save()
    writer.option("token", "secret").save()
    reader = spark.read.format("dwell").options(url=guarded.url, token="secret")
    assert reader.load().count() == 10


def test_token_from_the_environment(guarded, tmp_path):
    program = f"""
from dwell.spark import session, register
spark = session("token", "local[1]")
register(spark)
rows = spark.range(10).selectExpr("concat('m', id) id", "'x' body", "'1h' delay")
rows.write.format("dwell").mode("append").options(url="{guarded.url}", topic="t").save()
print("read", spark.read.format("dwell").option("url", "{guarded.url}").load().count())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "DWELL_TOKEN": "secret"},
    )
    assert "read 10" in done.stdout, done.stderr[-3000:]
