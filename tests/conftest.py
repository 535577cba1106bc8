"""Settings of all tests."""

from __future__ import annotations

import hypothesis_profiles  # noqa: F401
from sampling import pytest_collection_finish as pytest_collection_finish
from sampling import pytest_collection_modifyitems as pytest_collection_modifyitems
from sampling import pytest_ignore_collect as pytest_ignore_collect
from sampling import pytest_report_header as pytest_report_header
from sampling import pytest_sessionfinish as pytest_sessionfinish
