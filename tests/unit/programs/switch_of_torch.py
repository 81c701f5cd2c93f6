"""The switch of torch takes the glake beside it (argument: the folder it lies in)."""

import sys

sys.path.append(sys.argv[1])
import glake_autoload

glake_autoload._import_glake()
import glake  # noqa: E402

print(glake.__version__)
