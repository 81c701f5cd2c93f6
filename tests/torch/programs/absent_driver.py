"""glake.enable() with a driver that is not there."""

import torch  # noqa: F401

import glake

try:
    glake.enable(driver="/absent/libsimcuda.so")
except glake.DriverAbsent as error:
    print("/absent/libsimcuda.so" in str(error))
