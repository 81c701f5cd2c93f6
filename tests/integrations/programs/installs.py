"""Installs a hook whose package is missing, and a hook that does not exist."""

import glake
from glake import integrations

for name, error in (("memory_saver", glake.GlakeError), ("nothing", glake.InvalidArgument)):
    try:
        integrations.install(name)
    except error as said:
        print(said)
