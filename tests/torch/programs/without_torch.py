"""glake.enable() without torch."""

import sys

sys.modules["torch"] = None
import glake  # noqa: E402

try:
    glake.enable(driver="sim")
except glake.GlakeError as error:
    print(error)
