"""Settings of every test: hypothesis repeats itself and looks at no clock."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("onward", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("onward")
