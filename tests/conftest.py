"""Settings of every test: hypothesis repeats itself and looks at no clock; Ctrl-C can be tested."""

from __future__ import annotations

import importlib.util
import signal

if importlib.util.find_spec("hypothesis"):  # what needs it is skipped elsewhere
    from hypothesis import settings

    settings.register_profile("onward", deadline=None, derandomize=True, print_blob=True)
    settings.load_profile("onward")

# A shell that starts the tests in the background has them, and all their children, ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
