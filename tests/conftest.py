"""What holds for all tests: how long one drawn input takes says nothing on a busy machine."""

from hypothesis import settings

settings.register_profile("dwell", deadline=None)
settings.load_profile("dwell")
