"""An engine without links plans between GPUs that are there, and names those that are not."""

from glake import _C, errors

_C.transfer_open("", "")
print(len(_C.transfer_explain(1, 0, -1, 1 << 20)["paths"]))
for ends in ((99, 0), (0, 99), (2, -1)):
    try:
        _C.transfer_explain(*ends, -1, 1 << 20)
    except errors.InvalidDevice as error:
        print(f"cuda:{max(ends)}" in str(error))
