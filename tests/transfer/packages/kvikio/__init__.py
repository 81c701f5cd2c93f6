"""A stand-in for kvikio on simulated GPUs, whose memory is memory. Its signatures are kvikio's, as
tests/integrations/stored/kvikio.txt has them."""
