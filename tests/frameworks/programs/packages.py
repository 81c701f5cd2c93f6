"""Where this Python has its packages."""

import sysconfig

print(sysconfig.get_path("purelib"))
