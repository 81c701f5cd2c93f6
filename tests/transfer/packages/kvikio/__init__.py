"""A stand-in for kvikio on simulated GPUs, whose memory can be read and written directly.

Its signatures are kvikio's, as in tests/integrations/stored/kvikio.txt.
"""
