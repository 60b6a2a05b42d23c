"""Projects of Django over a server and over a folder."""

import pytest

from tests.django.sites import NEWER, PYTHONS, Site
from tests.spark.conftest import ServerProcess


@pytest.fixture(scope="session")
def server_url(tmp_path_factory):
    server = ServerProcess(tmp_path_factory.mktemp("served"))
    yield server.url
    server.stop()


@pytest.fixture(params=["backport", pytest.param("django6", marks=pytest.mark.campaign)])
def python(request):
    if request.param == "django6" and not NEWER.exists():
        pytest.skip("make setup has found no Python 3.12 or later")
    return PYTHONS[request.param]


@pytest.fixture
def site_at(python, tmp_path):
    """Return a function that makes a project over the store at a URL."""
    sites = []

    def made(url, /, **options):
        folder = tmp_path / f"site{len(sites)}"
        folder.mkdir()
        sites.append(Site(python, folder, url, **options))
        return sites[-1]

    yield made
    for site in sites:
        site.close()


@pytest.fixture
def site(site_at, tmp_path):
    """A project over a folder, which each of its processes has in turn."""
    return site_at(f"{tmp_path}/store", store={"sync": "never"})
