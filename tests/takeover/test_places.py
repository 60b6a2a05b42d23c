"""Addresses of sources."""

import pytest

from dwell.errors import DwellError, InvalidUrl
from dwell.takeover.places import _OTHERS
from dwell.takeover.process import run

_FILES = ("crontab", "eventbridge", "beat+sqlite", "apscheduler+sqlite")


@pytest.mark.parametrize("place", ["127.0.0.1:x", "127.0.0.1:99999", "[::1"])
@pytest.mark.parametrize("scheme", [*_OTHERS, "redis", "http", "redis+cluster"])
def test_a_host_or_port_that_is_none_is_refused(scheme, place, tmp_path):
    with pytest.raises(InvalidUrl, match=r"url: got .*, expected HOST:PORT"):
        run(str(tmp_path), f"{scheme}://{place}/0?queue=a", tell=lambda report: None)


@pytest.mark.parametrize("scheme", [one for one in _OTHERS if one not in _FILES])
def test_a_host_that_is_not_there_is_told(scheme, tmp_path):
    with pytest.raises(DwellError):
        run(str(tmp_path), f"{scheme}://127.0.0.1:1/0", tell=lambda report: None)


@pytest.mark.parametrize("place", ["h:1,i:2", "u:s3cr3t@h:1,i:2", "u:s3cr3t\\@h"])
@pytest.mark.parametrize("scheme", [*_OTHERS])
def test_an_address_has_one_host(scheme, place, tmp_path):
    """Only PostgreSQL takes several; no other tells more than that, or fails."""
    with pytest.raises(DwellError) as told:
        run(str(tmp_path), f"{scheme}://{place}/?queue=a", tell=lambda report: None)
    assert "s3cr3t" not in str(told.value)


@pytest.mark.parametrize(
    "scheme", ["procrastinate+postgresql", "beat+postgresql", "apscheduler+postgres"]
)
def test_a_password_with_an_at_sign_is_not_shown(scheme, tmp_path):
    with pytest.raises(InvalidUrl, match="expected %40") as told:
        run(str(tmp_path), f"{scheme}://u:a@s3cr3t@127.0.0.1:1/d", tell=lambda report: None)
    assert "s3cr3t" not in str(told.value)
