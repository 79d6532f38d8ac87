"""Order of the tests, and nothing else: units first, so that a broken one shows before engines start."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)
