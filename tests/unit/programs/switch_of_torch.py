"""glake_autoload imports the glake of its own folder (argument: that folder)."""

import sys

sys.path.append(sys.argv[1])
import glake_autoload

glake_autoload._import_glake()
import glake  # noqa: E402

print(glake.__version__)
