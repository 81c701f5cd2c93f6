"""Installs a hook whose package is not there, and one that there is not."""

import glake
from glake import integrations

for name, error in (("memory_saver", glake.GlakeError), ("nothing", glake.InvalidArgument)):
    try:
        integrations.install(name)
    except error as said:
        print(said)
