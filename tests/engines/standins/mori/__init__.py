"""AMD's library for transfers, of which vLLM's MoRIIOConnector imports `mori.io`."""
