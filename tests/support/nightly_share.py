"""A plugin of pytest: MAESTRO_NIGHTLY_SHARE, such as 2/5, keeps one of so many shares of the cases marked `nightly`."""

import os
import zlib


def pytest_collection_modifyitems(config, items):
    share, shares = map(int, os.environ.get("MAESTRO_NIGHTLY_SHARE", "1/1").split("/"))
    left_out = [item for item in items
                if item.get_closest_marker("nightly") and zlib.crc32(item.name.encode()) % shares != share - 1]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
