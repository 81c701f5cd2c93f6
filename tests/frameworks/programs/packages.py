"""Prints the folder of this Python's packages."""

import sysconfig

print(sysconfig.get_path("purelib"))
